package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/yardmaster-dev/yardmaster/agent"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/cluster/lanes"
	"github.com/yardmaster-dev/yardmaster/cluster/replication"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/consensus"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/membership"
	"github.com/yardmaster-dev/yardmaster/scheduler"
	"github.com/yardmaster-dev/yardmaster/scheduler/outbox"
	"github.com/yardmaster-dev/yardmaster/server/authority"
)

// The adapters connect packages that do not import each other: each type here is one
// package's implementation of an interface that another package declares.

// laneAdapter implements the scheduler's lane interface.
type laneAdapter struct {
	*streams.Reader
	*streams.Admin
	*streams.Writer
	publisher     *lanes.Publisher
	replication   *replication.Replication
	node          string                  // this member's name
	shouldNotLead func(node string) bool  // reports whether a node should lead no lane
	behind        func(node string) bool  // reports whether a node should not become a leader yet
	identity      func(lane uint8) string // returns the identity of a lane's stream
}

// spreadTimeout bounds how long the lanes of a new cluster may take to elect their
// preferred leaders.
const spreadTimeout = 5 * time.Second

// Ensure checks the streams of the lanes, which have these identities, and spreads their
// leaders over the members. It first creates missing streams of later generations than
// created. In a new cluster, which has none, it returns when the leaders no longer move: the
// cluster accepts jobs only then.
func (l laneAdapter) Ensure(ctx context.Context, identities []string, created uint8) error {
	layout := streams.Layout{Identities: identities, Create: created < ledger.StreamGeneration, Created: created}
	if _, err := l.EnsureStreams(ctx, layout); err != nil {
		return decideError(err)
	}
	ctx, cancel := context.WithTimeout(ctx, spreadTimeout)
	defer cancel()
	behind := l.behind
	if created == 0 { // no member lacks anything, though they may not know it yet
		behind = func(string) bool { return false }
	}
	for {
		moves, err := l.replication.SpreadLeaders(ctx, l.node, l.shouldNotLead, behind)
		if err != nil {
			return fmt.Errorf("spread the lanes' leaders: %w", err)
		}
		if created > 0 || moves == 0 || backoff.Sleep(ctx, 100*time.Millisecond) != nil {
			return nil
		}
	}
}

// Bodies implements [scheduler.Lanes].
func (l laneAdapter) Bodies(ctx context.Context) ([]scheduler.StoredBody, error) {
	stored, err := l.Admin.Bodies(ctx)
	bodies := make([]scheduler.StoredBody, len(stored))
	for i, b := range stored {
		bodies[i] = scheduler.StoredBody(b)
	}
	return bodies, err
}

func (l laneAdapter) Info(ctx context.Context, lane uint8) (scheduler.LaneInfo, error) {
	info, err := l.LaneInfo(ctx, lane)
	return scheduler.LaneInfo{Identity: info.Identity, First: info.First, Last: info.Last, Bytes: info.Bytes, MaxBytes: uint64(max(info.MaxBytes, 0))}, decideError(err)
}

// decideError marks errors that only an operator can resolve: a stream was deleted or
// replaced, or no disk has enough free space.
func decideError(err error) error {
	_, isReplaced := errors.AsType[*streams.IdentityError](err)
	if isReplaced || errors.Is(err, streams.ErrStreamMissing) || errors.Is(err, streams.ErrStorageFull) {
		return &scheduler.OperatorError{Err: err}
	}
	return err
}

// Publish stores the record of a job that the authority itself creates.
func (l laneAdapter) Publish(queue, key string, at time.Time, body []byte, done func(error)) {
	l.publisher.Publish(queue, key, at, body, func(_ lanes.Ack, err error) { done(err) })
}

// Load returns the body of a record from its lane. With an id it also verifies that
// the record belongs to that job; without one it finds out whether the lane still has it.
func (l laneAdapter) Load(ctx context.Context, at job.Position, id job.ID) (body []byte, err error) {
	var r job.Record
	if id.IsZero() {
		r, err = l.ReloadRecord(ctx, at)
	} else {
		r, err = l.LoadVerified(ctx, at, id, l.identity(at.Lane))
	}
	if errors.Is(err, streams.ErrNotStored) {
		return nil, fmt.Errorf("lane %d at %d: %w", at.Lane, at.Seq, scheduler.ErrRecordGone)
	}
	return r.Body, err
}

