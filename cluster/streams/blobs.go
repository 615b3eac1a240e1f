package streams

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
)

// Limits of blobs, which hold bodies and results that are too large for a record.
const (
	chunkSize           = 512 << 10 // bytes
	maxConcurrentChunks = 8
	chunkTimeout        = 2 * time.Second
	chunkRetryDelay     = 100 * time.Millisecond
	blobTimeout         = 15 * time.Second // if the context has no deadline
	maxBlobChunks       = job.MaxBody/chunkSize + 1
)

// CorruptBlobError means that a blob was read but does not match its reference.
type CorruptBlobError struct{ Name, Reason string }

func (e *CorruptBlobError) Error() string { return "blob " + e.Name + ": " + e.Reason }

// StoreBlob stores data that is too large for a record and returns the reference to it.
// The blob's name contains id and a checksum of data, so that different data under the
// same id overwrites nothing. The blob is garbage until a record with the reference is
// stored; [Admin.PurgeBlobs] removes it with all blobs of its hour.
func (w *Writer) StoreBlob(ctx context.Context, id string, data []byte) (job.Blob, error) {
	if len(data) == 0 || len(data) > job.MaxBody {
		return job.Blob{}, fmt.Errorf("blob of %d bytes; must have 1 to %d: %w", len(data), job.MaxBody, job.ErrTooLarge)
	}
	sum := sha256.Sum256(data)
	blob := job.Blob{
		Name: subjects.BlobName(id+"-"+hex.EncodeToString(sum[:6]), time.Now()), Chunks: (len(data) + chunkSize - 1) / chunkSize,
		Size: int64(len(data)), SHA256: hex.EncodeToString(sum[:]),
	}
	ctx, cancel := withTimeout(ctx, blobTimeout)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(maxConcurrentChunks)
	for i := range blob.Chunks {
		chunk := data[i*chunkSize : min((i+1)*chunkSize, len(data))]
		g.Go(func() error { return w.storeChunk(ctx, subjects.BlobSubject(blob.Name, i), chunk) })
	}
	if err := g.Wait(); err != nil {
		return job.Blob{}, fmt.Errorf("store blob %s: %w", blob.Name, err)
	}
	return blob, nil
}

// withTimeout returns ctx with a timeout of d if it has no deadline.
func withTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, limited := ctx.Deadline(); limited {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}

// storeChunk stores one chunk and retries until it is acknowledged or ctx ends. A
// chunk that was stored twice does no harm: readers take the last one.
func (w *Writer) storeChunk(ctx context.Context, subject string, chunk []byte) error {
	for {
		m, err := w.local.Ingest.Request(ctx, &nats.Msg{Subject: subject, Data: chunk}, chunkTimeout)
		if err == nil {
			_, err = embedded.ParsePubAck(m.Data)
		}
		if err == nil {
			return nil
		}
		if apiErr, ok := errors.AsType[*embedded.APIError](err); ok && apiErr.Class() == embedded.ClassRetry {
			return apiErr.Unavailable()
		}
		_ = backoff.Sleep(ctx, chunkRetryDelay)
		if ctx.Err() != nil {
			return &job.UnavailableError{Reason: "blob chunk was not stored: " + err.Error(), RetryAfter: time.Second}
		}
	}
}

// LoadBlob reads a blob and verifies its size and checksum. It returns a
// [*CorruptBlobError] if they do not match, and [ErrNotStored] if a chunk is gone.
func (r *Reader) LoadBlob(ctx context.Context, blob job.Blob) ([]byte, error) {
	if blob.Chunks < 1 || blob.Chunks > maxBlobChunks || blob.Size < 1 || blob.Size > job.MaxBody {
		return nil, &CorruptBlobError{blob.Name, "size or number of chunks in its reference is out of range"}
	}
	ctx, cancel := withTimeout(ctx, blobTimeout)
	defer cancel()
	chunks := make([][]byte, blob.Chunks)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(maxConcurrentChunks)
	for i := range chunks {
		g.Go(func() error {
			s, err := r.load(ctx, subjects.StreamBlobs, getRequest{LastFor: subjects.BlobSubject(blob.Name, i)})
			chunks[i] = s.data
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("load blob %s: %w", blob.Name, err)
	}
	data := slices.Concat(chunks...)
	if int64(len(data)) != blob.Size {
		return nil, &CorruptBlobError{blob.Name, fmt.Sprintf("has %d bytes, its reference says %d", len(data), blob.Size)}
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != blob.SHA256 {
		return nil, &CorruptBlobError{blob.Name, "its content does not match its checksum"}
	}
	return data, nil
}

// PurgeBlobs removes the blobs of all hours before the one that before belongs to; a
// blob's name contains its hour. It proceeds hour by hour from the beginning of the
// stream to the first blob that is to be kept.
func (a *Admin) PurgeBlobs(ctx context.Context, before time.Time) error {
	keepFrom := subjects.BlobHour(before)
	for purged := ""; ; {
		first, err := a.reader.getFromLeader(ctx, subjects.StreamBlobs, getRequest{NextFor: subjects.Blobs + ".>"})
		if errors.Is(err, ErrNotStored) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("find the oldest blob: %w", err)
		}
		hour, _, _ := strings.Cut(strings.TrimPrefix(first.subject, subjects.Blobs+"."), ".")
		if hour >= keepFrom {
			return nil
		}
		if hour == purged {
			return fmt.Errorf("blobs of hour %s are still there after their purge", hour)
		}
		if err := a.purge(ctx, subjects.StreamBlobs, jetstream.WithPurgeSubject(subjects.Blobs+"."+hour+".>")); err != nil {
			return err
		}
		purged = hour
	}
}
