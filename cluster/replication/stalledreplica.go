package replication

import (
	"context"
	"slices"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
)

// StallDetector detects replicas on this node that make no progress although their
// leader has more messages, and replicas with gaps. It compares messages, not Raft
// entries: a replica whose server writes its log but fails to apply it has all
// entries.
type StallDetector struct {
	local             *embedded.Server
	interval, timeout time.Duration

	mu       crash.Mutex
	replicas map[string]replicaProgress // by stream; replicas that lacked messages at the last check
	gaps     map[string]gap             // by stream; replicas that had a gap at the last check
}

// replicaState is the state of this node's replica of a stream.
type replicaState struct {
	last    uint64 // last sequence
	missing uint64 // messages missing between the first and the last
}

// gap is a number of messages missing within a replica.
type gap struct {
	missing uint64
	since   time.Time // time of the first check that found it
}

// replicaProgress is the progress of a replica that lacks messages.
type replicaProgress struct {
	last         uint64    // last sequence
	stalledSince time.Time // since when last has not changed
}

// NewStallDetector returns a detector for the replicas on l's server. It checks every
// interval, and reports what has lasted for timeout.
func NewStallDetector(l *embedded.Server, interval, timeout time.Duration) *StallDetector {
	return &StallDetector{local: l, interval: interval, timeout: timeout}
}

// Run checks every d.interval until ctx ends.
func (d *StallDetector) Run(ctx context.Context) {
	for backoff.Sleep(ctx, d.interval) == nil {
		d.check(ctx)
	}
}

// check compares this node's replicas with their leaders, and records since when they
// have made no progress. A replica that cannot be compared now is left out, so that its
// time begins again later: a replica that was cut off has not stalled yet.
func (d *StallDetector) check(ctx context.Context) {
	leaderLasts, err := d.leaderLastSeqs(ctx)
	if err != nil {
		leaderLasts = nil
	}
	states, err := d.replicaStates() // read after the leaders' state, so as not to appear behind
	if err != nil {
		leaderLasts, states = nil, nil
	}
	d.recordProgress(leaderLasts, states)
	d.recordGaps(states)
}

// recordGaps records the gaps of replicas of dense streams. states holds the state of
// each replica on this node, by stream.
func (d *StallDetector) recordGaps(states map[string]replicaState) {
	d.mu.Lock()
	defer d.mu.Unlock()
	gaps := make(map[string]gap)
	for stream, state := range states {
		if state.missing == 0 || !isDense(stream) {
			continue
		}
		since := time.Now()
		if previous, existed := d.gaps[stream]; existed {
			since = previous.since
		}
		gaps[stream] = gap{state.missing, since}
	}
	d.gaps = gaps
}

// Gaps returns how many messages are missing between the first and the last of
// this node's replicas of lanes, history and results, by stream, where some have been
// missing for the detector's timeout: a replica that is catching up may have a gap for
// a moment. Gaps relies on the server's count, which includes a damaged message only
// after the server has read its file.
func (d *StallDetector) Gaps() map[string]uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	missing := make(map[string]uint64)
	for stream, g := range d.gaps {
		if time.Since(g.since) >= d.timeout {
			missing[stream] = g.missing
		}
	}
	return missing
}

// isDense reports whether messages of a stream are only ever removed from its
// beginning.
func isDense(stream string) bool {
	_, isLane := subjects.ParseLaneStream(stream)
	return isLane || stream == subjects.StreamEvents || stream == subjects.StreamResults
}

// recordProgress records the replicas on this node that lack messages. leaderLasts
// holds the last sequence of each stream that another server leads, nil if unknown, and
// states the state of each replica on this node.
func (d *StallDetector) recordProgress(leaderLasts map[string]uint64, states map[string]replicaState) {
	d.mu.Lock()
	defer d.mu.Unlock()
	replicas := make(map[string]replicaProgress)
	for stream, leaderLast := range leaderLasts {
		last := states[stream].last // 0 if the replica does not exist (yet)
		if last >= leaderLast {
			continue
		}
		progress, lackedBefore := d.replicas[stream]
		if !lackedBefore || progress.last != last {
			progress = replicaProgress{last, time.Now()}
		}
		replicas[stream] = progress
	}
	d.replicas = replicas
}

// StalledReplicas returns the sorted names of the streams whose replica on this
// node lacks messages and has received none for as long as the detector's timeout.
func (d *StallDetector) StalledReplicas() (streams []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for stream, progress := range d.replicas {
		if time.Since(progress.stalledSince) >= d.timeout {
			streams = append(streams, stream)
		}
	}
	slices.Sort(streams)
	return streams
}

// leaderLastSeqs returns the last sequence of each stream that has a replica on
// this node and is led by another one.
func (d *StallDetector) leaderLastSeqs(ctx context.Context) (map[string]uint64, error) {
	lasts := make(map[string]uint64)
	identity := d.local.Config.Identity
	err := eachStreamPage(ctx, d.local.API, func(page *streamPage) {
		for _, info := range page.Streams {
			if info.Cluster == nil || info.Cluster.Leader == identity {
				continue
			}
			if slices.ContainsFunc(replicasOf(info.Cluster), func(r Replica) bool { return r.Is(identity) }) {
				lasts[info.Config.Name] = info.State.LastSeq
			}
		}
	})
	return lasts, err
}

// replicaStates returns the state of each replica on this node, by stream.
func (d *StallDetector) replicaStates() (map[string]replicaState, error) {
	info, err := d.local.NATS.Jsz(&server.JSzOptions{Account: embedded.AccountYard, Streams: true})
	if err != nil {
		return nil, err
	}
	states := make(map[string]replicaState)
	for _, a := range info.AccountDetails {
		for i := range a.Streams {
			detail := &a.Streams[i]
			states[detail.Name] = replicaState{detail.State.LastSeq, uint64(detail.State.NumDeleted)}
		}
	}
	return states, nil
}
