package health

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
)

// Readiness returns whether the cluster is ready and why not, as in the snapshot of the
// runtime contract, and whether this node accepts jobs and the authority dispatches them.
func (r *Reporter) Readiness(ctx context.Context) api.Readiness {
	return r.ReadinessUnder(ctx, r.AuthorityStatus(ctx))
}

// ReadinessUnder is [Reporter.Readiness] for a known status of the authority.
func (r *Reporter) ReadinessUnder(ctx context.Context, authority scheduler.AuthorityStatus) api.Readiness {
	return r.readiness(ctx, authority, r.laneStates(ctx), r.streamStates(ctx))
}

// readiness is [Reporter.Readiness] for known states of the authority, the lanes and the
// streams.
func (r *Reporter) readiness(ctx context.Context, authority scheduler.AuthorityStatus, lanes []laneState, streams []api.StreamStatus) api.Readiness {
	healthErr := r.cfg.NATSHealth()
	if !r.cfg.Clustered && anyLaneLed(lanes) {
		healthErr = nil // on a single server a stream that is being created looks like one that was lost
	}
	members := memberStatuses(r.cfg.Raft(), &authority)
	r.cfg.AddPeers(members)
	state := api.Readiness{Dispatching: authority.Error == "" && authority.Dispatching, Warnings: append(r.cfg.Warnings(), r.downWarnings(members)...)}
	state.Warnings = append(state.Warnings, r.zoneWarnings(members)...)
	state.Warnings = append(append(state.Warnings, authority.Warnings...), fullWarnings(streams)...)
	accepting, reasons := acceptingJobs(healthErr, lanes)
	state.Accepting = accepting && r.cfg.Monitor.ClosedReason() == ""
	r.cfg.View(func(l *ledger.Ledger) {
		s := r.SnapshotContext(l, authority)
		s.Reasons = append(s.Reasons, reasons...)
		state.Readiness = l.Snapshot(s).Readiness
		for _, warning := range []string{l.ForgottenIDs().Warning(), l.QueuesWarning()} {
			if warning != "" {
				state.Warnings = append(state.Warnings, warning)
			}
		}
	})
	return state
}

// downWarnings returns a warning for each member that is down. This node is not, even if it
// has just started and the authority has not heard from it.
func (r *Reporter) downWarnings(members []api.MemberStatus) (warnings []string) {
	for i := range members {
		if members[i].State == "down" && members[i].Name != r.cfg.Node {
			warnings = append(warnings, "member "+members[i].Name+" is down: start it; until then, the loss of another member may cost the majority")
		}
	}
	return warnings
}

// zoneWarnings returns a warning for each member whose database of time zones differs from this node's.
func (r *Reporter) zoneWarnings(members []api.MemberStatus) (warnings []string) {
	for i := range members {
		if m := &members[i]; m.TimeZones != "" && m.TimeZones != r.cfg.TimeZones {
			warnings = append(warnings, fmt.Sprintf("member %s has the time zones %s and this node %s: times of cron entries may change when the authority moves; run the same build on all members", m.Name, m.TimeZones, r.cfg.TimeZones))
		}
	}
	return warnings
}

// fullWarnings returns a warning for each stream that is nearly full, has at least four
// fifths of what it may have, and then refuses jobs or lets lanes fill.
func fullWarnings(streams []api.StreamStatus) (warnings []string) {
	const remedy = ": 'yardmaster status' shows its bytes, 'yardmaster queue list' which queues have jobs that wait; 'yardmaster job cancel' and 'yardmaster queue clear' end them; nats.max_store_bytes, once raised on every member, makes it larger"
	for i := range streams {
		s := &streams[i]
		limit, effect := s.LimitBytes, " is over 80 % full, and refuses jobs when it is full"
		if s.Stream == subjects.StreamRelocated {
			limit, effect = scheduler.RelocatedLimit(limit), " has over 80 % of the records that lanes may move there; after that, lanes fill until the jobs that wait longest end"
		}
		if s.WhenFull == api.Refuses && limit > 0 && s.Bytes >= limit/5*4 {
			warnings = append(warnings, "stream "+s.Stream+effect+remedy)
		}
	}
	return warnings
}

// streamStates returns how full the streams are whose leaders answer in time.
func (r *Reporter) streamStates(ctx context.Context) []api.StreamStatus {
	ctx, cancel := context.WithTimeout(ctx, laneStatusTimeout)
	defer cancel()
	lanes := 0
	r.cfg.View(func(l *ledger.Ledger) { lanes = len(l.Lanes()) })
	usage := r.cfg.Streams(ctx, lanes)
	states := make([]api.StreamStatus, len(usage))
	for i, u := range usage {
		states[i] = api.StreamStatus{
			Stream: u.Stream, Messages: u.Messages, LimitMessages: u.LimitMessages, Bytes: u.Bytes, LimitBytes: u.LimitBytes,
			MaxAgeMS: u.MaxAge.Milliseconds(), WhenFull: api.Evicts,
		}
		if u.Refuses {
			states[i].WhenFull = api.Refuses
		}
		if !u.Oldest.IsZero() {
			states[i].Oldest = &u.Oldest
		}
	}
	return states
}

