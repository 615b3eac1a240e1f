package streams

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
)

// blobSpace reserves the space of blobs before they are stored, so that a body for which
// there is no space is refused before any of it is written. Several nodes may store at
// the same time; what they reserve together beyond the stream's bound, the stream
// refuses.
type blobSpace struct {
	store BlobStore

	mu       crash.Mutex
	used     int64     // bytes in the stream at readAt
	max      int64     // the stream's bound; 0: unknown, or none
	readAt   time.Time // zero: not read yet
	reserved int64     // bytes of the blobs that are being stored
	added    int64     // bytes of the blobs that were stored since readAt
}

// Parameters of blobSpace.
const (
	spaceMaxAge    = time.Second
	spaceFullDelay = 2 * time.Second // after which a client should try again
)

// reserve reserves size bytes until the caller calls release. It returns the error of
// [Writer.StoreBody] if they are not available. If the stream's leader does not answer,
// it relies on the stream to refuse what is too much.
func (s *blobSpace) reserve(ctx context.Context, js jetstream.JetStream, size int64) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.readAt.IsZero() || time.Since(s.readAt) > spaceMaxAge {
		if info, err := Info(ctx, js, s.store.stream); err == nil {
			s.used, s.max = int64(info.State.Bytes), max(info.Config.MaxBytes, 0)
			s.added, s.readAt = 0, time.Now()
		}
	}
	switch {
	case s.max == 0:
	case size > s.max:
		return nil, fmt.Errorf("%d bytes, more than the whole stream %s can hold, %d: raise nats.max_store_bytes on every member and restart them: %w", size, s.store.stream, s.max, job.ErrTooLarge)
	case s.store == BodyBlobs && s.used+s.added+s.reserved+size > s.max:
		return nil, s.fullErrorLocked(size)
	}
	s.reserved += size
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.reserved -= size
		s.added += size
	}, nil
}

// fullError returns the error for a blob for which the stream has no space.
func (s *blobSpace) fullError(size int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fullErrorLocked(size)
}

func (s *blobSpace) fullErrorLocked(size int64) error {
	reason := fmt.Sprintf("no space for %d bytes: stream %s holds %d of at most %d", size, s.store.stream, s.used+s.added, s.max)
	if s.store.stream == subjects.StreamBlobs {
		reason += " for jobs that have not ended, for dead letters, and for some minutes for jobs that were refused or replaced; space is freed as jobs end or are cancelled, and is more once nats.max_store_bytes is raised"
	}
	return &job.UnavailableError{Reason: reason, RetryAfter: spaceFullDelay}
}
