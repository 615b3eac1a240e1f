package backup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Time limits of the steps of a restore.
const (
	removeTimeout    = 5 * time.Second  // for a request to remove a stream
	streamTimeout    = 30 * time.Second // for a stream to have a leader that answers
	proposeTimeout   = 30 * time.Second // for a command, while the authority changes
	ledgerTimeout    = 60 * time.Second // for an authority that knows of the restore
	replicateTimeout = 30 * time.Minute
)

// prepare clears the cluster, if it has accepted nothing or a restore was begun before. It
// reopens the cluster unchanged if something was accepted after the check.
func (r *restorer) prepare(ctx context.Context) error {
	r.setActivity("checking that the yard has accepted nothing")
	resumed, epoch, err := r.checkFresh(ctx)
	if err != nil {
		return err
	}
	accepted, err := r.clear(ctx, fmt.Sprintf("yard %s at entry %d", r.plan.Yard, r.plan.Index), resumed, epoch)
	if err != nil || !accepted {
		return err
	}
	if err := r.reopen(ctx); err != nil { // if this fails, the cluster stays closed until the restore is abandoned
		return err
	}
	return r.notFreshError()
}

// clear makes this the restore that is under way and removes the streams. If something
// was accepted into the lanes that the cluster was founded with, it reports accepted and
// removes nothing. resumed reports whether another restore was under way; if not, clear
// waits for an authority with an epoch above epoch.
func (r *restorer) clear(ctx context.Context, source string, resumed bool, epoch uint64) (accepted bool, err error) {
	r.setActivity("removing the yard's empty streams")
	if err := r.propose(ctx, &ledger.Restore{Stage: ledger.RestoreBegin, ID: r.id, Source: source}); err != nil {
		return false, err
	}
	// A tenure that began before the restore maintains the streams: it must have
	// ended before they are removed.
	if err := r.awaitLedger(ctx, func(l *ledger.Ledger) bool {
		a := l.Authority()
		return a.Owner != "" && (resumed || a.Epoch > epoch)
	}); err != nil {
		return false, err
	}
	if resumed { // the superseded restore may be removing streams at this moment
		if err := backoff.Sleep(ctx, removeTimeout); err != nil {
			return false, err
		}
	}
	if accepted, err := r.closeLanes(ctx, resumed); accepted || err != nil {
		return accepted, err
	}
	return false, r.removeStreams(ctx)
}

// closeLanes closes the lanes that the cluster was founded with, so that they accept no
// records. If there are records in one of them it reports accepted. resumed reports
// whether a restore was begun earlier.
//
// A lane may have no replica that answers although all members are connected: then an
// earlier restore has created it and its leader died. It counts as closed.
func (r *restorer) closeLanes(ctx context.Context, resumed bool) (accepted bool, err error) {
	for lane, identity := range r.freshLanes {
		var state streams.StreamState
		err := retry(ctx, func() (err error) {
			state, err = r.cfg.Streams.CloseLane(ctx, uint8(lane), identity)
			return err
		})
		if err != nil && !(resumed && errors.Is(err, streams.ErrNoReplica) && r.unreachableMember() == "") {
			return false, retryLater(err)
		}
		accepted = accepted || state.Last > 0
	}
	return accepted, nil
}

// removeStreams removes every stream of the cluster except the boards.
func (r *restorer) removeStreams(ctx context.Context) error {
	for _, name := range savedStreams(subjects.MaxLanes) {
		err := retry(ctx, func() error { return r.removeStream(ctx, name) })
		if errors.Is(err, ledger.ErrNotRestoring) {
			return err
		}
		if err != nil {
			return retryLater(err)
		}
	}
	return nil
}