// acceptingJobs reports whether this node can store a job, and if not, why. healthErr is
// the state of its NATS server. There is no reason as long as no lanes exist: then the
// readiness has another one.
func acceptingJobs(healthErr error, lanes []laneState) (accepting bool, reasons []string) {
	if healthErr != nil {
		reasons = append(reasons, fmt.Sprintf("%v: this node accepts no jobs until it is; others may", healthErr))
	}
	if len(lanes) > 0 && !anyLaneLed(lanes) {
		reasons = append(reasons, "no lane has a leader that this node hears: it accepts no jobs until one has")
	}
	return healthErr == nil && slices.ContainsFunc(lanes, laneState.accepts), reasons
}

// laneState is the state of a lane, and whether it cannot take another job.
type laneState struct {
	api.LaneStatus
	full bool
}

// accepts reports whether a job published now would be stored. The authority reports full
// lanes.
func (l laneState) accepts() bool { return l.Leader != "" && !l.full }

// anyLaneLed reports whether one of the lanes has a leader.
func anyLaneLed(lanes []laneState) bool {
	return slices.ContainsFunc(lanes, func(l laneState) bool { return l.Leader != "" })
}

// laneStatusTimeout bounds the requests to the lanes' leaders.
const laneStatusTimeout = 400 * time.Millisecond

// laneStates asks the leaders of all lanes at the same time. A lane whose leader does not
// answer within laneStatusTimeout has none in the result.
func (r *Reporter) laneStates(ctx context.Context) []laneState {
	ctx, cancel := context.WithTimeout(ctx, laneStatusTimeout)
	defer cancel()
	var cursors []ledger.LaneCursor
	r.cfg.View(func(l *ledger.Ledger) { cursors = l.Lanes() })
	states := make([]laneState, len(cursors))
	var queries crash.Group
	for i, c := range cursors {
		s := &states[i]
		s.LaneStatus = api.LaneStatus{Lane: i, Stream: subjects.LaneStream(uint8(i)), Cursor: c.Cursor}
		queries.Run(func() {
			info, err := r.cfg.LaneInfo(ctx, uint8(s.Lane))
			if err != nil || !info.Quorum {
				return // no leader answers, or it is cut off from a majority
			}
			s.Leader, s.First, s.Last = info.Leader, info.First, info.Last
			s.full = scheduler.LaneFull(info.Bytes, uint64(max(info.MaxBytes, 0)))
			if s.Last > s.Cursor {
				s.Lag = s.Last - s.Cursor
			}
		})
	}
	_ = queries.Wait() // the functions return no errors
	return states
}

// streamsNotMade reports whether the cluster's streams were never created. For an empty
// ledger, of a node that has just started, it returns false, because that is not known.
func streamsNotMade(l *ledger.Ledger) bool { return l.Index() > 0 && !l.StreamsCreated() }

// SnapshotContext returns what the snapshot of l needs besides the ledger.
func (r *Reporter) SnapshotContext(l *ledger.Ledger, authority scheduler.AuthorityStatus) ledger.SnapshotContext {
	s := ledger.SnapshotContext{
		Now: r.cfg.Now(l), PendingEvents: authority.Pending, OldestPending: authority.OldestPending, Deferred: authority.Deferred, Reasons: authority.Reasons,
	}
	if authority.Error != "" {
		s.Reasons = append(s.Reasons, authority.Error)
	}
	if streamsNotMade(l) {
		s.Reasons = append(s.Reasons, "the yard's streams are not made yet: that takes all members, once")
	}
	s.Reasons = append(append(s.Reasons, r.cfg.Monitor.Reasons()...), r.cfg.LedgerReasons(l)...)
	for _, p := range r.cfg.Pools() {
		if p.Reason != "" {
			s.Reasons = append(s.Reasons, "runner "+p.Runner+": "+p.Reason)
		}
	}
	return s
}

// CaptureContext returns what a snapshot of the ledger needs besides the ledger now.
func (r *Reporter) CaptureContext(ctx context.Context) (s ledger.SnapshotContext) {
	authority := r.AuthorityStatus(ctx)
	r.cfg.View(func(l *ledger.Ledger) { s = r.SnapshotContext(l, authority) })
	return s
}

// Snapshot returns the snapshot of the runtime contract, and calls shown with the ledger that it
// shows.
func (r *Reporter) Snapshot(ctx context.Context, shown func(*ledger.Ledger)) (view ledger.Snapshot) {
	authority := r.AuthorityStatus(ctx)
	r.cfg.View(func(l *ledger.Ledger) {
		view = l.Snapshot(r.SnapshotContext(l, authority))
		shown(l)
	})
	return view
}
