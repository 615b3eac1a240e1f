package replication

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
)

// StallDetector detects replicas on this node that make no progress although their
// leader has more messages, and replicas with gaps. It compares messages, not Raft
// entries: a replica whose server writes its log but fails to apply it has all
// entries.
type StallDetector struct {
	local             *embedded.Server
	interval, timeout time.Duration

	mu       sync.Mutex
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

// check compares this node's replicas with their leaders. What cannot be compared
// now starts over: a replica that was cut off has not stalled yet.
func (d *StallDetector) check(ctx context.Context) {
	leaders, err := d.leaderLastSeqs(ctx)
	if err != nil {
		leaders = nil
	}
	own, err := d.replicaStates() // read after the leaders, so as not to appear behind
	if err != nil {
		leaders, own = nil, nil
	}
	now := time.Now()
	d.record(leaders, own, now)
	d.recordGaps(own, now)
}

// recordGaps records the gaps of replicas of dense streams.
func (d *StallDetector) recordGaps(own map[string]replicaState, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.gaps
	d.gaps = make(map[string]gap)
	for stream, state := range own {
		if state.missing == 0 || !isDense(stream) {
			continue
		}
		g, known := before[stream]
		if !known {
			g.since = now
		}
		g.missing = state.missing
		d.gaps[stream] = g
	}
}

// lastingGaps returns the number of messages missing in each replica, by stream,
// where some have been missing for d.timeout. A replica that is catching up may
// have a gap for a moment.
func (d *StallDetector) lastingGaps(now time.Time) map[string]uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	missing := make(map[string]uint64)
	for stream, g := range d.gaps {
		if now.Sub(g.since) >= d.timeout {
			missing[stream] = g.missing
		}
	}
	return missing
}

// Gaps returns how many messages are missing between the first and the last of
// this node's replicas of lanes, history and results, by stream. It relies on the
// server's count, which includes a damaged message only after the server has read
// its file.
func (d *StallDetector) Gaps() map[string]uint64 { return d.lastingGaps(time.Now()) }

// isDense reports whether messages of a stream are only ever removed from its
// beginning.
func isDense(stream string) bool {
	return strings.HasPrefix(stream, subjects.LanePrefix) || stream == subjects.StreamEvents || stream == subjects.StreamResults
}

// record records the replicas that lack messages. leaders holds the last sequence
// of each stream that another server leads, nil if unknown.
func (d *StallDetector) record(leaders map[string]uint64, own map[string]replicaState, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.replicas
	d.replicas = make(map[string]replicaProgress)
	for stream, leaderLast := range leaders {
		last := own[stream].last // 0 if the replica does not exist (yet)
		if last >= leaderLast {
			continue
		}
		progress, known := before[stream]
		if !known || progress.last != last {
			progress = replicaProgress{last, now}
		}
		d.replicas[stream] = progress
	}
}

// stalled returns the sorted names of the streams whose replica here has made no
// progress for d.timeout.
func (d *StallDetector) stalled(now time.Time) (streams []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for stream, c := range d.replicas {
		if now.Sub(c.stalledSince) >= d.timeout {
			streams = append(streams, stream)
		}
	}
	slices.Sort(streams)
	return streams
}

// StalledReplicas returns the sorted names of the streams whose replica on this
// node lacks messages and has received none for as long as the detector's timeout.
func (d *StallDetector) StalledReplicas() []string { return d.stalled(time.Now()) }

// leaderLastSeqs returns the last sequence of each stream that has a replica on
// this node and is led by another one.
func (d *StallDetector) leaderLastSeqs(ctx context.Context) (map[string]uint64, error) {
	last := make(map[string]uint64)
	err := eachStreamPage(ctx, d.local.API, func(page *streamPage) {
		for _, info := range page.Streams {
			g := info.Cluster
			if g == nil || g.Leader == d.local.Config.Identity {
				continue
			}
			for _, r := range replicasOf(g) {
				if r.Is(d.local.Config.Identity) {
					last[info.Config.Name] = info.State.LastSeq
				}
			}
		}
	})
	return last, err
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
