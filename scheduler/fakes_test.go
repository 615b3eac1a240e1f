package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler/outbox"
)

// fakeRaft is a ledger with a log in memory: entries are applied in order, each after
// a delay.
type fakeRaft struct {
	t     testing.TB
	delay time.Duration

	mu          sync.Mutex
	ledger      *ledger.Ledger
	index       uint64
	term        uint64
	log         []logged
	lost        bool // leadership is lost: submits fail
	stuck       bool // nothing is committed, and no error is returned
	inFlight    int
	maxInFlight int           // maximum number of entries in flight
	passed      time.Duration // since the last entry, as far as this node knows
	queue       chan *proposed
	check       func(*ledger.Ledger) // called after each entry
}

// logged is an applied entry.
type logged struct {
	Proposal
	submitted, applied time.Time
	results            []ledger.Result
}

type proposed struct {
	Proposal
	at     time.Time
	done   chan struct{}
	commit Commit
	err    error
}

var errNotLeader = errors.New("leadership is lost")

func newFakeRaft(t testing.TB) *fakeRaft {
	return &fakeRaft{t: t, ledger: ledger.New(), term: 1, queue: make(chan *proposed, 64), delay: 2 * time.Millisecond}
}

func (r *fakeRaft) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case p := <-r.queue:
			r.mu.Lock()
			delay := r.delay
			r.mu.Unlock()
			if wait := delay - time.Since(p.at); wait > 0 {
				backoff.Sleep(ctx, wait)
			}
			r.apply(p)
		}
	}
}

func (r *fakeRaft) apply(p *proposed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inFlight--
	switch {
	case r.stuck:
		return
	case r.lost:
		p.err = errNotLeader
	default:
		r.index++
		at := ledger.Stamp{Index: r.index, Term: r.term, At: p.At, Offsets: p.Offsets, Epoch: p.Epoch}
		p.commit = Commit{Index: r.index, Results: r.ledger.Apply(at, p.Commands)}
		r.log = append(r.log, logged{p.Proposal, p.at, time.Now(), p.commit.Results})
		if r.check != nil {
			r.check(r.ledger)
		}
	}
	close(p.done)
}

func (r *fakeRaft) Submit(p Proposal) (func(context.Context) (Commit, error), error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost {
		return nil, errNotLeader
	}
	r.inFlight++
	r.maxInFlight = max(r.maxInFlight, r.inFlight)
	e := &proposed{Proposal: p, at: time.Now(), done: make(chan struct{})}
	r.queue <- e
	return func(ctx context.Context) (Commit, error) {
		select {
		case <-e.done:
			return e.commit, e.err
		case <-ctx.Done():
			return Commit{}, ctx.Err()
		}
	}, nil
}

func (r *fakeRaft) View(fn func(*ledger.Ledger)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fn(r.ledger)
}

func (r *fakeRaft) Passed(*ledger.Ledger) time.Duration { return r.passed }

func (r *fakeRaft) Copy() *ledger.Ledger {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ledger.Copy()
}

// set changes the fake's behaviour.
func (r *fakeRaft) set(fn func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fn()
}

// entries returns the log.
func (r *fakeRaft) entries() []logged {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.log)
}

// commandsOf returns the commands of one type in entries.
func commandsOf[C ledger.Command](entries []logged) (found []C) {
	for _, e := range entries {
		for _, c := range e.Commands {
			if c, ok := c.(C); ok {
				found = append(found, c)
			}
		}
	}
	return found
}

// fakeLanes are lanes in memory.
type fakeLanes struct {
	mu        sync.Mutex
	lanes     []*fakeLane
	created   bool // the streams exist
	down      error
	reads     int
	readsFail bool   // reads fail, other calls succeed
	max       uint64 // bytes of a lane; 0: no limit
	ensureErr error  // returned by Ensure

	relocateErr error  // returned by Relocate
	recordSize  uint64 // reported size of a record, in bytes

	relocated fakeLane

	bodies     map[string]StoredBody // stored as blobs, by name
	removeErr  error                 // of RemoveBody
	removeTime time.Duration         // that RemoveBody takes
	letters    map[job.ID]bool       // owners of bodies that dead letters refer to
	onLetters  func()                // called before the owners are listed, once
	maxBodies  uint64                // bytes of bodies; 0: no limit

	retention    job.Retention // last applied
	applications int           // of retention
	retentionErr error         // of ApplyRetention
	evictions    []eviction

	tailEnds chan struct{}      // closed to make Tail return an error
	notify   func([]job.Record) // is passed what Publish has stored
}

type fakeLane struct {
	identity string
	first    uint64                  // first sequence that is not purged
	records  []job.Record            // the first record of each message
	more     map[uint64][]job.Record // the others, by sequence
	lost     map[uint64]bool         // sequences of missing messages
	down     bool                    // it cannot be read
}

