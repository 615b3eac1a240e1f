package node

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"yardmaster/backup"
	"yardmaster/cluster"
	"yardmaster/internal/backoff"
	"yardmaster/job"
	"yardmaster/ledger"
)

// restored is the report of a restore.
type restored struct {
	Yard       string         `json:"yard"`
	Index      uint64         `json:"index"` // of the backup's ledger
	Hash       string         `json:"hash"`  // likewise: what was decoded here has it
	At         uint64         `json:"at"`    // entry of this yard that became it
	Epoch      uint64         `json:"epoch"` // of the authority that goes on
	FenceAbove uint64         `json:"fence_above"`
	Lanes      int            `json:"lanes"`
	Replayed   uint64         `json:"replayed"` // records behind the ledger, that are folded now
	CutEvents  uint64         `json:"cut_messages"`
	GivenBack  int            `json:"given_back"` // jobs that ran when the backup was made
	Queues     []backup.Queue `json:"queues"`     // as the backup counts them
	Exact      bool           `json:"exact"`      // the yard's counts were seen to be these before it went on
}

func (b *backups) finishRestore(ctx context.Context, q *cluster.Request) (any, error) {
	head, err := ask[backupQuestion](q)
	if err != nil {
		return nil, err
	}
	r, err := b.restoring(head.Session)
	if err != nil {
		return nil, err
	}
	return r.take(ctx, func(ctx context.Context) (err error) {
		defer r.stop()
		r.report, err = r.finish(ctx)
		return err
	})
}

func (r *bringer) finish(ctx context.Context) (*restored, error) {
	for _, s := range r.plan.Keep {
		if !r.fed[s.Name] {
			return nil, &job.InvalidError{Reason: fmt.Sprintf("part %s has not come", s.Name)}
		}
	}
	if !r.fed[r.plan.Ledger.Name] {
		return nil, &job.InvalidError{Reason: "the ledger has not come"}
	}
	r.say("making the streams that the backup has not")
	if err := r.ensure(ctx, cluster.Layout{Identities: r.lanes}); err != nil {
		return nil, err
	}
	if err := r.replicated(ctx); err != nil {
		return nil, err
	}
	r.say("becoming the yard that was saved")
	sum, err := hex.DecodeString(r.plan.Ledger.SHA256)
	if err != nil {
		return nil, &job.InvalidError{Reason: "the ledger's sum is no sum"}
	}
	report := &restored{
		Yard: r.plan.Yard, Index: r.plan.Index, Hash: r.plan.Ledger.SHA256, Lanes: len(r.lanes), Queues: r.plan.Queues,
	}
	var epoch uint64
	r.n.raft.View(func(l *ledger.Ledger) { epoch = l.Authority().Epoch })
	further := r.lanes[len(r.lanes)-r.further():]
	err = r.insist(ctx, &ledger.BringBack{Stage: ledger.BringFinish, ID: r.id, SHA256: sum, Lanes: further})
	become := func(l *ledger.Ledger) bool { return l.Authority().Epoch > epoch+ledger.BringStep/2 }
	if errors.Is(err, ledger.ErrBringSeat) { // it was said twice, or another restore took this one's place
		if err := r.n.commander.current(ctx); err != nil {
			return nil, err
		}
		r.n.raft.View(func(l *ledger.Ledger) {
			if become(l) {
				err = nil
			}
		})
	}
	if err != nil {
		return nil, err
	}
	if err := r.settled(ctx, become); err != nil {
		return nil, err
	}
	r.compare(r.n.raft.Copy(), report)
	if err := r.settled(ctx, func(l *ledger.Ledger) bool { return l.Authority().Owner != "" }); err != nil {
		return nil, err
	}
	r.n.raft.View(func(l *ledger.Ledger) { report.Epoch = l.Authority().Epoch })
	return report, nil
}

// ensure makes the streams that are missing, with closed lanes. The room of
// those that were removed is there a while later.
func (r *bringer) ensure(ctx context.Context, layout cluster.Layout) error {
	layout.Create, layout.Closed = true, true
	for until := time.Now().Add(insistFor); ; {
		_, err := r.n.messages.EnsureStreams(ctx, layout)
		if err == nil {
			return nil
		}
		if time.Now().After(until) || backoff.Sleep(ctx, 250*time.Millisecond) != nil {
			return tryLater(err)
		}
	}
}

