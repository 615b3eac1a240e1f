package authority

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
)

// verbIndex asks the authority for the index of its last applied entry.
const verbIndex = "ledger_index"

// ReadBarrier waits until the local ledger shows everything that had been committed
// when ReadBarrier was called, which makes the next read linearizable. A node that has
// just started or was partitioned lags behind, so call it before answering that
// something does not exist. A [*job.UnavailableError] means that the authority could
// not be asked within CommandTimeout.
func (c *Client) ReadBarrier(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, CommandTimeout)
	defer cancel()
	for {
		_, changed := c.Raft.Applied()
		index, err := c.authorityIndex(ctx)
		if err == nil {
			err = c.Raft.WaitApplied(ctx, index)
		}
		if err == nil {
			return nil
		}
		if !awaitChange(ctx, changed) {
			return &job.UnavailableError{Reason: "this node cannot confirm that its ledger is current: " + barrierText(err), RetryAfter: time.Second}
		}
	}
}

// awaitChange waits a moment, or until changed is closed: the ledger has changed, and
// perhaps there is another authority. It reports false if ctx has ended.
func awaitChange(ctx context.Context, changed <-chan struct{}) bool {
	select {
	case <-changed:
	case <-time.After(50 * time.Millisecond):
	case <-ctx.Done():
		return false
	}
	return true
}

// barrierText returns err, of a failed ReadBarrier, as a reason for users.
func barrierText(err error) string {
	switch {
	case errors.Is(err, scheduler.ErrNotAuthority):
		return "no authority is known"
	case errors.Is(err, context.DeadlineExceeded):
		return "the authority did not answer in time"
	}
	return err.Error()
}

// authorityIndex returns the index that the authority's ledger has reached. The error is
// scheduler.ErrNotAuthority if no authority is known.
func (c *Client) authorityIndex(ctx context.Context) (uint64, error) {
	owner := ""
	c.Raft.View(func(l *ledger.Ledger) { owner = l.Authority().Owner })
	switch owner {
	case "":
		return 0, scheduler.ErrNotAuthority
	case c.Node:
		return c.localIndex(ctx)
	}
	answer, err := c.Fleet.Request(ctx, owner, verbIndex, nil)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(string(answer), 10, 64)
}

// localIndex returns this node's applied index. It fails unless this node is the
// authority, whose index covers all committed entries.
func (c *Client) localIndex(ctx context.Context) (uint64, error) {
	if _, err := c.Scheduler.Status(ctx); err != nil {
		return 0, err
	}
	index, _ := c.Raft.Applied()
	return index, nil
}

// serveIndex answers authorityIndex of another node.
func (c *Client) serveIndex(ctx context.Context, _ []byte) ([]byte, error) {
	index, err := c.localIndex(ctx)
	if errors.Is(err, scheduler.ErrNotAuthority) {
		return nil, &api.Error{Code: cluster.CodeNotAuthority, Text: err.Error()}
	}
	return strconv.AppendUint(nil, index, 10), err
}

// Find reports whether find returns true for the local ledger. If it returns false, Find
// calls it again after a ReadBarrier, so that the second result is certain.
func (c *Client) Find(ctx context.Context, find func(*ledger.Ledger) bool) (found bool, err error) {
	read := func(l *ledger.Ledger) { found = find(l) }
	c.Raft.View(read)
	if found {
		return true, nil
	}
	if err := c.ReadBarrier(ctx); err != nil {
		return false, err
	}
	c.Raft.View(read)
	return found, nil
}

// Queue returns a queue. The error wraps [job.ErrQueueNotFound] if there is certainly
// none of this name.
func (c *Client) Queue(ctx context.Context, name string) (view ledger.QueueView, err error) {
	exists, err := c.Find(ctx, func(l *ledger.Ledger) (ok bool) {
		view, ok = l.Queue(name)
		return ok
	})
	if err == nil && !exists {
		err = fmt.Errorf("queue %q: %w", name, job.ErrQueueNotFound)
	}
	return view, err
}
