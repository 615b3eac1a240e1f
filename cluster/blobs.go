package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"yardmaster/job"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
)

const (
	chunkSize     = 512 << 10
	chunksAtOnce  = 8
	chunkAnswer   = 2 * time.Second
	blobPatience  = 15 * time.Second // of a context without a deadline
	maxBlobChunks = job.MaxBody/chunkSize + 1
)

// CorruptBlobError: a blob was read, but it is not what its reference says.
type CorruptBlobError struct{ Name, Reason string }

func (e *CorruptBlobError) Error() string { return "blob " + e.Name + ": " + e.Reason }

// StoreBlob stores bytes that are too large for a record, under the caller's
// id and their own checksum: other bytes under the same id overwrite nothing.
// Nothing points to it until the reference is stored somewhere; what nobody
// points to goes with its hour, see [Cluster.PurgeBlobs].
func (c *Cluster) StoreBlob(ctx context.Context, id string, data []byte) (job.Blob, error) {
	if len(data) == 0 || len(data) > job.MaxBody {
		return job.Blob{}, fmt.Errorf("blob of %d bytes; must have 1 to %d: %w", len(data), job.MaxBody, job.ErrTooLarge)
	}
	sum := sha256.Sum256(data)
	blob := job.Blob{
		Name: blobName(id+"-"+hex.EncodeToString(sum[:6]), time.Now()), Chunks: (len(data) + chunkSize - 1) / chunkSize,
		Size: int64(len(data)), SHA256: hex.EncodeToString(sum[:]),
	}
	ctx, cancel := c.patience(ctx, blobPatience)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(chunksAtOnce)
	for i := range blob.Chunks {
		chunk := data[i*chunkSize : min((i+1)*chunkSize, len(data))]
		g.Go(func() error { return c.storeChunk(ctx, blobSubject(blob.Name, i), chunk) })
	}
	if err := g.Wait(); err != nil {
		return job.Blob{}, fmt.Errorf("store blob %s: %w", blob.Name, err)
	}
	return blob, nil
}

func (c *Cluster) patience(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, limited := ctx.Deadline(); limited {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}

// storeChunk repeats until it is acknowledged: a chunk stored twice is the
// same chunk, and readers take the last.
func (c *Cluster) storeChunk(ctx context.Context, subject string, chunk []byte) error {
	for {
		m, err := c.ingest.ask(ctx, &nats.Msg{Subject: subject, Data: chunk}, chunkAnswer)
		if err == nil {
			_, err = parsePubAck(m.Data)
			if err == nil {
				return nil
			}
			if refusal, ok := err.(*apiError); ok && refusal.kind() == refusalLater {
				return &job.UnavailableError{Reason: refusal.Description, RetryAfter: refusal.delay()}
			}
		}
		pause(ctx, tickEvery)
		if ctx.Err() != nil {
			return &job.UnavailableError{Reason: "blobs are not stored: " + err.Error(), RetryAfter: time.Second}
		}
	}
}

// LoadBlob reads a blob and verifies its size and sum. What does not match is
// a [*CorruptBlobError]; a chunk that is gone is [ErrNotStored].
func (c *Cluster) LoadBlob(ctx context.Context, blob job.Blob) ([]byte, error) {
	if blob.Chunks < 1 || blob.Chunks > maxBlobChunks || blob.Size < 1 || blob.Size > job.MaxBody {
		return nil, &CorruptBlobError{blob.Name, "its reference is out of range"}
	}
	ctx, cancel := c.patience(ctx, blobPatience)
	defer cancel()
	chunks := make([][]byte, blob.Chunks)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(chunksAtOnce)
	for i := range chunks {
		g.Go(func() error {
			s, err := c.load(ctx, StreamBlobs, getRequest{LastFor: blobSubject(blob.Name, i)})
			chunks[i] = s.data
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("load blob %s: %w", blob.Name, err)
	}
	data := make([]byte, 0, blob.Size)
	for _, chunk := range chunks {
		data = append(data, chunk...)
	}
	if int64(len(data)) != blob.Size {
		return nil, &CorruptBlobError{blob.Name, fmt.Sprintf("has %d bytes, its reference says %d", len(data), blob.Size)}
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != blob.SHA256 {
		return nil, &CorruptBlobError{blob.Name, "its bytes do not match their sum"}
	}
	return data, nil
}

// PurgeBlobs frees the blobs of all hours before the one that a time lies in,
// by the names they got when they were stored. It goes from the stream's
// beginning to the first blob that is to stay.
func (c *Cluster) PurgeBlobs(ctx context.Context, before time.Time) error {
	stays := BlobHour(before)
	for last := ""; ; {
		first, err := c.leaderOne(ctx, StreamBlobs, getRequest{NextFor: subjectBlob + ".>"})
		if errors.Is(err, ErrNotStored) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("find the oldest blob: %w", err)
		}
		hour, _, _ := strings.Cut(strings.TrimPrefix(first.subject, subjectBlob+"."), ".")
		if hour >= stays {
			return nil
		}
		if hour == last {
			return fmt.Errorf("blobs of hour %s are still there after their purge", hour)
		}
		if err := c.purge(ctx, StreamBlobs, jetstream.WithPurgeSubject(subjectBlob+"."+hour+".>")); err != nil {
			return err
		}
		last = hour
	}
}
