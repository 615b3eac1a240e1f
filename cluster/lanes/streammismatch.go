package lanes

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
)

// Lanes are checked after each of these advisories, and regularly because an
// advisory may be missed.
const (
	mismatchCheckInterval  = time.Second
	advisoryStreamCreated  = "$JS.EVENT.ADVISORY.STREAM.CREATED.*"
	advisoryStreamModified = "$JS.EVENT.ADVISORY.STREAM.MODIFIED.*"
)

// mismatchWatch keeps jobs out of lanes whose stream is not the one recorded in
// the ledger. Such a stream was recreated, and the authority does not ingest its
// records.
type mismatchWatch struct {
	local *embedded.Server
	state *laneStates
	wake  chan struct{}

	mu         crash.Mutex
	identities []string // identities of the lanes in the ledger
}

// SetLaneIdentities sets the lanes' identities, which the ledger records. Until
// the first call every stream with a lane's name counts as that lane.
func (p *Publisher) SetLaneIdentities(identities []string) {
	p.local.SetLanes(len(identities))
	w := p.mismatch
	w.mu.Lock()
	for i := range identities {
		if i >= len(w.identities) || w.identities[i] != identities[i] {
			p.state.reset(uint8(i))
			p.load.stored[i].Store(0)
		}
	}
	w.identities = identities
	w.mu.Unlock()
	w.trigger()
}

// trigger makes run check as soon as it can.
func (w *mismatchWatch) trigger() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run checks each second, and as soon as a stream is created or changed, until ctx
// ends.
func (w *mismatchWatch) run(ctx context.Context) {
	for _, subject := range []string{advisoryStreamCreated, advisoryStreamModified} {
		sub, err := w.local.API.Conn.Subscribe(subject, func(*nats.Msg) { w.trigger() })
		if err != nil {
			w.local.Log.Warn("subscription to stream advisories failed", "subject", subject, "err", err)
			continue
		}
		defer sub.Unsubscribe() //nolint:errcheck // the connection is gone, and so is the subscription
	}
	tick := time.NewTicker(mismatchCheckInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-tick.C:
		}
		w.check(ctx)
	}
}

// check compares the identity of each lane's stream with the one recorded in the
// ledger.
func (w *mismatchWatch) check(ctx context.Context) {
	w.mu.Lock()
	identities := w.identities
	w.mu.Unlock()
	for lane, recorded := range identities {
		info, err := streams.Info(ctx, w.local.JS, subjects.LaneStream(uint8(lane)))
		if err != nil || recorded == "" {
			continue // unknown: keep the state; a lane without a leader accepts nothing
		}
		match := info.Config.Metadata[subjects.MetaIdentity] == recorded
		w.state.setIdentityMatch(uint8(lane), match, info.State.LastSeq)
	}
}

// setIdentityMatch records whether a lane's stream is the one in the ledger, and the
// stream's last sequence. A stream that was rolled back stays excluded until it has
// reached the highest known sequence again.
func (s *laneStates) setIdentityMatch(lane uint8, match bool, last uint64) {
	s.mu.Lock()
	wasMismatched := s.lane[lane].mismatched
	rolledBack := last < s.lastSeq[lane].Load()
	mismatched := !match || wasMismatched && rolledBack
	s.lane[lane].mismatched = mismatched
	s.mu.Unlock()
	if mismatched != wasMismatched {
		s.local.Log.Warn("lane stream mismatch changed", "lane", lane, "mismatched", mismatched)
	}
	if !mismatched {
		s.raiseLast(lane, last)
	}
}

// markMismatched excludes a lane that has just stored a job under a sequence that
// was used before.
func (s *laneStates) markMismatched(lane uint8) {
	s.mu.Lock()
	before := s.lane[lane].mismatched
	s.lane[lane].mismatched = true
	s.mu.Unlock()
	if !before {
		s.local.Log.Error("lane reuses sequence numbers, publishes to it stopped", "lane", lane)
	}
}

// reset discards what is known about a lane, because its stream was replaced.
func (s *laneStates) reset(lane uint8) {
	s.mu.Lock()
	s.lane[lane].mismatched = false
	s.lastSeq[lane].Store(0)
	s.mu.Unlock()
}

// raiseLast records that a lane has stored a record with this sequence.
func (s *laneStates) raiseLast(lane uint8, seq uint64) { raise(&s.lastSeq[lane], seq) }

// raise sets *seq to at least to.
func raise(seq *atomic.Uint64, to uint64) {
	for {
		last := seq.Load()
		if to <= last || seq.CompareAndSwap(last, to) {
			return
		}
	}
}