// maxParallelLoads is how many records are loaded at the same time to relocate them.
const maxParallelLoads = 32

// Relocate copies the records of jobs to the stream of relocated records.
func (l laneAdapter) Relocate(ctx context.Context, lane uint8, floor, space uint64, needed []ledger.NeededRecord) (seqs []uint64, size uint64, err error) {
	records, identity := make([]job.Record, len(needed)), l.identity(lane)
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(maxParallelLoads)
	for i := range needed {
		group.Go(func() (err error) {
			records[i], err = l.LoadVerified(groupCtx, needed[i].Position(lane), needed[i].Job, identity)
			records[i].Owner = needed[i].Job
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, 0, err
	}
	for i := range records {
		added := streams.RelocatedSize(&records[i])
		if size+added > space {
			records = records[:i]
			break
		}
		size += added
	}
	seqs, err = l.StoreRelocated(ctx, floor, records)
	return seqs, size, err
}

// storeRetried stores copies of the records of jobs that are retried in the stream of
// relocated records, unless that would leave too little space to reclaim the stream.
func (n *Node) storeRetried(ctx context.Context, floor uint64, records []job.Record) (seqs []uint64, err error) {
	info, err := n.cluster.Reader.LaneInfo(ctx, job.RelocatedLane)
	if err != nil {
		return nil, err
	}
	size := info.Bytes
	for i := range records {
		size += streams.RelocatedSize(&records[i])
	}
	if limit := scheduler.RelocatedLimit(uint64(max(info.MaxBytes, 0))); limit > 0 && size > limit {
		return nil, &job.UnavailableError{
			Reason:     fmt.Sprintf("stream %s, which would have to keep the record of the retried job, holds %d of at most %d bytes for jobs that wait; it has space again once they run or are cancelled", subjects.StreamRelocated, info.Bytes, limit),
			RetryAfter: retryLater,
		}
	}
	return n.cluster.Writer.StoreRelocated(ctx, floor, records)
}

// retryLater is after what time to retry a job whose record could not be stored.
const retryLater = 5 * time.Second

// fleetAdapter implements the scheduler's interface to the nodes' agents.
type fleetAdapter struct{ *cluster.Fleet }

func (f fleetAdapter) Assign(node string, b job.AssignmentBatch, done func([]job.Answer, error)) {
	f.AssignAsync(node, b, done)
}

func (f fleetAdapter) Recall(node string, r job.Recall) {
	// A lost recall does no harm: the dispatch ends with its own outcome.
	_ = f.Fleet.Recall(node, r)
}

// outboxAdapter implements the scheduler's interface to the streams of the outbox.
type outboxAdapter struct {
	*streams.Writer
	reader *streams.Reader
}

var outboxStreams = [...]string{
	outbox.History: subjects.StreamEvents, outbox.Results: subjects.StreamResults, outbox.DeadLetters: subjects.StreamDLQ,
}

func (a outboxAdapter) LastPublished(ctx context.Context, s outbox.Stream) (seq, number uint64, err error) {
	return a.reader.LastPublished(ctx, outboxStreams[s])
}

// Append publishes a batch to one of the outbox's streams. The stream must end with the
// message number expect. done is called with the number of the new message, or an error.
func (a outboxAdapter) Append(s outbox.Stream, batch outbox.Batch, expect uint64, done func(uint64, error)) {
	subject := [...]string{subjects.History, subjects.Results, subjects.DLQSubject(batch.Queue)}[s]
	if !batch.BlobOwner.IsZero() {
		subject = subjects.DLQBlobSubject(batch.Queue, batch.BlobOwner)
	}
	a.AppendAsync(outboxStreams[s], streams.Batch{
		Subject: subject, ID: batch.ID, First: batch.First, Count: batch.Count, Header: batch.Header, Body: batch.Body,
	}, expect, func(seq uint64, err error) { done(seq, decideError(err)) })
}

func (a outboxAdapter) PublishLive(event, queue string, line []byte) {
	// A live view may miss a line: history has all of them.
	_ = a.Writer.PublishLive(event, queue, line)
}

// agentAdapter implements the agent's interface to the authority, which may be on
// this node.
type agentAdapter struct {
	*cluster.Fleet
	*streams.Writer
	authority *authority.Watch
	load      func(context.Context, job.Position, job.ID) ([]byte, error)
}

func (a agentAdapter) Authority() (string, uint64, bool) { return a.authority.Current() }
func (a agentAdapter) AuthorityChanged() <-chan struct{} { return a.authority.Changed() }

// LoadBody returns a job's body. The error is [agent.ErrBodyLost] if its record or blob is
// not stored any more or is damaged.
func (a agentAdapter) LoadBody(ctx context.Context, at job.Position, id job.ID) ([]byte, error) {
	body, err := a.load(ctx, at, id)
	_, isCorrupt := errors.AsType[*streams.CorruptBlobError](err)
	if isCorrupt || errors.Is(err, streams.ErrNotStored) {
		return nil, fmt.Errorf("%w: %w", agent.ErrBodyLost, err)
	}
	return body, err
}

// laneIdentities are the identities of the lanes in the local ledger.
type laneIdentities struct{ raft *consensus.Node }

// all returns the identities of all lanes, how far each is ingested, how many ids of
// forgotten jobs the ledger has, and whether it has as many queues as it may have.
func (i laneIdentities) all() (identities []string, cursors []uint64, ids lanes.Fill, queuesFull bool) {
	i.raft.View(func(l *ledger.Ledger) {
		queuesFull = l.QueuesFull()
		forgotten := l.ForgottenIDs()
		ids = lanes.Fill{Used: uint64(forgotten.Count), Max: uint64(forgotten.Max)}
		for _, lane := range l.Lanes() {
			identities, cursors = append(identities, lane.Identity), append(cursors, lane.Cursor)
		}
	})
	return identities, cursors, ids, queuesFull
}

// of returns the identity of a lane, or "".
func (i laneIdentities) of(lane uint8) (identity string) {
	i.raft.View(func(l *ledger.Ledger) {
		if all := l.Lanes(); int(lane) < len(all) {
			identity = all[lane].Identity
		}
	})
	return identity
}

// follow calls p.SetLaneIdentities with the identities of all lanes, as soon as the ledger
// has them and whenever they change, and p.SetIngested and p.SetForgottenIDs after each
// change of the ledger, until ctx ends. It also sets queuesFull then.
func (i laneIdentities) follow(ctx context.Context, p *lanes.Publisher, queuesFull *atomic.Bool) error {
	var current []string
	for {
		_, changed := i.raft.Applied()
		latest, cursors, ids, full := i.all()
		queuesFull.Store(full)
		if len(latest) > 0 && !slices.Equal(latest, current) {
			current = latest
			p.SetLaneIdentities(current)
		}
		p.SetIngested(cursors)
		p.SetForgottenIDs(ids)
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// voters returns a function that returns the names of the Raft voters, or the configured
// members if the group has no voters yet.
func voters(raft *consensus.Node, configured []string) func() []string {
	return func() []string {
		if names := raft.Status().Voters(); len(names) > 0 {
			return names
		}
		return configured
	}
}

// transferProposer returns the function that commits a command for
// [membership.Transferer], which handles a rejected command itself.
func transferProposer(c *authority.Client) func(context.Context, ledger.Command) (membership.Proposed, error) {
	return func(ctx context.Context, command ledger.Command) (membership.Proposed, error) {
		decision, err := c.Propose(ctx, command)
		if rejected, ok := errors.AsType[*authority.RejectedError](err); ok {
			return membership.Proposed{Index: decision.Index, Rejected: rejected}, nil
		}
		return membership.Proposed{Index: decision.Index, Event: decision.Event}, err
	}
}
