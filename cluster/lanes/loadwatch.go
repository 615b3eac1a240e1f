package lanes

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Parameters of loadWatch.
const (
	streamReadInterval = time.Second            // between two reads of the streams' states
	busyReadInterval   = 200 * time.Millisecond // the same while a delay is likely
	likelyDelay        = 0.4                    // used share of a stream from which one is
)

// loadWatch measures the load of this node's intake, and sets the pressure that follows
// from it.
type loadWatch struct {
	local    *embedded.Server
	state    *laneStates
	inFlight *inFlight

	small, large *ackQueue // by whether the body is stored apart from the record
	ingested     [subjects.MaxLanes]atomic.Uint64
	forgottenIDs atomic.Pointer[Fill]
	pressure     atomic.Pointer[Pressure]
	lag          atomic.Int64  // of the current lane, in nanoseconds
	refused      atomic.Uint64 // jobs refused because of the pressure

	// Of the streams, when last read.
	stored [subjects.MaxLanes]atomic.Uint64 // last sequences; also raised by replies to direct publishes
	lane   atomic.Pointer[Fill]             // the current lane
	bodies atomic.Pointer[Fill]

	// Of run only.
	lags [subjects.MaxLanes]ingestLag
}

func newLoadWatch(l *embedded.Server, state *laneStates, f *inFlight) *loadWatch {
	w := &loadWatch{local: l, state: state, inFlight: f, small: newAckQueue(), large: newAckQueue()}
	for _, fill := range []*atomic.Pointer[Fill]{&w.forgottenIDs, &w.lane, &w.bodies} {
		fill.Store(&Fill{})
	}
	w.pressure.Store(&Pressure{})
	return w
}

// WatchLoad slows down the acceptance of jobs according to the node's load, until ctx
// ends. Then it sends all acknowledgements that are delayed.
func (p *Publisher) WatchLoad(ctx context.Context) {
	var group errgroup.Group
	group.Go(func() error { p.load.small.run(ctx); return nil })
	group.Go(func() error { p.load.large.run(ctx); return nil })
	group.Go(func() error { p.load.readStreams(ctx); return nil })
	tick := time.NewTicker(TickInterval)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case now := <-tick.C:
			p.load.update(now)
		}
	}
	_ = group.Wait() // no error
}

// SetIngested sets the sequences up to which this node's ledger has ingested the lanes.
func (p *Publisher) SetIngested(cursors []uint64) {
	for lane, cursor := range cursors[:min(len(cursors), subjects.MaxLanes)] {
		p.load.ingested[lane].Store(cursor)
	}
}

// SetForgottenIDs sets how many ids of forgotten jobs this node's ledger has, of how many.
func (p *Publisher) SetForgottenIDs(ids Fill) { p.load.forgottenIDs.Store(&ids) }

// DelayAck calls answer, which acknowledges a job, once the present delay of
// acknowledgements has passed. large means that the job's body is stored apart from its
// record. answer must not block.
func (p *Publisher) DelayAck(large bool, answer func()) {
	if large {
		p.load.large.add(answer)
	} else {
		p.load.small.add(answer)
	}
}

// CheckLoad returns a [*job.UnavailableError] if a job must not be published because of the
// node's load, or because too many are in flight.
func (p *Publisher) CheckLoad() error {
	if later := p.load.refuse(); later != nil {
		return later
	}
	if later := p.inFlight.full(); later != nil {
		return later
	}
	return nil
}

// Pressure returns what the node does about its load at present.
func (p *Publisher) Pressure() Pressure { return *p.load.pressure.Load() }

// IngestLag returns the age of the oldest record that is acknowledged and not ingested, in
// the lane that this node's jobs go to.
func (p *Publisher) IngestLag() time.Duration { return time.Duration(p.load.lag.Load()) }

// RefusedForLoad returns how many jobs were refused because of the load or because too many
// were in flight, since the node was started.
func (p *Publisher) RefusedForLoad() uint64 {
	return p.load.refused.Load() + uint64(p.inFlight.refused.Load())
}

// refusal returns why jobs are refused, "" if they are not.
func (w *loadWatch) refusal() string {
	if w.small.full() || w.large.full() {
		return "too many acknowledgements are delayed"
	}
	return w.pressure.Load().Refusal
}

// refuse returns the error of a job that is refused because of the load, and counts it. It
// returns nil if jobs are not refused.
func (w *loadWatch) refuse() *job.UnavailableError {
	reason := w.refusal()
	if reason == "" {
		return nil
	}
	w.refused.Add(1)
	return &job.UnavailableError{Reason: reason, RetryAfter: overloadRetryAfter}
}

// currentLane returns the lane that new jobs go to.
func (w *loadWatch) currentLane(now time.Time) uint8 {
	if lane := w.state.directRoute(now); lane != noLane {
		return uint8(lane)
	}
	return uint8(w.state.ownLane())
}

// update sets the pressure for the load at the time now.
func (w *loadWatch) update(now time.Time) {
	current := w.currentLane(now)
	load := Load{LaneNumber: current, InFlightLimit: w.inFlight.lowered(), Lane: *w.lane.Load(), Bodies: *w.bodies.Load(), IDs: *w.forgottenIDs.Load()}
	for i := range w.local.Lanes() {
		last, ingested := max(w.state.lastSeq[i].Load(), w.stored[i].Load()), w.ingested[i].Load()
		lag := w.lags[i].observe(now, last, ingested)
		if i == int(current) && lag > 0 {
			load.Lag, load.Records = lag, last-ingested
		}
	}
	p := PressureOf(load)
	w.pressure.Store(&p)
	w.lag.Store(int64(load.Lag))
	w.small.delay.Store(int64(p.Delay))
	w.large.delay.Store(int64(p.LargeDelay))
}

// readStreams reads the states of the current lane and of the stream of large bodies from
// their leaders, until ctx ends. What a leader that does not answer has reported before
// remains.
func (w *loadWatch) readStreams(ctx context.Context) {
	for wait := streamReadInterval; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		lane := w.currentLane(time.Now())
		if info := w.readStream(ctx, subjects.LaneStream(lane), &w.lane); info != nil {
			raise(&w.stored[lane], info.State.LastSeq)
		}
		w.readStream(ctx, subjects.StreamBlobs, &w.bodies)
		wait = streamReadInterval
		if w.pressure.Load().Delay > 0 || max(w.lane.Load().share(), w.bodies.Load().share()) > likelyDelay {
			wait = busyReadInterval
		}
	}
}

// readStream reads the state of a stream and sets fill. It returns nil if no leader
// answers.
func (w *loadWatch) readStream(ctx context.Context, stream string, fill *atomic.Pointer[Fill]) *jetstream.StreamInfo {
	info, err := streams.Info(ctx, w.local.JS, stream)
	if err != nil {
		return nil
	}
	fill.Store(&Fill{info.State.Bytes, uint64(max(info.Config.MaxBytes, 0))})
	return info
}
