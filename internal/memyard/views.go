package memyard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
	"github.com/yardmaster-dev/yardmaster/scheduler/outbox"
)

// storeTime is how long a message of the scheduler takes to be stored.
const storeTime = time.Millisecond

// lanesView implements scheduler.Lanes.
type lanesView struct{ *Member }

// Ensure implements scheduler.Lanes.
func (v lanesView) Ensure(_ context.Context, identities []string, _ uint8) error {
	s := v.yard.Streams
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, identity := range identities {
		s.lanes[i].identity = identity
	}
	return nil
}

// Info implements scheduler.Lanes.
func (v lanesView) Info(_ context.Context, number uint8) (scheduler.LaneInfo, error) {
	s := v.yard.Streams
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.stream(number)
	return scheduler.LaneInfo{Identity: l.identity, First: l.first, Last: l.end(), Bytes: l.bytes, MaxBytes: l.max}, nil
}

// Read implements scheduler.Lanes.
func (v lanesView) Read(ctx context.Context, number uint8, from uint64, limit int) ([]job.Record, error) {
	return Reader{v.yard.Streams}.Read(ctx, number, from, limit)
}

// Read returns up to limit records of a lane, from a sequence on.
func (r Reader) Read(_ context.Context, number uint8, from uint64, limit int) ([]job.Record, error) {
	s := r.Streams
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.stream(number)
	switch {
	case from < l.first:
		return nil, scheduler.ErrRecordGone
	case from > l.end():
		return nil, nil
	}
	records := l.records[from-l.first:]
	return slices.Clone(records[:min(limit, len(records))]), nil
}

// Tail implements scheduler.Lanes. Records come by [Member.Notify] or are read.
func (v lanesView) Tail(ctx context.Context, _ func(job.Record)) error {
	<-ctx.Done()
	return nil
}

// AttemptError implements scheduler.Lanes.
func (v lanesView) AttemptError(ctx context.Context, id job.ID, n uint32) (*job.AttemptError, error) {
	return v.yard.Streams.AttemptError(ctx, id, n)
}

// Load implements scheduler.Lanes.
func (v lanesView) Load(_ context.Context, pos job.Position, id job.ID) ([]byte, error) {
	body, err := v.yard.Streams.loadBody(pos, id)
	if errors.Is(err, streams.ErrNotStored) {
		err = fmt.Errorf("lane %d at %d: %w", pos.Lane, pos.Seq, scheduler.ErrRecordGone)
	}
	return body, err
}

// Publish implements scheduler.Lanes.
func (v lanesView) Publish(queue, key string, _ time.Time, body []byte, done func(error)) {
	v.loops.Go(func() {
		time.Sleep(storeTime)
		_, err := v.yard.Streams.Publish(queue, key, body)
		done(err)
	})
}

// Relocate implements scheduler.Lanes.
func (v lanesView) Relocate(_ context.Context, number uint8, _, space uint64, records []ledger.NeededRecord) (seqs []uint64, size uint64, err error) {
	return v.yard.Streams.relocate(number, space, records)
}

// Purge implements scheduler.Lanes.
func (v lanesView) Purge(_ context.Context, number uint8, below uint64) error {
	v.yard.Streams.purge(number, below)
	return nil
}

// Bodies implements scheduler.Lanes.
func (v lanesView) Bodies(context.Context) (stored []scheduler.StoredBody, _ error) {
	s := v.yard.Streams
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.bodies)) {
		stored = append(stored, s.bodies[name].StoredBody)
	}
	return stored, nil
}

// DeadLetterBodies implements scheduler.Lanes.
func (v lanesView) DeadLetterBodies(context.Context) (map[job.ID]bool, error) {
	s := v.yard.Streams
	s.mu.Lock()
	defer s.mu.Unlock()
	oldest := time.Now().Add(-deadLetterAge)
	s.letters = slices.DeleteFunc(s.letters, func(d deadLetter) bool { return d.at.Before(oldest) })
	owners := map[job.ID]bool{}
	for _, d := range s.letters {
		owners[d.owner] = true
	}
	return owners, nil
}

// RemoveBody implements scheduler.Lanes.
func (v lanesView) RemoveBody(_ context.Context, name string) error {
	v.yard.Streams.RemoveBody(name)
	return nil
}

// Served implements scheduler.Lanes.
func (v lanesView) Served(context.Context, uint8) bool { return true }

// BodySpace implements scheduler.Lanes. There is always space.
func (v lanesView) BodySpace(context.Context) (used, limit uint64, err error) { return 0, 0, nil }

// RemoveDeadLettersOf implements scheduler.Lanes.
func (v lanesView) RemoveDeadLettersOf(context.Context, job.ID) error { return nil }

// ApplyRetention implements scheduler.Lanes.
func (v lanesView) ApplyRetention(context.Context, job.Retention) error { return nil }

// EvictDeadLetters implements scheduler.Lanes.
func (v lanesView) EvictDeadLetters(context.Context, string, time.Time, int64) error { return nil }

// historyView implements outbox.Streams.
type historyView struct{ *Member }

// LastPublished implements outbox.Streams.
func (v historyView) LastPublished(_ context.Context, which outbox.Stream) (seq, number uint64, err error) {
	s := v.yard.Streams
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.history[which]
	return h.seq, h.number, nil
}

var errWrongLast = errors.New("the stream ends elsewhere")

// Append implements outbox.Streams.
func (v historyView) Append(which outbox.Stream, b outbox.Batch, expect uint64, done func(uint64, error)) {
	s := v.yard.Streams
	h := &s.history[which]
	s.mu.Lock()
	at := time.Now().Add(storeTime)
	if !at.After(h.busyUntil) { // appends keep their order
		at = h.busyUntil.Add(time.Microsecond)
	}
	h.busyUntil = at
	s.mu.Unlock()
	v.loops.Go(func() {
		time.Sleep(time.Until(at))
		done(s.appendMessage(which, b, expect))
	})
}

// appendMessage stores a batch, if the stream ends with the sequence expect.
func (s *Streams) appendMessage(which outbox.Stream, b outbox.Batch, expect uint64) (seq uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := &s.history[which]
	if expect != h.seq || b.First != h.number+1 {
		return 0, errWrongLast
	}
	h.seq, h.number = h.seq+1, h.number+b.Count
	if which == outbox.DeadLetters && !b.BlobOwner.IsZero() {
		s.letters = append(s.letters, deadLetter{time.Now(), b.BlobOwner})
	}
	if s.keep {
		h.messages = append(h.messages, streams.Batch{
			Subject: b.Queue, ID: b.ID, First: b.First, Count: b.Count, Header: b.Header, Body: b.Body, Seq: h.seq, Stored: time.Now(),
		})
	}
	return h.seq, nil
}

// HasSubscribers implements outbox.Streams.
func (historyView) HasSubscribers(string, string) bool { return false }

// PublishLive implements outbox.Streams.
func (historyView) PublishLive(string, string, []byte) {}
