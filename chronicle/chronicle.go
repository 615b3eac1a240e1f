package chronicle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/timeline"
)

// Interval is the time between two bases.
const Interval = 30 * time.Second

// Limits of reading and waiting.
const (
	batchesPerRead = 64
	publishTimeout = 20 * time.Second // for events to be published
	publishRetry   = 100 * time.Millisecond
	readTimeout    = 2 * time.Second // for the events that the ledger has, which a replica of the stream may lack
	readRetry      = 10 * time.Millisecond
)

// headerLineage is the header of a base with the ledger's fence base, which a restore changes:
// bases from before a restore are of another history.
const headerLineage = "Yard-Lineage"

// Config is what a [Chronicle] depends on.
type Config struct {
	View        func(func(*ledger.Ledger)) // reads the local ledger
	Copy        func() *ledger.Ledger      // copies it
	IsAuthority func() bool
	Interval    time.Duration // between two bases; 0: [Interval]

	Reader interface {
		LastPublished(ctx context.Context, stream string) (seq, number uint64, err error)
		FindLast(ctx context.Context, stream string, accept func(*streams.Batch) bool) (streams.Batch, error)
		FirstBatch(ctx context.Context, stream string) (streams.Batch, error)
		ReadBatch(ctx context.Context, stream string, seq uint64) (streams.Batch, error)
		ReadHistory(ctx context.Context, from uint64, limit int) ([]streams.Batch, error)
	}
	Append func(stream string, b streams.Batch, expectLast uint64, done func(seq uint64, err error))
}

// Chronicle stores bases while this node is the authority, and rebuilds states.
type Chronicle struct {
	cfg     Config
	log     *slog.Logger
	state   *timeline.State // as of the last base; nil: to be read. Only Run uses it
	lineage uint64          // fence base of the ledger to which state belongs

	mu          crash.Mutex
	finding     string // for readiness; "": the ledger is as its history says
	differences int
	checked     uint64 // number of the event at which they were compared last
}

// New returns a chronicle. [Chronicle.Run] stores bases.
func New(cfg Config, log *slog.Logger) *Chronicle {
	if cfg.Interval == 0 {
		cfg.Interval = Interval
	}
	return &Chronicle{cfg: cfg, log: log}
}

// Run stores a base and checks the ledger soon after this node has become the authority, so that the
// past of a new yard can be shown from its beginning, and then at each interval in which it still
// is, until ctx ends.
func (c *Chronicle) Run(ctx context.Context) error {
	soon := min(c.cfg.Interval, time.Second)
	for wait := soon; backoff.Sleep(ctx, wait) == nil; {
		if !c.cfg.IsAuthority() {
			c.state, wait = nil, soon
			c.setFinding(nil, 0)
			continue
		}
		wait = c.cfg.Interval
		switch err := c.step(ctx); {
		case errors.Is(err, streams.ErrStreamMissing) && c.state == nil:
			wait = soon // the authority of a new yard is about to create it
		case err != nil && ctx.Err() == nil:
			c.log.Warn("base of history not stored", "err", err)
			c.state = nil
		}
	}
	return nil
}

// step folds the events up to the ledger's present state, compares, and stores a base.
func (c *Chronicle) step(ctx context.Context) error {
	l := c.cfg.Copy()
	if l.Level() == 0 {
		return nil // the authority is about to raise it
	}
	ledgers, err := timeline.Decode(l.Base().JSON())
	if err != nil {
		return err
	}
	if c.state == nil || c.lineage != l.FenceBase() { // a backup may have replaced the ledger
		if c.state, err = c.begin(ctx, l); err != nil {
			return err
		}
		c.lineage = l.FenceBase()
	}
	if err := c.foldUpTo(ctx, ledgers.Event); err != nil {
		return err
	}
	c.setFinding(c.state.Diff(ledgers), ledgers.Event)
	return c.store(ctx, l.FenceBase())
}

// begin returns the state of the last base, or a recount of the ledger if no base is stored.
func (c *Chronicle) begin(ctx context.Context, l *ledger.Ledger) (*timeline.State, error) {
	s, err := c.base(ctx, l.FenceBase(), func(b *streams.Batch) bool { return b.First <= l.LastEvent() })
	if !errors.Is(err, streams.ErrNotStored) {
		return s, err
	}
	return timeline.Decode(l.RecountedBase().JSON())
}