// removeStream requests the removal of a stream if this is still the restore under way.
// It returns within removeTimeout after that check: a restore that supersedes this one
// waits that long.
func (r *restorer) removeStream(ctx context.Context, name string) error {
	if err := r.checkCurrent(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	return r.cfg.Streams.RemoveStream(ctx, name)
}

// checkCurrent returns an error unless this is still the restore under way.
func (r *restorer) checkCurrent(ctx context.Context) error {
	if err := r.cfg.ReadBarrier(ctx); err != nil {
		return err
	}
	id := ""
	r.cfg.Ledger.View(func(l *ledger.Ledger) { id, _ = l.Restoring() })
	if id != r.id {
		return ledger.ErrNotRestoring
	}
	return nil
}

// checkFresh returns an error if the cluster has accepted something or is not complete.
// It sets freshLanes, and lanes and extraLanes as planned. resumed reports whether a restore was begun
// before and has not ended; epoch is the authority's, for clear.
func (r *restorer) checkFresh(ctx context.Context) (resumed bool, epoch uint64, err error) {
	if err := r.cfg.ReadBarrier(ctx); err != nil {
		return false, 0, err
	}
	fresh, created := false, false
	r.cfg.Ledger.View(func(l *ledger.Ledger) {
		id, _ := l.Restoring()
		resumed, fresh, created, epoch = id != "", l.Fresh(), l.StreamsCreated(), l.Authority().Epoch
		for _, lane := range l.Lanes() {
			r.freshLanes = append(r.freshLanes, lane.Identity)
		}
	})
	for _, lane := range r.plan.Keep {
		if lane.Identity != "" {
			r.lanes = append(r.lanes, lane.Identity)
		}
	}
	for len(r.lanes)+len(r.extraLanes) < len(r.freshLanes) { // keep the number of lanes of this cluster
		r.extraLanes = append(r.extraLanes, uuid.NewString())
	}
	r.lanes = append(r.lanes, r.extraLanes...)
	if missing := r.unreachableMember(); fresh && missing != "" {
		return resumed, epoch, &api.Error{Code: api.CodeConflict, Text: "member " + missing + " is not connected, and each member must get its replicas of the backup; start it first"}
	}
	switch {
	case !fresh:
		return resumed, epoch, r.notFreshError()
	case !created:
		return resumed, epoch, &job.UnavailableError{Reason: "the yard's streams do not exist yet: wait until it is ready", RetryAfter: time.Second}
	case resumed:
		return resumed, epoch, nil
	}
	for lane := range r.freshLanes {
		var info streams.LaneInfo
		if err := retry(ctx, func() (err error) {
			info, err = r.cfg.LaneInfo(ctx, uint8(lane))
			return err
		}); err != nil {
			return resumed, epoch, retryLater(err)
		}
		if info.Last > 0 {
			return resumed, epoch, r.notFreshError()
		}
	}
	return resumed, epoch, nil
}

// unreachableMember returns the name of a member that is not connected, or "".
func (r *restorer) unreachableMember() string {
	members, routed := r.cfg.members(), r.cfg.Routed()
	for i := range members {
		if !slices.Contains(routed, members[i].ServerID()) {
			return members[i].Node
		}
	}
	return ""
}

func (r *restorer) notFreshError() error {
	return &api.Error{Code: api.CodeConflict, Text: "this yard has accepted jobs, and a backup is restored into a fresh one only; " +
		"stop its nodes, move their data directories away, start them again, and restore before anything is enqueued (also before a declared cron entry is due)"}
}

// retry calls fn until it returns nil, for up to streamTimeout, and returns its last
// error: while JetStream elects the leader of a stream, no server answers requests for
// that stream. It does not repeat fn once this restore is no longer the one under way.
func retry(ctx context.Context, fn func() error) error {
	for deadline := time.Now().Add(streamTimeout); ; {
		err := fn()
		if err == nil || errors.Is(err, ledger.ErrNotRestoring) || time.Now().After(deadline) || backoff.Sleep(ctx, 250*time.Millisecond) != nil {
			return err
		}
	}
}

// retryLater returns err as an error that may pass.
func retryLater(err error) error {
	return &job.UnavailableError{Reason: err.Error(), RetryAfter: time.Second}
}

// propose proposes a command, and retries for up to proposeTimeout while no authority is
// available: the authority changes when a restore begins and when it ends.
func (r *restorer) propose(ctx context.Context, c ledger.Command) error {
	for deadline := time.Now().Add(proposeTimeout); ; {
		err := r.cfg.Propose(ctx, c)
		if _, unavailable := errors.AsType[*job.UnavailableError](err); !unavailable || time.Now().After(deadline) {
			return err
		}
		if err := backoff.Sleep(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// awaitLedger waits until cond is true for the local ledger, for up to ledgerTimeout.
func (r *restorer) awaitLedger(ctx context.Context, cond func(*ledger.Ledger) bool) error {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	for {
		_, changed := r.cfg.Ledger.Applied()
		ok := false
		r.cfg.Ledger.View(func(l *ledger.Ledger) { ok = cond(l) })
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return &job.UnavailableError{Reason: "no authority continues the restore", RetryAfter: time.Second}
		}
	}
}
