package node

import (
	"context"
	"errors"
	"strconv"
	"time"

	"yardmaster/cluster"
	"yardmaster/job"
	"yardmaster/ledger"
	"yardmaster/scheduler"
)

// verbIndex asks the authority how far its ledger is.
const verbIndex = "index"

// current waits until the local ledger shows all that had been committed when
// it was called. Whoever does not find something asks it before he says that
// there is no such thing: a node that has just started, or has been cut off,
// knows less than the yard. A [*job.UnavailableError] means that nobody could
// tell within commandTime.
func (c *commander) current(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	for {
		_, changed := c.raft.Applied()
		index, err := c.authorityIndex(ctx)
		if err == nil {
			err = c.raft.WaitApplied(ctx, index)
		}
		if err == nil {
			return nil
		}
		select { // until the ledger says something new, perhaps of another authority
		case <-changed:
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return &job.UnavailableError{Reason: "this node cannot tell whether it knows all: " + inTheDark(err), RetryAfter: time.Second}
		}
	}
}

// inTheDark says why a node cannot tell.
func inTheDark(err error) string {
	switch {
	case errors.Is(err, scheduler.ErrNoTenure):
		return "it knows of nobody who holds the authority"
	case errors.Is(err, context.DeadlineExceeded):
		return "the authority did not answer in time"
	}
	return err.Error()
}

// plainly says why somebody was not heard, without the program's own words.
func plainly(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "nothing came in time"
	}
	return err.Error()
}

func (c *commander) authorityIndex(ctx context.Context) (uint64, error) {
	owner := ""
	c.raft.View(func(l *ledger.Ledger) { owner = l.Authority().Owner })
	switch owner {
	case "":
		return 0, scheduler.ErrNoTenure
	case c.node:
		return c.indexHere(ctx)
	}
	answer, err := c.fleet.Request(ctx, owner, verbIndex, nil)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(string(answer), 10, 64)
}

// indexHere is the authority's own word; the tenure makes it the yard's.
func (c *commander) indexHere(ctx context.Context) (uint64, error) {
	if _, err := c.mind.Look(ctx); err != nil {
		return 0, err
	}
	index, _ := c.raft.Applied()
	return index, nil
}

func (c *commander) serveIndex(ctx context.Context, _ []byte) ([]byte, error) {
	index, err := c.indexHere(ctx)
	if errors.Is(err, scheduler.ErrNoTenure) {
		return nil, &cluster.APIError{Code: codeNoTenure, Text: err.Error()}
	}
	return strconv.AppendUint(nil, index, 10), err
}

// queue finds a queue, and says that there is none only if that is sure.
func (c *commander) queue(ctx context.Context, name string) (view ledger.QueueView, ok bool, err error) {
	look := func() { c.raft.View(func(l *ledger.Ledger) { view, ok = l.Queue(name) }) }
	if look(); ok {
		return view, true, nil
	}
	if err := c.current(ctx); err != nil {
		return view, false, err
	}
	look()
	return view, ok, nil
}