// foldUpTo adds to the state the events up to a number, and waits until they are published.
func (c *Chronicle) foldUpTo(ctx context.Context, number uint64) error {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	for c.state.Event < number {
		if _, err := c.fold(ctx, c.state, func(n uint64, _ time.Time) bool { return n <= number }); err != nil {
			return err
		}
		if c.state.Event < number && backoff.Sleep(ctx, publishRetry) != nil {
			return fmt.Errorf("history ends at event %d, the ledger at %d", c.state.Event, number)
		}
	}
	return nil
}

// fold adds to a state the published events after it that within permits, and reports whether there is one that
// it does not permit.
func (c *Chronicle) fold(ctx context.Context, s *timeline.State, within func(number uint64, at time.Time) bool) (stopped bool, err error) {
	first, err := c.cfg.Reader.FindLast(ctx, subjects.StreamEvents, func(b *streams.Batch) bool { return b.First <= s.Event+1 })
	if errors.Is(err, streams.ErrNotStored) {
		return false, fmt.Errorf("%w: history no longer has event %d", ErrNotKept, s.Event+1)
	}
	if err != nil {
		return false, err
	}
	for seq := first.Seq; ; {
		batches, err := c.cfg.Reader.ReadHistory(ctx, seq, batchesPerRead)
		if err != nil || len(batches) == 0 {
			return false, err
		}
		for i := range batches {
			if stopped, err = s.Add(batches[i].Body, within); err != nil || stopped {
				return stopped, err
			}
			seq = batches[i].Seq + 1
		}
	}
}

// base returns the state of the last base that accept reports true for, among those after the
// last restore.
func (c *Chronicle) base(ctx context.Context, lineage uint64, accept func(*streams.Batch) bool) (*timeline.State, error) {
	b, err := c.cfg.Reader.FindLast(ctx, subjects.StreamState, func(b *streams.Batch) bool { return !isOf(b, lineage) || accept(b) })
	switch {
	case err != nil:
		return nil, err
	case !isOf(&b, lineage):
		return nil, fmt.Errorf("%s has no base since the restore: %w", subjects.StreamState, streams.ErrNotStored)
	}
	return timeline.Decode(b.Body)
}

// isOf reports whether a base belongs to the ledger with a fence base, which each restore changes.
func isOf(b *streams.Batch, lineage uint64) bool {
	return b.Header[headerLineage] == strconv.FormatUint(lineage, 10)
}

// store stores the state as a base, unless its stream has a later one.
func (c *Chronicle) store(ctx context.Context, lineage uint64) error {
	seq, _, err := c.cfg.Reader.LastPublished(ctx, subjects.StreamState)
	if err != nil {
		return err
	}
	body, err := c.state.Encode()
	if err != nil {
		return err
	}
	stored := make(chan error, 1)
	c.cfg.Append(subjects.StreamState, streams.Batch{
		Subject: subjects.State, First: c.state.Event, Count: 1, Header: map[string]string{headerLineage: strconv.FormatUint(lineage, 10)}, Body: body,
	}, seq, func(_ uint64, err error) { stored <- err })
	select {
	case err := <-stored:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// setFinding records in what the ledger differs from its history at an event.
func (c *Chronicle) setFinding(differences []timeline.Difference, event uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := ""
	if len(differences) > 0 {
		text = fmt.Sprintf("the ledger differs from its history at event %d in %d respects, the first is (history, then ledger) %s: one of the two is wrong; take a backup, and report it with 'yardmaster state --json'",
			event, len(differences), differences[0])
	}
	if text != "" && c.finding == "" {
		c.log.Error("ledger differs from its history", "event", event, "differences", fmt.Sprint(differences[:min(len(differences), 20)]))
	}
	c.finding, c.differences, c.checked = text, len(differences), event
}

// Reasons returns what is wrong with the numbers of jobs of l, the local ledger, for readiness.
func (c *Chronicle) Reasons(l *ledger.Ledger) (reasons []string) {
	c.mu.Lock()
	if c.finding != "" {
		reasons = append(reasons, c.finding)
	}
	c.mu.Unlock()
	balance := l.Balance()
	if n := balance.Imbalance(); n != 0 {
		reasons = append(reasons, fmt.Sprintf("the ledger's numbers of jobs do not add up: %d accepted, %d removed, and the states have %d too few; take a backup, and report it", balance.Accepted, balance.Removed, n))
	}
	return reasons
}

// Differences returns in how many respects the ledger differed from its history at the last check
// of this node, and the number of the event of that check; 0 if this node is not the authority.
func (c *Chronicle) Differences() (differences int, event uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.differences, c.checked
}
