package node

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
)

// verbIndex asks the authority for the index of its last applied entry.
const verbIndex = "ledger_index"

// readBarrier waits until the local ledger shows everything that had been committed
// when readBarrier was called, which makes the next read linearizable. A node that has
// just started or was partitioned lags behind, so call it before answering that
// something does not exist. A [*job.UnavailableError] means that the authority could
// not be asked within commandTimeout.
func (p *proposer) readBarrier(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	for {
		_, changed := p.raft.Applied()
		index, err := p.authorityIndex(ctx)
		if err == nil {
			err = p.raft.WaitApplied(ctx, index)
		}
		if err == nil {
			return nil
		}
		select { // wait for a change of the ledger, perhaps of the authority
		case <-changed:
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return &job.UnavailableError{Reason: "this node cannot confirm that its ledger is current: " + barrierErrorText(err), RetryAfter: time.Second}
		}
	}
}

// barrierErrorText returns the reason why the authority's index is not known.
func barrierErrorText(err error) string {
	switch {
	case errors.Is(err, scheduler.ErrNotAuthority):
		return "no authority is known"
	case errors.Is(err, context.DeadlineExceeded):
		return "the authority did not answer in time"
	}
	return err.Error()
}

// errorText returns err for a user, with a deadline in plain words.
func errorText(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer in time"
	}
	return err.Error()
}

// authorityIndex returns the index that the authority's ledger has reached.
func (p *proposer) authorityIndex(ctx context.Context) (uint64, error) {
	owner := ""
	p.raft.View(func(l *ledger.Ledger) { owner = l.Authority().Owner })
	switch owner {
	case "":
		return 0, scheduler.ErrNotAuthority
	case p.node:
		return p.localIndex(ctx)
	}
	answer, err := p.fleet.Request(ctx, owner, verbIndex, nil)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(string(answer), 10, 64)
}

// localIndex returns this node's applied index. It fails unless this node is the
// authority, whose index covers all committed entries.
func (p *proposer) localIndex(ctx context.Context) (uint64, error) {
	if _, err := p.scheduler.Status(ctx); err != nil {
		return 0, err
	}
	index, _ := p.raft.Applied()
	return index, nil
}

func (p *proposer) serveIndex(ctx context.Context, _ []byte) ([]byte, error) {
	index, err := p.localIndex(ctx)
	if errors.Is(err, scheduler.ErrNotAuthority) {
		return nil, &cluster.APIError{Code: codeNoTenure, Text: err.Error()}
	}
	return strconv.AppendUint(nil, index, 10), err
}

// queue returns a queue. It reports ok false only after a readBarrier.
func (p *proposer) queue(ctx context.Context, name string) (view ledger.QueueView, ok bool, err error) {
	read := func() { p.raft.View(func(l *ledger.Ledger) { view, ok = l.Queue(name) }) }
	if read(); ok {
		return view, true, nil
	}
	if err := p.readBarrier(ctx); err != nil {
		return view, false, err
	}
	read()
	return view, ok, nil
}
