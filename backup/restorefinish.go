package backup

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// FinishRestore completes a restore whose parts have all been received: it makes the
// backup's ledger the cluster's, once all streams exist and are replicated. If a part is
// missing, it returns a [*job.InvalidError], and the restore has failed. The reply has the
// report or, if the work takes longer than sessionAnswerTimeout, what it is doing; the
// client then asks for the restore's status until it has the report.
func (b *Server) FinishRestore(ctx context.Context, req *api.BackupRequest) (*api.RestoreReply, error) {
	r, err := b.findRestore(req.Session)
	if err != nil {
		return nil, err
	}
	finish := func(ctx context.Context) (err error) {
		defer r.cancel() // the session's work is over, also after a success
		r.report, err = r.finish(ctx)
		return err
	}
	return r.runStep(ctx, finish) // its reply has r.report
}

// finish creates the missing streams, waits for all replicas, and makes the backup's
// ledger the cluster's. It returns a [*job.InvalidError] if a part was not received.
func (r *restorer) finish(ctx context.Context) (*api.RestoreReport, error) {
	for _, s := range r.plan.Keep {
		if !r.received[s.Name] {
			return nil, &job.InvalidError{Reason: fmt.Sprintf("part %s was not received", s.Name)}
		}
	}
	if !r.received[r.plan.Ledger.Name] {
		return nil, &job.InvalidError{Reason: "the ledger was not received"}
	}
	r.setActivity("creating the streams that the backup does not contain")
	if err := r.ensureStreams(ctx, streams.Layout{Identities: r.lanes}); err != nil {
		return nil, err
	}
	if err := r.awaitReplicas(ctx); err != nil {
		return nil, err
	}
	r.setActivity("installing the ledger of the backup")
	sum, err := hex.DecodeString(r.plan.Ledger.SHA256)
	if err != nil {
		return nil, &job.InvalidError{Reason: "malformed ledger checksum in the plan"}
	}
	report := &api.RestoreReport{
		Yard: r.plan.Yard, Index: r.plan.Index, Hash: r.plan.Ledger.SHA256, Lanes: len(r.lanes), Queues: r.plan.Queues,
	}
	var epoch uint64
	r.cfg.Ledger.View(func(l *ledger.Ledger) { epoch = l.Authority().Epoch })
	err = r.propose(ctx, &ledger.Restore{Stage: ledger.RestoreFinish, ID: r.id, SHA256: sum, Lanes: r.extraLanes})
	// The backup's ledger is installed with an epoch that is higher by RestoreJump or
	// more. A new authority of the old ledger raises it by 1.
	applied := func(l *ledger.Ledger) bool { return l.Authority().Epoch > epoch+ledger.RestoreJump/2 }
	if errors.Is(err, ledger.ErrNotRestoring) { // proposed twice, or superseded by another restore
		if err := r.cfg.ReadBarrier(ctx); err != nil {
			return nil, err
		}
		r.cfg.Ledger.View(func(l *ledger.Ledger) {
			if applied(l) {
				err = nil
			}
		})
	}
	if err != nil {
		return nil, err
	}
	if err := r.awaitLedger(ctx, applied); err != nil {
		return nil, err
	}
	r.compare(r.cfg.Ledger.Copy(), report)
	if err := r.awaitLedger(ctx, func(l *ledger.Ledger) bool { return l.Authority().Owner != "" }); err != nil {
		return nil, err
	}
	r.cfg.Ledger.View(func(l *ledger.Ledger) { report.Epoch = l.Authority().Epoch })
	return report, nil
}

// ensureStreams creates the missing streams, with closed lanes. It retries, because the
// space of removed streams is not available at once.
func (r *restorer) ensureStreams(ctx context.Context, layout streams.Layout) error {
	layout.Create, layout.Closed = true, true
	err := retry(ctx, func() error {
		_, err := r.cfg.Streams.EnsureStreams(ctx, layout)
		return err
	})
	if err != nil {
		return retryLater(err)
	}
	return nil
}

