package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"yardmaster/agent"
	"yardmaster/cluster"
	"yardmaster/consensus"
	"yardmaster/job"
	"yardmaster/ledger"
	"yardmaster/scheduler"
)

// What the rooms ask of each other, bound to what they offer.

// agreement is consensus as the scheduler needs it.
type agreement struct{ *consensus.Node }

func (a agreement) Submit(p scheduler.Proposal) (func(context.Context) (scheduler.Commit, error), error) {
	pending, err := a.Node.Submit(consensus.Proposal(p))
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (scheduler.Commit, error) {
		c, err := pending.Wait(ctx)
		return scheduler.Commit{Index: c.Index, Results: c.Results}, err
	}, nil
}

// lanes are the cluster's job lanes as the scheduler needs them.
type lanes struct {
	*cluster.Cluster
	poor     func(node string) bool // who is to lead no lane
	identity func(lane uint8) string
}

// spreadTime bounds how long leaders may take to move when a yard is new.
const spreadTime = 5 * time.Second

func (l lanes) Ensure(ctx context.Context, identities []string, create bool) error {
	_, err := l.EnsureStreams(ctx, cluster.Layout{Identities: identities, Create: create})
	if err != nil {
		return decidable(err)
	}
	ctx, cancel := context.WithTimeout(ctx, spreadTime)
	defer cancel()
	for moves := 1; moves > 0; {
		if moves, err = l.SpreadLeaders(ctx, l.Node(), l.poor); err != nil {
			return fmt.Errorf("spread the lanes' leaders: %w", err)
		}
		if !create || moves == 0 {
			return nil
		}
		select { // a new yard opens its doors once its leaders stay where they are
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

func (l lanes) Info(ctx context.Context, lane uint8) (scheduler.Lane, error) {
	info, err := l.LaneInfo(ctx, lane)
	return scheduler.Lane{Identity: info.Identity, Leader: info.Leader, First: info.First, Last: info.Last, Bytes: info.Bytes, MaxBytes: uint64(max(info.MaxBytes, 0))}, decidable(err)
}

// decidable marks the errors that time does not mend: a stream that was made is
// gone or is another one, or no disk has room.
func decidable(err error) error {
	var identity *cluster.IdentityError
	if errors.Is(err, cluster.ErrStreamMissing) || errors.Is(err, cluster.ErrFull) || errors.As(err, &identity) {
		return &scheduler.DecideError{Err: err}
	}
	return err
}

// Publish stores the record of a job that the authority itself makes.
func (l lanes) Publish(queue, key string, at time.Time, body []byte, done func(job.Position, bool, error)) {
	l.Cluster.Publish(queue, key, at, body, func(a cluster.Ack, err error) { done(a.Position, !a.Duplicate, err) })
}

// Load gives a record's body as it lies in the lane.
func (l lanes) Load(ctx context.Context, at job.Position, id job.ID) (body []byte, err error) {
	var r job.Record
	if id.IsZero() {
		r, err = l.LoadRecord(ctx, at)
	} else {
		r, err = l.LoadOwn(ctx, at, id, l.identity(at.Lane))
	}
	if errors.Is(err, cluster.ErrNotStored) {
		return nil, fmt.Errorf("lane %d at %d: %w", at.Lane, at.Seq, scheduler.ErrRecordGone)
	}
	return r.Body, err
}

// orders carries the authority's orders to nodes.
type orders struct{ *cluster.Fleet }

func (o orders) Assign(node string, b job.Batch, done func([]job.Answer, error)) {
	o.AssignAsync(node, b, done)
}

func (o orders) Recall(node string, r job.Recall) {
	// A recall that gets lost is followed by the job's own end.
	_ = o.Fleet.Recall(node, r)
}

// tales are the streams that the outbox is told to.
type tales struct{ *cluster.Cluster }

var storyStreams = [...]string{
	scheduler.History: cluster.StreamEvents, scheduler.Results: cluster.StreamResults, scheduler.DeadLetters: cluster.StreamDLQ,
}

func (t tales) LastTold(ctx context.Context, s scheduler.Story) (seq, number uint64, err error) {
	return t.Cluster.LastTold(ctx, storyStreams[s])
}

func (t tales) Append(s scheduler.Story, tale scheduler.Tale, expect uint64, done func(uint64, error)) {
	subject := [...]string{cluster.SubjectHistory, cluster.SubjectResults, cluster.DLQSubject(tale.Queue)}[s]
	t.AppendAsync(storyStreams[s], cluster.Tale{
		Subject: subject, ID: tale.ID, First: tale.First, Count: tale.Count, Header: tale.Header, Body: tale.Body,
	}, expect, func(seq uint64, err error) { done(seq, decidable(err)) })
}

// bus carries what the agent says to the authority, which may be this node.
type bus struct {
	fleet    *cluster.Fleet
	messages *cluster.Cluster
	watch    *authorityWatch
	load     func(context.Context, job.Position, job.ID) ([]byte, error)
}

func (b bus) Authority() (string, uint64, bool) { return b.watch.authority() }
func (b bus) AuthorityChanged() <-chan struct{} { return b.watch.changed() }
func (b bus) StoreBlob(ctx context.Context, name string, data []byte) (job.Blob, error) {
	return b.messages.StoreBlob(ctx, name, data)
}

func (b bus) Report(ctx context.Context, node string, r job.Report) (job.ReportAck, error) {
	return b.fleet.Report(ctx, node, r)
}

func (b bus) Beat(ctx context.Context, node string, beat job.Beat) (job.BeatAck, error) {
	return b.fleet.Beat(ctx, node, beat)
}

func (b bus) Load(ctx context.Context, at job.Position, id job.ID) ([]byte, error) {
	body, err := b.load(ctx, at, id)
	var corrupt *cluster.CorruptBlobError
	if errors.Is(err, cluster.ErrNotStored) || errors.As(err, &corrupt) {
		return nil, fmt.Errorf("%w: %w", agent.ErrBodyLost, err)
	}
	return body, err
}

// identitiesOf are the lanes' identities.
func identitiesOf(l *ledger.Ledger) (identities []string) {
	for _, lane := range l.Lanes() {
		identities = append(identities, lane.Identity)
	}
	return identities
}

// laneIdentity is a lane's identity, as the local ledger has it.
func (n *Node) laneIdentity(lane uint8) (identity string) {
	n.raft.View(func(l *ledger.Ledger) {
		if all := l.Lanes(); int(lane) < len(all) {
			identity = all[lane].Identity
		}
	})
	return identity
}

// loadBody reads a job's body.
func (n *Node) loadBody(ctx context.Context, at job.Position, id job.ID) ([]byte, error) {
	return n.messages.Load(ctx, at, id, n.laneIdentity(at.Lane))
}

// authorityWatch follows who holds the authority, as the local ledger has it.
type authorityWatch struct {
	mu    sync.Mutex
	owner string
	epoch uint64
	next  chan struct{}

	changes int // since this node knew an epoch
}

func newAuthorityWatch() *authorityWatch { return &authorityWatch{next: make(chan struct{})} }

func (w *authorityWatch) authority() (string, uint64, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.owner, w.epoch, w.owner != ""
}

// holder is who has the authority, and what is closed when that changes.
func (w *authorityWatch) holder() (owner string, changed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.owner, w.next
}

// seen tells how often another epoch has come.
func (w *authorityWatch) seen() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changes
}

func (w *authorityWatch) changed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.next
}

// run looks at the ledger after every applied entry.
func (w *authorityWatch) run(ctx context.Context, raft *consensus.Node) error {
	for {
		_, changed := raft.Applied()
		var a ledger.Authority
		raft.View(func(l *ledger.Ledger) { a = l.Authority() })
		w.set(a.Owner, a.Epoch)
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

func (w *authorityWatch) set(owner string, epoch uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if epoch == w.epoch {
		return
	}
	if w.epoch != 0 {
		w.changes++
	}
	w.owner, w.epoch = owner, epoch
	close(w.next)
	w.next = make(chan struct{})
}

func (t tales) Live(event, queue string, line []byte) {
	// Whoever watches may miss a line: history has it.
	_ = t.Cluster.Live(event, queue, line)
}
