package streams

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// BlobStore is a stream of blobs: data that is too large for one message, in chunks.
type BlobStore struct{ stream, prefix string }

// The streams of blobs. Bodies are kept until no job needs them, and a full stream
// refuses new ones. Results are evicted, oldest first.
var (
	BodyBlobs   = BlobStore{subjects.StreamBlobs, subjects.Blobs}
	ResultBlobs = BlobStore{subjects.StreamResultBlobs, subjects.ResultBlobs}
)

// Limits of blobs.
const (
	chunkSize           = 512 << 10 // bytes; readers of older blobs rely on it
	chunkOverhead       = 256       // bytes that a chunk takes in its stream besides its data, at most
	maxConcurrentChunks = 8
	chunkTimeout        = 2 * time.Second
	chunkRetryDelay     = 100 * time.Millisecond
	blobTimeout         = 15 * time.Second // if the context has no deadline
	maxBlobChunks       = job.MaxBody/chunkSize + 1
)

// CorruptBlobError means that a blob was read but does not match its reference.
type CorruptBlobError struct{ Name, Reason string }

func (e *CorruptBlobError) Error() string { return "blob " + e.Name + ": " + e.Reason }

// StoreBody stores the body of the record with an id and returns the reference to it. The
// blob is garbage until that record is stored, which must happen soon: see
// [MaxBodyDelay]. The error is a [*job.UnavailableError] if there is no space, and wraps
// [job.ErrTooLarge] if there never will be.
func (w *Writer) StoreBody(ctx context.Context, id string, body []byte) (job.Blob, error) {
	return w.storeBlob(ctx, &w.bodies, body, func(string) string {
		return subjects.BodyBlobName(id, time.Now(), rand.Text())
	})
}

// StoreResult stores a large result under a name of the form "<job>.<dispatch>" and
// returns the reference to it. It evicts older results if necessary. The error wraps
// [job.ErrTooLarge] if the result is larger than the whole stream.
func (w *Writer) StoreResult(ctx context.Context, name string, result []byte) (job.Blob, error) {
	return w.storeBlob(ctx, &w.results, result, func(checksum string) string { return name + "-" + checksum })
}

// storeBlob stores data as a blob, or nothing: if a chunk cannot be stored, it removes
// the others. name returns the blob's name, given a checksum that it may include.
func (w *Writer) storeBlob(ctx context.Context, space *blobSpace, data []byte, name func(checksum string) string) (job.Blob, error) {
	if len(data) == 0 || len(data) > job.MaxBody {
		return job.Blob{}, fmt.Errorf("blob of %d bytes; must have 1 to %d: %w", len(data), job.MaxBody, job.ErrTooLarge)
	}
	sum := sha256.Sum256(data)
	blob := job.Blob{
		Name: name(hex.EncodeToString(sum[:6])), Chunks: (len(data) + chunkSize - 1) / chunkSize,
		Size: int64(len(data)), SHA256: hex.EncodeToString(sum[:]),
	}
	ctx, cancel := withTimeout(ctx, blobTimeout)
	defer cancel()
	release, err := space.reserve(ctx, w.local.JS, blob.Size+int64(blob.Chunks)*chunkOverhead)
	if err != nil {
		return job.Blob{}, err
	}
	defer release()
	attempt := rand.Text() // not the name: the chunks of an attempt that failed are removed
	g, groupCtx := crash.WithContext(ctx)
	g.SetLimit(maxConcurrentChunks)
	for i := range blob.Chunks {
		chunk := data[i*chunkSize : min((i+1)*chunkSize, len(data))]
		g.Go(func() error {
			m := &nats.Msg{
				Subject: subjects.BlobChunk(space.store.prefix, blob.Name, i), Data: chunk,
				Header: nats.Header{subjects.HeaderMsgID: []string{fmt.Sprintf("%s.%d", attempt, i)}},
			}
			return w.storeChunk(ctx, groupCtx, m)
		})
	}
	if err := g.Wait(); err != nil {
		w.discardBlob(ctx, space.store, blob.Name)
		if errors.Is(err, ErrStorageFull) {
			err = space.fullError(blob.Size)
		}
		return job.Blob{}, fmt.Errorf("store blob %s: %w", blob.Name, err)
	}
	return blob, nil
}

// discardBlob removes the chunks of a blob that was not stored completely. If it fails,
// they are removed later, as every body that no job needs, or evicted.
func (w *Writer) discardBlob(ctx context.Context, store BlobStore, name string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), chunkTimeout)
	defer cancel()
	_ = purge(ctx, w.local.JS, store.stream, jetstream.WithPurgeSubject(store.prefix+"."+name+".*"))
}

// withTimeout returns ctx with a timeout of d if it has no deadline.
func withTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, limited := ctx.Deadline(); limited {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}

// storeChunk stores one chunk and retries until it is acknowledged, or ctx or group ends. It does
// not abandon a request when group ends, because another chunk has failed: the stream might store
// the chunk after the blob was removed. The
// stream drops a repetition by the chunk's message ID, so that a slow one is not made slower;
// one that was stored twice does no harm, because readers take the last one. The error is
// [ErrStorageFull] if there is no space.
func (w *Writer) storeChunk(ctx, group context.Context, chunk *nats.Msg) error {
	for group.Err() == nil {
		m, err := w.local.Ingest.Request(ctx, chunk, chunkTimeout)
		if err == nil {
			_, err = embedded.ParsePubAck(m.Data)
		}
		if err == nil {
			return nil
		}
		if apiErr, ok := errors.AsType[*embedded.APIError](err); ok && apiErr.Class() == embedded.ClassRetry {
			if apiErr.StorageFull() {
				return fmt.Errorf("%w: %w", ErrStorageFull, apiErr.Unavailable())
			}
			return apiErr.Unavailable()
		}
		_ = backoff.Sleep(group, chunkRetryDelay)
		if group.Err() != nil {
			return &job.UnavailableError{Reason: "blob chunk was not stored: " + err.Error(), RetryAfter: time.Second}
		}
	}
	return group.Err()
}