// record returns the record at a position.
func (l *fakeLane) record(seq uint64, index uint8) job.Record {
	if index == 0 {
		return l.records[seq-1]
	}
	return l.more[seq][index-1]
}

func (l *fakeLanes) Ensure(_ context.Context, identities []string, created uint8) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ensureErr != nil || created > 0 {
		return l.ensureErr
	}
	l.created = true
	for i, identity := range identities {
		if i == len(l.lanes) {
			l.lanes = append(l.lanes, &fakeLane{first: 1})
		}
		l.lanes[i].identity = identity
	}
	return nil
}

func (l *fakeLanes) Info(_ context.Context, number uint8) (LaneInfo, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down != nil {
		return LaneInfo{}, l.down
	}
	if number != job.RelocatedLane && (int(number) >= len(l.lanes) || l.lanes[number].identity == "") {
		return LaneInfo{}, &OperatorError{errors.New("no such stream")}
	}
	lane := l.lane(number)
	if lane.down {
		return LaneInfo{}, errors.New("no answer")
	}
	return LaneInfo{
		Identity: lane.identity, First: lane.first, Last: uint64(len(lane.records)), Bytes: lane.size() * l.recordSize, MaxBytes: l.max,
	}, nil
}

// size returns how many records are kept.
func (l *fakeLane) size() uint64 { return uint64(len(l.records)) + 1 - l.first }

func (l *fakeLanes) Purge(_ context.Context, number uint8, below uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	lane := l.lane(number)
	lane.first = max(lane.first, min(below, uint64(len(lane.records))))
	return nil
}

// lane returns a lane or, for [job.RelocatedLane], the stream of relocated records. The
// caller holds l.mu.
func (l *fakeLanes) lane(number uint8) *fakeLane {
	if number == job.RelocatedLane {
		l.relocated.first = max(l.relocated.first, 1)
		return &l.relocated
	}
	return l.lanes[number]
}

func (l *fakeLanes) Relocate(_ context.Context, number uint8, _, space uint64, needed []ledger.NeededRecord) (seqs []uint64, size uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lane := l.lane(number)
	for _, n := range needed {
		if l.relocateErr != nil {
			return seqs, size, l.relocateErr
		}
		if n.Seq < lane.first {
			return seqs, size, ErrRecordGone
		}
		if size+l.recordSize > space {
			break
		}
		if l.max > 0 && l.lane(job.RelocatedLane).size()*l.recordSize >= l.max {
			return seqs, size, errors.New("no space is left")
		}
		r, to := lane.record(n.Seq, n.Index), uint64(len(l.relocated.records))+1
		r.Position, r.Owner = job.Position{Lane: job.RelocatedLane, Seq: to}, n.Job
		l.relocated.records = append(l.relocated.records, r)
		seqs, size = append(seqs, to), size+l.recordSize
	}
	return seqs, size, nil
}

func (l *fakeLanes) Bodies(context.Context) ([]StoredBody, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Values(l.bodies)), l.down
}

func (l *fakeLanes) DeadLetterBodies(context.Context) (map[job.ID]bool, error) {
	l.mu.Lock()
	hook := l.onLetters
	l.onLetters = nil
	l.mu.Unlock()
	if hook != nil {
		hook()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.letters), l.down
}

func (l *fakeLanes) RemoveBody(_ context.Context, name string) error {
	l.mu.Lock()
	wait := l.removeTime
	l.mu.Unlock()
	time.Sleep(wait) // without mu: a goroutine that waits for it would stop the bubble's time
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.removeErr == nil {
		delete(l.bodies, name)
	}
	return l.removeErr
}

func (l *fakeLanes) Served(context.Context, uint8) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.down == nil
}

func (l *fakeLanes) Read(_ context.Context, number uint8, from uint64, limit int) ([]job.Record, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reads++
	if l.down != nil {
		return nil, l.down
	}
	if l.readsFail {
		return nil, errors.New("no answer")
	}
	lane := l.lanes[number]
	if lane.down {
		return nil, errors.New("no answer")
	}
	if from < lane.first {
		return nil, fmt.Errorf("lane %d has no record %d", number, from)
	}
	if from > uint64(len(lane.records)) {
		return nil, nil
	}
	if lane.lost[from] {
		return nil, fmt.Errorf("lane %d has no record %d", number, from)
	}
	var records []job.Record
	for i, r := range lane.records[from-1:] {
		if i == limit || lane.lost[r.Seq] {
			break
		}
		records = append(append(records, r), lane.more[r.Seq]...)
	}
	return records, nil
}

// Publish is acknowledged a millisecond later, unless the lanes are down.
func (l *fakeLanes) Publish(queue, key string, _ time.Time, body []byte, done func(error)) {
	l.mu.Lock()
	err := l.down
	l.mu.Unlock()
	var records []job.Record
	if err == nil {
		records = append(records, l.store(0, queue, key, string(body)))
	}
	time.AfterFunc(time.Millisecond, func() {
		l.notify(records)
		done(err)
	})
}

