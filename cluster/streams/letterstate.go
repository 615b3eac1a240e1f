package streams

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
)

// LetterState describes the stored dead letters: they have the sequences from First to Last, except the
// sequences of removed letters.
type LetterState struct {
	First, Last uint64 // First is Last+1 if there are none
	Letters     uint64
	Gaps        int      // sequences between First and Last without a letter
	Removed     []uint64 // the sequences that Gaps counts, if the caller asked for them
}

// NewLetterState describes a stream that stores the given letters, in the order of their sequences, all
// from first to last.
func NewLetterState(first, last uint64, letters []Batch) LetterState {
	state := LetterState{First: first, Last: last, Letters: uint64(len(letters))}
	next := first
	for _, b := range letters {
		for ; next < b.Seq; next++ {
			state.Removed = append(state.Removed, next)
		}
		next++
	}
	for ; next <= last; next++ {
		state.Removed = append(state.Removed, next)
	}
	state.Gaps = len(state.Removed)
	return state
}

// LetterState asks the stream's leader which dead letters are stored. If removed is set, it also asks for the
// sequences of removed letters.
func (r *Reader) LetterState(ctx context.Context, removed bool) (LetterState, error) {
	ctx, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	stream, err := r.local.JS.Stream(ctx, subjects.StreamDLQ)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return LetterState{}, fmt.Errorf("%s: %w", subjects.StreamDLQ, ErrStreamMissing)
	}
	var info *jetstream.StreamInfo
	if err == nil {
		info = stream.CachedInfo()
		if removed && info.State.NumDeleted > 0 {
			info, err = stream.Info(ctx, jetstream.WithDeletedDetails(true))
		}
	}
	if err != nil || info.Cluster != nil && info.Cluster.Leader == "" {
		return LetterState{}, fmt.Errorf("%s: %w", subjects.StreamDLQ, ErrNoLeader)
	}
	s := &info.State
	return LetterState{First: s.FirstSeq, Last: s.LastSeq, Letters: s.Msgs, Gaps: s.NumDeleted, Removed: s.Deleted}, nil
}