// awaitReplicas waits until every stream is complete on all members that hold it, because
// until then the loss of one member could lose restored data. It also checks that the
// streams are those of this backup, and not of another restore.
func (r *restorer) awaitReplicas(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, replicateTimeout)
	defer cancel()
	for i := range r.plan.Keep {
		keep := &r.plan.Keep[i]
		var current streams.StreamState
		if err := retry(ctx, func() (err error) {
			current, err = r.cfg.Streams.StreamState(ctx, keep.Stream)
			return err
		}); err != nil {
			return retryLater(err)
		}
		if current.Identity != keep.Identity || current.Last != keep.Last {
			return retryLater(fmt.Errorf("stream %s is not the backup's: it is %q and ends at %d, not %q at %d", keep.Stream, current.Identity, current.Last, keep.Identity, keep.Last))
		}
	}
	for _, stream := range savedStreams(len(r.lanes)) {
		for {
			missing, err := r.cfg.Streams.Replicated(ctx, stream)
			complete := err == nil && missing == ""
			notUsed := errors.Is(err, streams.ErrStreamMissing) && stream == subjects.StreamLogs // the only optional stream
			if complete || notUsed {
				break
			}
			if err != nil {
				missing = err.Error()
			}
			r.setActivity("waiting for the replicas of %s: %s", stream, missing)
			if backoff.Sleep(ctx, 100*time.Millisecond) != nil {
				return &job.UnavailableError{Reason: stream + " is not on all members: " + missing, RetryAfter: time.Second}
			}
		}
	}
	return nil
}

// compare fills in the report by comparing the restored ledger with the plan. The report
// is exact if all queues have the same jobs as in the backup and no authority has
// changed them yet.
func (r *restorer) compare(l *ledger.Ledger, report *api.RestoreReport) {
	report.At, report.FenceAbove = l.Index(), l.FenceBase()
	report.Exact = l.Authority().Owner == ""
	counts := map[string]api.BackupQueue{}
	for _, q := range Queues(l) {
		counts[q.Name] = q
	}
	for _, q := range r.plan.Queues {
		report.GivenBack += q.Active
		report.Exact = report.Exact && sameQueue(q, counts[q.Name])
	}
	lanes := l.Lanes()
	for i, lane := range lanes {
		if s := r.plan.Kept(subjects.LaneStream(uint8(i))); s != nil && s.Last > lane.Cursor {
			report.Replayed += s.Last - lane.Cursor
		}
	}
	for i := range r.plan.Keep {
		report.CutEvents += r.plan.Streams[i].Messages - r.plan.Keep[i].Messages
	}
}

// sameQueue reports whether a queue is restored as it was saved: with the same jobs, of
// which the active ones wait again, and others may have become due or expired.
func sameQueue(saved, restored api.BackupQueue) bool {
	leftActive := restored.Waiting + restored.Failed + restored.Cancelled + restored.Expired - saved.Waiting - saved.Failed - saved.Cancelled - saved.Expired
	activeWait := restored.Active == 0 && leftActive == saved.Active
	return restored.Jobs() == saved.Jobs() && restored.Completed == saved.Completed && restored.Paused == saved.Paused &&
		(restored.Delayed < saved.Delayed || restored.Delayed == saved.Delayed && activeWait)
}

// AbandonRestore gives up the restore under way.
func (b *Server) AbandonRestore(ctx context.Context) (*api.RestoreReply, error) {
	r, err := b.startRestore(Plan{}, true)
	if err != nil {
		return nil, err
	}
	return r.runStep(ctx, r.abandon)
}

// abandon gives up the restore that is under way in the cluster, whichever client began
// it, and reopens the cluster as it was before.
func (r *restorer) abandon(ctx context.Context) error {
	defer r.cancel()
	if err := r.cfg.ReadBarrier(ctx); err != nil {
		return err
	}
	id, source := "", ""
	r.cfg.Ledger.View(func(l *ledger.Ledger) {
		id, source = l.Restoring()
		for _, lane := range l.Lanes() {
			r.freshLanes = append(r.freshLanes, lane.Identity)
		}
	})
	if id == "" {
		return &api.Error{Code: api.CodeConflict, Text: "no restore is under way in this yard; there is nothing to abandon"}
	}
	if _, err := r.clear(ctx, source, true, 0); err != nil {
		return err
	}
	return r.reopen(ctx)
}

// reopen creates the streams of the lanes that the cluster was founded with and ends the
// restore, which makes the cluster accept jobs again.
func (r *restorer) reopen(ctx context.Context) error {
	if err := r.ensureStreams(ctx, streams.Layout{Identities: r.freshLanes, Recreated: true}); err != nil {
		return err
	}
	return r.propose(ctx, &ledger.Restore{Stage: ledger.RestoreAbandon, ID: r.id})
}
