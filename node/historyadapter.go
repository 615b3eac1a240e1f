package node

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/index"
)

// historyAdapter implements [index.History].
type historyAdapter struct{ *streams.Reader }

func (a historyAdapter) LastMessage(ctx context.Context, number uint64) (uint64, error) {
	b, err := a.FindLast(ctx, subjects.StreamEvents, func(b *streams.Batch) bool { return b.First <= number })
	if errors.Is(err, streams.ErrNotStored) {
		return 0, nil
	}
	return b.Seq, err
}

func (a historyAdapter) Messages(ctx context.Context, from uint64, limit int) ([]index.Message, error) {
	batches, err := a.ReadHistory(ctx, from, limit)
	messages := make([]index.Message, len(batches))
	for i, b := range batches {
		messages[i] = index.Message{Seq: b.Seq, First: b.First, Body: b.Body}
	}
	return messages, err
}

func (a historyAdapter) DeadLetters(ctx context.Context, visit func(number uint64, letter *api.DeadLetterMessage) error) error {
	last, err := a.LastDeadLetter(ctx)
	if err != nil {
		return err
	}
	var failure error
	err = a.Reader.DeadLetters(ctx, "", 1, last, func(b streams.Batch) bool {
		var m api.DeadLetterMessage
		if json.Unmarshal(b.Body, &m) == nil { // others are not letters of jobs
			failure = visit(b.First, &m)
		}
		return failure == nil
	})
	return errors.Join(err, failure)
}