// further is how many lanes the yard gets beside the backup's.
func (r *bringer) further() int {
	n := len(r.lanes)
	for _, s := range r.plan.Keep {
		if s.Identity != "" {
			n--
		}
	}
	return n
}

// replicated waits until each replica has its stream: until then one member's
// death could take what was just brought back. It makes sure that they are the
// backup's, whoever else may have brought something back here.
func (r *bringer) replicated(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, replicateFor)
	defer cancel()
	for i := range r.plan.Keep {
		keep := &r.plan.Keep[i]
		got, err := r.n.messages.StreamPoint(ctx, keep.Stream)
		if err != nil {
			return tryLater(err)
		}
		if got.Identity != keep.Identity || got.Last != keep.Last {
			return tryLater(fmt.Errorf("stream %s is not the backup's: it is %q and ends at %d, not %q at %d", keep.Stream, got.Identity, got.Last, keep.Identity, keep.Last))
		}
	}
	for _, stream := range saved(len(r.lanes)) {
		for {
			left, err := r.n.messages.Replicated(ctx, stream)
			if err == nil && left == "" || errors.Is(err, cluster.ErrStreamMissing) && stream == cluster.StreamLogs {
				break
			}
			if err != nil {
				left = err.Error()
			}
			r.say("waiting for the copies of %s: %s", stream, left)
			if backoff.Sleep(ctx, 100*time.Millisecond) != nil {
				return &job.UnavailableError{Reason: stream + " is not on all members: " + left, RetryAfter: time.Second}
			}
		}
	}
	return nil
}

// compare holds what the ledger here became against the manifest. Until there
// is an authority nothing changes, so all must be equal but for what ran, which
// waits; afterwards a job may have gone on, but none can have gone.
func (r *bringer) compare(l *ledger.Ledger, report *restored) {
	report.At, report.FenceAbove = l.Index(), l.FenceBase()
	report.Exact = l.Authority().Owner == ""
	now := map[string]backup.Queue{}
	for _, q := range backup.Queues(l) {
		now[q.Name] = q
	}
	for _, q := range r.plan.Queues {
		report.GivenBack += q.Active
		got := now[q.Name]
		same := got.Waiting+got.Failed == q.Waiting+q.Active+q.Failed && got.Active == 0 && got.Delayed <= q.Delayed
		report.Exact = report.Exact && (same || got.Delayed < q.Delayed && got.Jobs() == q.Jobs()) && got.Jobs() == q.Jobs() && got.Completed == q.Completed && got.Paused == q.Paused
	}
	lanes := l.Lanes()
	for i, lane := range lanes {
		if s := r.plan.Kept(cluster.LaneStream(uint8(i))); s != nil && s.Last > lane.Cursor {
			report.Replayed += s.Last - lane.Cursor
		}
	}
	for i := range r.plan.Keep {
		report.CutEvents += r.plan.Streams[i].Messages - r.plan.Keep[i].Messages
	}
}

func (b *backups) abandonRestore(ctx context.Context, _ *cluster.Request) (any, error) {
	r, err := b.seat(backup.Plan{}, true)
	if err != nil {
		return nil, err
	}
	return r.take(ctx, r.abandon)
}

// abandon gives up the restore that is under way, whoever began it: the yard is
// as it was then.
func (r *bringer) abandon(ctx context.Context) error {
	defer r.stop()
	if err := r.n.commander.current(ctx); err != nil {
		return err
	}
	under, source := "", ""
	r.n.raft.View(func(l *ledger.Ledger) {
		under, source = l.Bringing()
		for _, lane := range l.Lanes() {
			r.fresh = append(r.fresh, lane.Identity)
		}
	})
	if under == "" {
		return &cluster.APIError{Code: "409", Text: "no restore is under way in this yard; there is nothing to give up"}
	}
	if _, err := r.clear(ctx, source, true, 0); err != nil {
		return err
	}
	return r.reopen(ctx)
}

// reopen has the yard go on with the lanes it was founded with, and with a
// history of which it has told the beginning, wherever that is.
func (r *bringer) reopen(ctx context.Context) error {
	if err := r.ensure(ctx, cluster.Layout{Identities: r.fresh, Again: true}); err != nil {
		return err
	}
	return r.insist(ctx, &ledger.BringBack{Stage: ledger.BringAbandon, ID: r.id})
}
