package streams

import (
	"context"
	"errors"
	"fmt"

	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
)

// Limits of one read of dead letters.
const (
	deadLetterBatch      = 256 // messages
	deadLetterBatchBytes = 1 << 20
)

// removeAttempts is how often the removal of a dead letter is attempted.
const removeAttempts = 3

// LastDeadLetter returns the sequence of the newest dead letter ever written, 0 if
// there was none. A caller of [Reader.DeadLetters] stops there, while more are written.
func (r *Reader) LastDeadLetter(ctx context.Context) (uint64, error) {
	return r.lastSeq(ctx, subjects.StreamDLQ)
}

// DeadLetters calls yield for each dead letter of a queue with a sequence from from to
// until, oldest first, until yield returns false. The queue "" means all queues.
// Queues whose names differ only in characters that a subject cannot contain share a
// subject, so yield may get dead letters of another queue; the body of a dead letter
// names its queue. A dead letter that was just removed may still appear.
func (r *Reader) DeadLetters(ctx context.Context, queue string, from, until uint64, yield func(Batch) bool) error {
	subject := subjects.DeadLetters + ".>"
	if queue != "" {
		subject = subjects.DLQSubject(queue)
	}
	for from = max(from, 1); from <= until; {
		batches, err := r.readBatches(ctx, subjects.StreamDLQ, getRequest{
			Seq: from, NextFor: subject, Batch: deadLetterBatch, MaxBytes: deadLetterBatchBytes,
		})
		if err != nil {
			return err
		}
		if len(batches) == 0 { // a replica may lack the newest ones: ask the leader
			s, err := r.getFromLeader(ctx, subjects.StreamDLQ, getRequest{Seq: from, NextFor: subject})
			if errors.Is(err, ErrNotStored) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("read %s from %d: %w", subjects.StreamDLQ, from, err)
			}
			batches = []Batch{toBatch(&s)}
		}
		for _, b := range batches {
			if b.Seq > until || !yield(b) {
				return nil
			}
			from = b.Seq + 1
		}
	}
	return nil
}

// DeadLetter reads one dead letter; it returns [ErrNotStored] if it does not
// exist.
func (r *Reader) DeadLetter(ctx context.Context, seq uint64) (Batch, error) {
	b, err := r.ReadBatch(ctx, subjects.StreamDLQ, seq)
	if err != nil {
		return Batch{}, fmt.Errorf("dead letter %d: %w", seq, err)
	}
	return b, nil
}

// RemoveDeadLetter removes one dead letter. It succeeds if the dead letter does
// not exist, for example because another caller has removed it.
func (a *Admin) RemoveDeadLetter(ctx context.Context, seq uint64) error {
	stream, err := a.local.JS.Stream(ctx, subjects.StreamDLQ)
	if err != nil {
		return fmt.Errorf("find stream %s: %w", subjects.StreamDLQ, err)
	}
	for range removeAttempts {
		if err = stream.DeleteMsg(ctx, seq); err == nil {
			return nil
		}
		if _, readErr := a.reader.getFromLeader(ctx, subjects.StreamDLQ, getRequest{Seq: seq}); errors.Is(readErr, ErrNotStored) {
			return nil
		}
		if backoff.Sleep(ctx, replicaTimeout) != nil {
			break
		}
	}
	return fmt.Errorf("remove dead letter %d: %w", seq, err)
}