func (l *fakeLanes) Tail(ctx context.Context, _ func(job.Record)) error {
	select {
	case <-ctx.Done():
		return nil
	case <-l.tailEnds:
		return errors.New("the subscription broke")
	}
}

func (l *fakeLanes) AttemptError(context.Context, job.ID, uint32) (*job.AttemptError, error) {
	return nil, errors.New("not stored")
}

func (l *fakeLanes) Load(_ context.Context, at job.Position, _ job.ID) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lane := l.lane(at.Lane)
	if lane.identity == "" && !at.Relocated() {
		return nil, errors.New("no such stream")
	}
	if at.Seq < lane.first || at.Seq > uint64(len(lane.records)) || lane.lost[at.Seq] {
		return nil, ErrRecordGone
	}
	return lane.record(at.Seq, at.Index).Body, nil
}

// store appends a record to a lane.
func (l *fakeLanes) store(number uint8, queue, key, body string) job.Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.lanes) <= int(number) {
		l.lanes = append(l.lanes, &fakeLane{first: 1})
	}
	lane := l.lanes[number]
	r := job.Record{
		Position: job.Position{Lane: number, Seq: uint64(len(lane.records)) + 1},
		Queue:    queue, Key: key, Stored: time.Now(), Body: []byte(body), Last: true,
	}
	lane.records = append(lane.records, r)
	return r
}

// storePacked appends a message with several records to lane 0.
func (l *fakeLanes) storePacked(queue string, bodies ...string) []job.Record {
	records := []job.Record{l.store(0, queue, "", bodies[0])}
	l.mu.Lock()
	defer l.mu.Unlock()
	lane, seq := l.lanes[0], records[0].Seq
	for i, body := range bodies[1:] {
		r := records[0]
		r.Index, r.Body = uint8(i+1), []byte(body)
		records = append(records, r)
	}
	for i := range records {
		records[i].Last = i == len(bodies)-1
	}
	lane.records[seq-1] = records[0]
	if lane.more == nil {
		lane.more = map[uint64][]job.Record{}
	}
	lane.more[seq] = records[1:]
	return records
}

func (l *fakeLanes) set(fn func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fn()
}

// fakeStreams are the outbox's streams. They fail the test on a gap or a duplicate.
type fakeStreams struct {
	t testing.TB

	mu           sync.Mutex
	batches      [3][]outbox.Batch
	down         bool   // nothing is stored
	faults       string // faults of the next messages: 'k' stored and not acknowledged, 'r' refused, '.' none
	lines        []string
	watched      bool
	watchedCalls int // number of calls of HasSubscribers
}

var errWrongLast = errors.New("the stream ends elsewhere")

func (f *fakeStreams) LastPublished(_ context.Context, s outbox.Stream) (seq, number uint64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return 0, 0, errors.New("no leader")
	}
	tales := f.batches[s]
	if len(tales) == 0 {
		return 0, 0, nil
	}
	last := tales[len(tales)-1]
	return uint64(len(tales)), last.First + last.Count - 1, nil
}

func (f *fakeStreams) Append(s outbox.Stream, t outbox.Batch, expect uint64, done func(uint64, error)) {
	f.mu.Lock()
	seq, err := f.append(s, t, expect)
	f.mu.Unlock()
	time.AfterFunc(time.Millisecond, func() { done(seq, err) })
}

func (f *fakeStreams) append(s outbox.Stream, t outbox.Batch, expect uint64) (uint64, error) {
	fault := byte('.')
	if f.faults != "" {
		fault, f.faults = f.faults[0], f.faults[1:]
	}
	tales := f.batches[s]
	switch {
	case f.down || fault == 'r':
		return 0, errors.New("refused")
	case expect != uint64(len(tales)):
		return 0, errWrongLast
	}
	next := uint64(1)
	if n := len(tales); n > 0 {
		next = tales[n-1].First + tales[n-1].Count
	}
	if t.First != next || t.Count == 0 {
		f.t.Errorf("%s: %d items from number %d on, want from %d on", s, t.Count, t.First, next)
	}
	f.batches[s] = append(tales, t)
	if fault == 'k' {
		return 0, errors.New("no answer")
	}
	return uint64(len(tales)) + 1, nil
}

func (f *fakeStreams) HasSubscribers(string, string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watchedCalls++
	return f.watched
}

func (f *fakeStreams) PublishLive(event, _ string, _ []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lines = append(f.lines, event)
}

// published returns the batches of a stream.
func (f *fakeStreams) published(s outbox.Stream) []outbox.Batch {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.batches[s])
}

// itemCount returns the number of items in a stream.
func (f *fakeStreams) itemCount(s outbox.Stream) (n uint64) {
	for _, t := range f.published(s) {
		n += t.Count
	}
	return n
}

func (f *fakeStreams) set(fn func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn()
}
