package streams

import (
	"context"
	"errors"
	"fmt"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
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
	from = max(from, 1)
	cursors := []letterCursor{{subject: subjects.DeadLetters + ".>", next: from}}
	if queue != "" {
		letters := subjects.DLQSubject(queue)
		cursors = []letterCursor{{subject: letters, next: from}, {subject: letters + ".*", next: from}}
	}
	for {
		var oldest *letterCursor
		for i := range cursors {
			c := &cursors[i]
			if err := c.fill(ctx, r, until); err != nil {
				return err
			}
			if len(c.letters) > 0 && (oldest == nil || c.letters[0].Seq < oldest.letters[0].Seq) {
				oldest = c
			}
		}
		if oldest == nil || !yield(oldest.letters[0]) {
			return nil
		}
		oldest.letters = oldest.letters[1:]
	}
}

// letterCursor reads the dead letters of one subject, which may have wildcards.
type letterCursor struct {
	subject string
	next    uint64  // sequence from which the next read begins
	letters []Batch // read and not yielded yet
}

// fill reads the next letters if there are none, with sequences of at most until.
func (c *letterCursor) fill(ctx context.Context, r *Reader, until uint64) error {
	if len(c.letters) > 0 || c.next > until {
		return nil
	}
	batches, err := r.readBatches(ctx, subjects.StreamDLQ, getRequest{
		Seq: c.next, NextFor: c.subject, Batch: deadLetterBatch, MaxBytes: deadLetterBatchBytes,
	})
	if err != nil {
		return err
	}
	if len(batches) == 0 { // a replica may lack the newest ones: ask the leader
		s, err := r.getFromLeader(ctx, subjects.StreamDLQ, getRequest{Seq: c.next, NextFor: c.subject})
		if errors.Is(err, ErrNotStored) {
			c.next = until + 1
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s from %d: %w", subjects.StreamDLQ, c.next, err)
		}
		batches = []Batch{toBatch(&s)}
	}
	c.next = batches[len(batches)-1].Seq + 1
	for i := range batches {
		if batches[i].Seq > until {
			batches, c.next = batches[:i], until+1
			break
		}
	}
	c.letters = batches
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

// NumberedDeadLetter returns the dead letter with this number of the ledger. Each dead
// letter is one message and some were removed, so it searches the stream by bisection,
// beginning where the letter is unless the stream was restored. It returns
// [ErrNotStored] if the dead letter does not exist.
func (r *Reader) NumberedDeadLetter(ctx context.Context, number uint64) (Batch, error) {
	low, high := uint64(1), uint64(0)
	for guess := number; ; {
		s, err := r.getFromLeader(ctx, subjects.StreamDLQ, getRequest{Seq: guess, NextFor: subjects.DeadLetters + ".>"})
		b := Batch{First: ^uint64(0)} // after the last dead letter
		switch {
		case err == nil:
			b = toBatch(&s)
		case !errors.Is(err, ErrNotStored):
			return Batch{}, fmt.Errorf("dead letter number %d: %w", number, err)
		}
		if b.First == number {
			return b, nil
		}
		if high == 0 {
			if high, err = r.LastDeadLetter(ctx); err != nil {
				return Batch{}, err
			}
		}
		if b.First > number {
			high = guess - 1
		} else {
			low = b.Seq + 1
		}
		if low > high {
			return Batch{}, fmt.Errorf("dead letter number %d: %w", number, ErrNotStored)
		}
		guess = low + (high-low)/2
	}
}

// RemoveDeadLetter removes one dead letter. It succeeds if the dead letter does
// not exist, for example because another caller has removed it.
func (a *Admin) RemoveDeadLetter(ctx context.Context, seq uint64) error {
	request := fmt.Appendf(nil, `{"seq":%d,"no_erase":true}`, seq)
	var err error
	for range removeAttempts {
		var reply struct{ embedded.APIReply }
		if err = a.local.Reads.RequestAPI(ctx, subjects.APIMsgDelete+subjects.StreamDLQ, request, leaderTimeout, &reply); err == nil {
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
