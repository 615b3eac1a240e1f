package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"yardmaster/job"
)

// What is told of streams that come and go, and how often lanes are looked at
// besides: what is told may be missed.
const (
	foreignEvery   = time.Second
	advisoryMade   = "$JS.EVENT.ADVISORY.STREAM.CREATED.*"
	advisoryChange = "$JS.EVENT.ADVISORY.STREAM.MODIFIED.*"
)

// ErrForeign: a lane's stream is not the one that the ledger knows.
var ErrForeign = errors.New("the lane's stream is another one than the ledger's")

// foreignWatch keeps jobs out of lanes whose stream is not the one that the ledger
// knows: somebody made it anew, and what it takes in nobody folds.
type foreignWatch struct {
	c    *Cluster
	wake chan struct{}

	mu    sync.Mutex
	known []string // the lanes' identities, by the ledger
}

func newForeignWatch(c *Cluster) *foreignWatch {
	return &foreignWatch{c: c, wake: make(chan struct{}, 1)}
}

// KnowLanes tells which lanes there are, by their identities in the ledger. Until it
// is told any stream of a lane's name is taken for the lane.
func (c *Cluster) KnowLanes(identities []string) {
	c.SetLanes(len(identities))
	f := c.foreign
	f.mu.Lock()
	for i := range identities {
		if i >= len(f.known) || f.known[i] != identities[i] {
			c.publisher.state.restart(uint8(i))
		}
	}
	f.known = identities
	f.mu.Unlock()
	f.lookSoon()
}

func (f *foreignWatch) lookSoon() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// run looks each second, and as soon as a stream is made, until ctx ends.
func (f *foreignWatch) run(ctx context.Context) {
	for _, subject := range []string{advisoryMade, advisoryChange} {
		sub, err := f.c.api.nc.Subscribe(subject, func(*nats.Msg) { f.lookSoon() })
		if err != nil {
			f.c.log.Warn("it is not heard when streams are made", "error", err)
			continue
		}
		defer sub.Unsubscribe() //nolint:errcheck // the connection is gone, and so is the subscription
	}
	tick := time.NewTicker(foreignEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		case <-tick.C:
		}
		f.look(ctx)
	}
}

func (f *foreignWatch) look(ctx context.Context) {
	f.mu.Lock()
	known := f.known
	f.mu.Unlock()
	for lane, want := range known {
		info, err := f.c.streamInfo(ctx, LaneStream(uint8(lane)))
		if err != nil || want == "" {
			continue // as it was; without a leader it takes nothing
		}
		got := info.Config.Metadata[MetaIdentity]
		f.c.publisher.state.look(uint8(lane), got == want, info.State.LastSeq)
	}
}

// look hears whose stream a lane's is and where it ends. One that went back stays
// out, too, until it is as far as it was.
func (s *laneStates) look(lane uint8, own bool, last uint64) {
	s.mu.Lock()
	l := &s.lane[lane]
	was := l.foreign
	switch {
	case !own:
		l.foreign = true
	case last >= s.stored[lane].Load():
		l.foreign = false
	}
	now := l.foreign
	s.mu.Unlock()
	if now != was {
		s.c.log.Warn("whether a lane is the ledger's has changed", "lane", lane, "foreign", now)
	}
	if own && !now {
		s.raise(lane, last)
	}
}

// disown keeps jobs out of a lane that has just given one a place where another has
// been.
func (s *laneStates) disown(lane uint8) {
	s.mu.Lock()
	was := s.lane[lane].foreign
	s.lane[lane].foreign = true
	s.mu.Unlock()
	if !was {
		s.c.log.Error("a lane stores jobs where others have been: it takes no more from this node", "lane", lane)
	}
}

// restart forgets what was known of a lane: it is another one now.
func (s *laneStates) restart(lane uint8) {
	s.mu.Lock()
	s.lane[lane].foreign = false
	s.stored[lane].Store(0)
	s.mu.Unlock()
}

// raise notes that a lane has stored so many.
func (s *laneStates) raise(lane uint8, seq uint64) {
	for {
		was := s.stored[lane].Load()
		if seq <= was || s.stored[lane].CompareAndSwap(was, seq) {
			return
		}
	}
}

// LoadOwn reads a job's record out of the lane that it was folded from, by the lane's
// identity, and no other record: see [Cluster.LoadRecord]. [ErrNotStored] is the word
// of that lane's leader, [ErrForeign] says that the lane is another one now.
func (c *Cluster) LoadOwn(ctx context.Context, at job.Position, id job.ID, identity string) (job.Record, error) {
	r, err := c.LoadRecord(ctx, at)
	if err == nil && r.Is(id, identity) || err != nil && !errors.Is(err, ErrNotStored) {
		return r, err
	}
	// It is not there, or has another name: that of a job that was put off by it.
	info, failed := c.LaneInfo(ctx, at.Lane)
	if failed == nil && info.Identity != identity {
		failed = ErrForeign
	}
	if failed != nil {
		return job.Record{}, fmt.Errorf("load record %d@%d of job %s: %w", at.Lane, at.Seq, id, failed)
	}
	return r, err
}
