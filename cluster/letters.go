package cluster

import (
	"context"
	"errors"
	"fmt"
)

// How many dead letters, and bytes of them, are read at once.
const (
	lettersAtOnce = 256
	letterBytes   = 1 << 20
)

// removeTries is how often a letter's removal is asked for before it fails.
const removeTries = 3

// LastLetter is the sequence of the newest dead letter there ever was, 0 if
// there was none. Whoever walks through the letters while others are written
// takes it for the end.
func (c *Cluster) LastLetter(ctx context.Context) (uint64, error) {
	info, err := c.streamInfo(ctx, StreamDLQ)
	if err != nil {
		return 0, err
	}
	return info.State.LastSeq, nil
}

// Letters calls yield for each dead letter from a sequence up to another,
// oldest first, of one queue or, with "", of all, until yield returns false.
// Names of queues that differ only in what a subject cannot hold look the same
// here: a letter's body tells them apart. A letter that was removed a moment
// ago may still be seen.
func (c *Cluster) Letters(ctx context.Context, queue string, from, until uint64, yield func(Tale) bool) error {
	subject := subjectDLQ + ".>"
	if queue != "" {
		subject = DLQSubject(queue)
	}
	for from = max(from, 1); from <= until; {
		tales, err := c.readTales(ctx, StreamDLQ, getRequest{Seq: from, NextFor: subject, Batch: lettersAtOnce, MaxBytes: letterBytes})
		if err != nil {
			return err
		}
		if len(tales) == 0 { // a replica's word: its leader knows
			s, err := c.leaderOne(ctx, StreamDLQ, getRequest{Seq: from, NextFor: subject})
			if errors.Is(err, ErrNotStored) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("read %s from %d: %w", StreamDLQ, from, err)
			}
			tales = []Tale{tale(&s)}
		}
		for _, t := range tales {
			if t.Seq > until || !yield(t) {
				return nil
			}
			from = t.Seq + 1
		}
	}
	return nil
}

// Letter reads one dead letter; [ErrNotStored] says that there is none.
func (c *Cluster) Letter(ctx context.Context, seq uint64) (Tale, error) {
	t, err := c.ReadTale(ctx, StreamDLQ, seq)
	if err != nil {
		return Tale{}, fmt.Errorf("dead letter %d: %w", seq, err)
	}
	return t, nil
}

// RemoveLetter removes one dead letter. One that is not there is no error:
// somebody else may have been faster.
func (c *Cluster) RemoveLetter(ctx context.Context, seq uint64) error {
	stream, err := c.js.Stream(ctx, StreamDLQ)
	if err != nil {
		return fmt.Errorf("find stream %s: %w", StreamDLQ, err)
	}
	for range removeTries {
		if err = stream.DeleteMsg(ctx, seq); err == nil {
			return nil
		}
		if _, there := c.leaderOne(ctx, StreamDLQ, getRequest{Seq: seq}); errors.Is(there, ErrNotStored) {
			return nil
		}
		if pause(ctx, replicaAnswer); ctx.Err() != nil {
			break
		}
	}
	return fmt.Errorf("remove dead letter %d: %w", seq, err)
}

// LoadRecordBody gives the body that a record's bytes stand for: their own, or
// the blob's they point to. [ErrNotStored]: the blob has been reclaimed.
func (c *Cluster) LoadRecordBody(ctx context.Context, record []byte) ([]byte, error) {
	return c.resolve(ctx, record)
}