// LoadBlob reads a blob and verifies its size and checksum. It returns a
// [*CorruptBlobError] if they do not match, and [ErrNotStored] if a chunk is gone.
func (r *Reader) LoadBlob(ctx context.Context, store BlobStore, blob job.Blob) ([]byte, error) {
	data, err := r.LoadBlobRange(ctx, store, blob, 0, blob.Size)
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != blob.SHA256 {
		return nil, &CorruptBlobError{blob.Name, "its content does not match its checksum"}
	}
	return data, nil
}

// LoadBlobRange reads size bytes of a blob that begin at offset, or fewer at its end. It
// cannot verify the checksum, which is that of the whole blob; for its errors see
// [Reader.LoadBlob].
func (r *Reader) LoadBlobRange(ctx context.Context, store BlobStore, blob job.Blob, offset, size int64) ([]byte, error) {
	if blob.Chunks < 1 || blob.Chunks > maxBlobChunks || blob.Size < 1 || blob.Size > job.MaxBody || int64(blob.Chunks) != (blob.Size+chunkSize-1)/chunkSize {
		return nil, &CorruptBlobError{blob.Name, "size or number of chunks in its reference is out of range"}
	}
	size = min(size, blob.Size-offset)
	if offset < 0 || size <= 0 {
		return nil, nil
	}
	ctx, cancel := withTimeout(ctx, blobTimeout)
	defer cancel()
	first, last := int(offset/chunkSize), int((offset+size-1)/chunkSize)
	chunks := make([][]byte, last-first+1)
	g, ctx := crash.WithContext(ctx)
	g.SetLimit(maxConcurrentChunks)
	for i := range chunks {
		g.Go(func() error {
			s, err := r.load(ctx, store.stream, getRequest{LastFor: subjects.BlobChunk(store.prefix, blob.Name, first+i)})
			if want := min(chunkSize, blob.Size-int64(first+i)*chunkSize); err == nil && int64(len(s.data)) != want {
				err = &CorruptBlobError{blob.Name, fmt.Sprintf("chunk %d has %d bytes, its reference says %d", first+i, len(s.data), want)}
			}
			chunks[i] = s.data
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("load blob %s: %w", blob.Name, err)
	}
	if len(chunks) == 1 {
		return chunks[0][offset%chunkSize:][:size], nil
	}
	return slices.Concat(chunks...)[offset-int64(first)*chunkSize:][:size], nil
}

// MaxBodyDelay is how long after [Writer.StoreBody] was called the record may be stored
// that refers to the body. After that the authority may remove the body as garbage.
const MaxBodyDelay = time.Minute

// Body is a body that is stored as a blob.
type Body struct {
	Name   string
	Owner  job.ID // see [job.Blob.Owner]
	Stored time.Time
	Size   uint64 // bytes, estimated from the number of chunks
}

// bodyListTimeout bounds the listing of all bodies, of which there may be some 100,000.
const bodyListTimeout = 10 * time.Second

// Bodies returns the bodies that are stored as blobs, complete or not.
func (a *Admin) Bodies(ctx context.Context) ([]Body, error) {
	var bodies []Body
	chunks, err := a.subjects(ctx, subjects.StreamBlobs, subjects.Blobs+".>")
	if err != nil {
		return nil, err
	}
	seen := make(map[string]int, len(chunks)) // index in bodies
	for subject := range chunks {
		name, owner, at, ok := subjects.ParseBodyBlob(subject)
		if !ok {
			continue
		}
		i, known := seen[name]
		if !known {
			i = len(bodies)
			seen[name] = i
			bodies = append(bodies, Body{Name: name, Owner: owner, Stored: at})
		}
		bodies[i].Size += chunkSize / 2
	}
	return bodies, nil
}

// DeadLetterBodies returns the owners of the bodies that dead letters refer to.
func (a *Admin) DeadLetterBodies(ctx context.Context) (map[job.ID]bool, error) {
	letters, err := a.subjects(ctx, subjects.StreamDLQ, subjects.DeadLetters+".*.*")
	if err != nil {
		return nil, err
	}
	owners := make(map[job.ID]bool, len(letters))
	for subject := range letters {
		if owner, ok := subjects.ParseDLQSubject(subject); ok {
			owners[owner] = true
		}
	}
	return owners, nil
}

// subjects returns the subjects of the messages in a stream that match filter, with the
// number of messages of each.
func (a *Admin) subjects(ctx context.Context, stream, filter string) (map[string]uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, bodyListTimeout)
	defer cancel()
	s, err := a.local.JS.Stream(ctx, stream)
	if err != nil {
		return nil, fmt.Errorf("find stream %s: %w", stream, err)
	}
	if s.CachedInfo().State.Msgs == 0 {
		return nil, nil
	}
	info, err := s.Info(ctx, jetstream.WithSubjectFilter(filter))
	if err != nil {
		return nil, fmt.Errorf("list subjects of stream %s: %w", stream, err)
	}
	return info.State.Subjects, nil
}

// RemoveBody removes a body by its name.
func (a *Admin) RemoveBody(ctx context.Context, name string) error {
	return purge(ctx, a.local.JS, subjects.StreamBlobs, jetstream.WithPurgeSubject(subjects.Blobs+"."+name+".*"))
}
