package client

import (
	"context"
	"iter"
	"strconv"

	"github.com/yardmaster-dev/yardmaster/api"
)

// DeadLetters shows, requeues and removes dead letters: jobs that have failed for good.
type DeadLetters struct{ c *Client }

// DeadLetters returns the operations on dead letters.
func (c *Client) DeadLetters() DeadLetters { return DeadLetters{c} }

// List returns the selected dead letters without their records, newest first by default. It
// reads one page after the other; Limit is the size of a page.
func (d DeadLetters) List(ctx context.Context, request api.DeadLetterRequest) iter.Seq2[api.DeadLetter, error] {
	return pages(func(after string) ([]api.DeadLetter, string, error) {
		if after != "" {
			request.From, _ = strconv.ParseUint(after, 10, 64)
		}
		page, err := operate[api.DeadLetterPage](ctx, d.c, "dlq.list", request)
		request.Until = page.Until
		return page.Letters, nextLetter(page.Continuation), err
	})
}

// nextLetter returns the cursor of the page after one that ends with c.
func nextLetter(c api.Continuation) string {
	if c.Next == 0 {
		return ""
	}
	return strconv.FormatUint(c.Next, 10)
}

// Get returns a dead letter with its record.
func (d DeadLetters) Get(ctx context.Context, number uint64) (api.DeadLetter, error) {
	return operate[api.DeadLetter](ctx, d.c, "dlq.show", api.DeadLetterRequest{Letters: []uint64{number}})
}

// Stats counts dead letters. Large numbers come in parts: continue with the reply's
// Continuation and add up.
func (d DeadLetters) Stats(ctx context.Context, request api.DeadLetterRequest) (api.DeadLetterStats, error) {
	return operate[api.DeadLetterStats](ctx, d.c, "dlq.stats", request)
}

// Requeue runs the jobs of dead letters again. Large numbers come in parts: continue with the
// reply's Continuation.
func (d DeadLetters) Requeue(ctx context.Context, request api.DeadLetterRequest) (api.DeadLetterResults, error) {
	return operate[api.DeadLetterResults](ctx, d.c, "dlq.requeue", request)
}

// Remove removes dead letters, as Requeue.
func (d DeadLetters) Remove(ctx context.Context, request api.DeadLetterRequest) (api.DeadLetterResults, error) {
	return operate[api.DeadLetterResults](ctx, d.c, "dlq.remove", request)
}
