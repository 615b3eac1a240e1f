package membership

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
)

// streams returns the replicas of all streams. While jobs arrive, a replica lacks
// at any moment what is in transit to it. Replicas that are behind are therefore
// checked again for up to r.replicaWait, and count as current if they were within
// the last currentGrace.
func (r *Reconciler) streams(ctx context.Context) ([]StreamReplicas, error) {
	deadline := time.Now().Add(r.replicaWait)
	var streams []StreamReplicas
	for {
		latest, err := r.cluster.Streams(ctx)
		if err != nil && streams == nil {
			return nil, err
		}
		if err == nil {
			streams = latest
		}
		if r.markCurrent(streams, time.Now()) || !time.Now().Before(deadline) {
			return streams, nil
		}
		if backoff.Sleep(ctx, replicaPollInterval) != nil {
			return streams, nil
		}
	}
}

// markCurrent records in r.lastCurrent which replicas are current, and marks in streams
// those as current that were so within the last currentGrace. all reports whether every
// replica that is online is then current.
func (r *Reconciler) markCurrent(streams []StreamReplicas, now time.Time) (all bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all = true
	for i := range streams {
		for n := range streams[i].Replicas {
			c := &streams[i].Replicas[n]
			key := streams[i].Stream + " " + c.ID
			if c.Current {
				r.lastCurrent[key] = now
			}
			c.Current = now.Sub(r.lastCurrent[key]) < currentGrace
			all = all && (c.Current || c.Offline)
		}
	}
	maps.DeleteFunc(r.lastCurrent, func(_ string, at time.Time) bool { return now.Sub(at) >= currentGrace })
	return all
}

// evacuate moves the replicas of a live member to other members. The caller repeats it
// until remaining, which describes what is left to move or to replicate, is "". evacuate
// sends the cluster a request for it at most every evacuateInterval.
func (r *Reconciler) evacuate(ctx context.Context, id string) (remaining string, err error) {
	streams, err := r.streams(ctx)
	if err != nil {
		return "", err
	}
	hosted := 0
	for _, s := range streams {
		if len(s.Replicas) == 0 || hasReplica(s.Replicas, id) {
			hosted++ // Replicas is empty while a stream has no leader: assume that the member has one
		}
	}
	if hosted == 0 {
		return r.missingReplicas(ctx, id)
	}
	if time.Since(r.evacuatedAt) > evacuateInterval {
		r.evacuatedAt = time.Now()
		err = r.cluster.Evacuate(ctx, id)
	}
	return fmt.Sprintf("streams are moved to other members: %d of %d still have a replica on %s", hosted, len(streams), id), err
}

// awaitSpare returns "" if a dead member's replicas can be given up. Otherwise remaining
// describes the streams that must catch up first; call it again later. The member's
// place in a stream's group goes to an empty replica. An empty replica and one that is
// behind are a majority, and could elect a leader without entries that only the third
// replica has. After replicaTimeout, replicas that are still behind are assumed lost as
// well and no longer waited for.
func (r *Reconciler) awaitSpare(ctx context.Context, dead string) (remaining string, err error) {
	streams, err := r.streams(ctx)
	if err != nil || time.Since(r.startedAt) > replicaTimeout {
		return "", err
	}
	var waiting []string
	for _, s := range streams {
		noLeader := len(s.Replicas) == 0 // then all is possible: a replica on the dead member, and others behind
		hasDead, hasLagging := noLeader, noLeader
		for _, replica := range s.Replicas {
			if replica.ID == dead {
				hasDead = true
			} else if !replica.healthy() {
				hasLagging = true
			}
		}
		if hasDead && hasLagging {
			waiting = append(waiting, s.Stream)
		}
	}
	if len(waiting) == 0 {
		return "", nil
	}
	return fmt.Sprintf("streams have to be current on other members first: %d of %d are not (%s)", len(waiting), len(streams), strings.Join(waiting, ", ")), nil
}

// missingReplicas describes the streams that have fewer healthy replicas than intended, ""
// if there are none. It does not count replicas on the server with the ID ignored.
func (r *Reconciler) missingReplicas(ctx context.Context, ignored string) (remaining string, err error) {
	streams, err := r.streams(ctx)
	if err != nil {
		return "", err
	}
	var lacking []string
	behind := uint64(0)
	for _, s := range streams {
		healthy := 0
		for _, replica := range s.Replicas {
			if replica.ID == ignored {
				continue
			}
			if replica.healthy() {
				healthy++
			}
			behind += replica.Lag
		}
		if healthy < max(s.Want, 1) {
			lacking = append(lacking, s.Stream)
		}
	}
	if len(lacking) == 0 {
		return "", nil
	}
	return fmt.Sprintf("streams are replicated: %d of %d lack a current replica, %d operations behind (%s)", len(lacking), len(streams), behind, strings.Join(lacking, ", ")), nil
}
