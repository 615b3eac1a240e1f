package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"yardmaster/cluster"
	"yardmaster/internal/backoff"
	"yardmaster/job"
	"yardmaster/ledger"
)

// How long the steps of a restore may take.
const (
	emptyFor     = 5 * time.Second  // to remove streams
	leadFor      = 15 * time.Second // for all lanes to have leaders
	insistFor    = 30 * time.Second // on a command, while the authority changes
	settleFor    = 60 * time.Second // on an authority that knows of the restore
	replicateFor = 30 * time.Minute
)

// begin empties the yard, if it is fresh or a restore was begun here before.
func (r *bringer) begin(ctx context.Context) error {
	r.say("looking whether the yard is fresh")
	before, epoch, err := r.admit(ctx)
	if err != nil {
		return err
	}
	return r.vacate(ctx, before, epoch)
}

// vacate clears the yard, or leaves it as it was if something was accepted since
// it was looked at. before and epoch are those of clear.
func (r *bringer) vacate(ctx context.Context, before bool, epoch uint64) error {
	accepted, err := r.clear(ctx, fmt.Sprintf("yard %s at entry %d", r.plan.Yard, r.plan.Index), before, epoch)
	if err != nil || !accepted {
		return err
	}
	if err := r.reopen(ctx); err != nil { // the yard accepts nothing until somebody gives this up
		return err
	}
	return r.notFresh()
}

// clear makes this the restore that is under way and removes the streams, but if
// something was accepted into the lanes that the yard was founded with. before:
// it takes the place of another; else the authority is a later one than epoch's.
func (r *bringer) clear(ctx context.Context, source string, before bool, epoch uint64) (accepted bool, err error) {
	r.say("making room for the backup's streams")
	if err := r.insist(ctx, &ledger.BringBack{Stage: ledger.BringBegin, ID: r.id, Source: source}); err != nil {
		return false, err
	}
	// The tenure that knew of no restore looks after the streams: it has to be
	// over before they go.
	if err := r.settled(ctx, func(l *ledger.Ledger) bool {
		a := l.Authority()
		return a.Owner != "" && (before || a.Epoch > epoch)
	}); err != nil {
		return false, err
	}
	if before { // whoever brought that about may have been about to remove streams
		if err := backoff.Sleep(ctx, emptyFor); err != nil {
			return false, err
		}
	}
	if accepted, err := r.closeLanes(ctx, before); accepted || err != nil {
		return accepted, err
	}
	return false, r.empty(ctx)
}

// closeLanes lets nothing more into the lanes that the yard was founded with;
// others were brought back, and are closed. accepted tells that something is in
// one: all are as they were then. before: a restore was begun earlier.
//
// A lane that nobody answers for although all members are there is none of those:
// an earlier restore of it waits for a leader that died.
func (r *bringer) closeLanes(ctx context.Context, before bool) (accepted bool, err error) {
	until := time.Now().Add(leadFor)
	for lane, identity := range r.fresh {
		for {
			was, err := r.n.messages.CloseLane(ctx, uint8(lane), identity)
			if err == nil {
				accepted = accepted || was.Last > 0
				break
			}
			if time.Now().After(until) {
				if before && errors.Is(err, cluster.ErrSilent) && r.away() == "" {
					break
				}
				return false, tryLater(err)
			}
			if err := backoff.Sleep(ctx, 250*time.Millisecond); err != nil {
				return false, err
			}
		}
	}
	return accepted, nil
}

// empty removes the streams, in a time that whoever takes this restore's place
// waits for.
func (r *bringer) empty(ctx context.Context) error {
	if err := r.seated(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, emptyFor)
	defer cancel()
	if err := r.n.messages.RemoveStreams(ctx); err != nil {
		return tryLater(err)
	}
	return nil
}

// seated makes sure that this is still the restore that is under way.
func (r *bringer) seated(ctx context.Context) error {
	if err := r.n.commander.current(ctx); err != nil {
		return err
	}
	id := ""
	r.n.raft.View(func(l *ledger.Ledger) { id, _ = l.Bringing() })
	if id != r.id {
		return ledger.ErrBringSeat
	}
	return nil
}

// admit refuses a yard in which something was accepted, or that is not there.
// before: a restore was begun here and has not ended.
func (r *bringer) admit(ctx context.Context) (before bool, epoch uint64, err error) {
	if err := r.n.commander.current(ctx); err != nil {
		return false, 0, err
	}
	fresh, made := false, false
	r.n.raft.View(func(l *ledger.Ledger) {
		id, _ := l.Bringing()
		before, fresh, made, epoch = id != "", l.Fresh(), l.StreamsMade(), l.Authority().Epoch
		for _, lane := range l.Lanes() {
			r.fresh = append(r.fresh, lane.Identity)
		}
	})
	for _, lane := range r.plan.Keep {
		if lane.Identity != "" {
			r.lanes = append(r.lanes, lane.Identity)
		}
	}
	for len(r.lanes) < len(r.fresh) { // as many lanes as this yard was founded with
		r.lanes = append(r.lanes, uuid.NewString())
	}
	if away := r.away(); fresh && away != "" {
		return before, epoch, &cluster.APIError{Code: "409", Text: "member " + away + " is not heard, and each is to have its copies of the backup; start it first"}
	}
	switch {
	case !fresh:
		return before, epoch, r.notFresh()
	case !made:
		return before, epoch, &job.UnavailableError{Reason: "the yard's streams are not made yet: wait until it is ready", RetryAfter: time.Second}
	case before:
		return before, epoch, nil
	}
	for lane := range r.fresh {
		info, err := r.n.messages.LaneInfo(ctx, uint8(lane))
		if err != nil {
			return before, epoch, tryLater(err)
		}
		if info.Last > 0 {
			return before, epoch, r.notFresh()
		}
	}
	return before, epoch, nil
}

// away is a member that is not heard; "" if all are.
func (r *bringer) away() string {
	members, routed := roster{r.n}.Roll().Members, r.n.messages.Routed()
	for i := range members {
		if !slices.Contains(routed, members[i].ID()) {
			return members[i].Node
		}
	}
	return ""
}

func (r *bringer) notFresh() error {
	return &cluster.APIError{Code: "409", Text: "this yard has accepted jobs, and a backup is restored into a fresh one only; " +
		"stop its nodes, move their data directories away, start them again, and restore before anything is enqueued (also before a declared cron entry is due)"}
}

func tryLater(err error) error {
	return &job.UnavailableError{Reason: err.Error(), RetryAfter: time.Second}
}

// insist says a command until it is taken or refused: while a restore begins
// and ends, the authority changes hands.
func (r *bringer) insist(ctx context.Context, c ledger.Command) error {
	for until := time.Now().Add(insistFor); ; {
		_, err := r.n.commander.do(ctx, c)
		var away *job.UnavailableError
		if err == nil || !errors.As(err, &away) || time.Now().After(until) {
			return err
		}
		if err := backoff.Sleep(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// settled waits until the ledger here is as it should be.
func (r *bringer) settled(ctx context.Context, fits func(*ledger.Ledger) bool) error {
	ctx, cancel := context.WithTimeout(ctx, settleFor)
	defer cancel()
	for {
		_, changed := r.n.raft.Applied()
		ok := false
		r.n.raft.View(func(l *ledger.Ledger) { ok = fits(l) })
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return &job.UnavailableError{Reason: "no authority goes on with the restore", RetryAfter: time.Second}
		}
	}
}
