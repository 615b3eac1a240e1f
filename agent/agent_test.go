package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster-dev/yardmaster/job"
)

// fakeTransport is an authority that answers at once, unless a field says otherwise.
type fakeTransport struct {
	mu               sync.Mutex
	node             string
	epoch            uint64
	changed          chan struct{}
	lease            time.Duration
	down             bool // nothing is answered
	holdReports      chan struct{}
	holdOutcomesOnly bool // holdReports delays only reports with outcomes, as their commits do
	wantFull         bool // request all offers with the next heartbeat
	reports          []job.Report
	sentTo           []string
	heartbeats       []job.Heartbeat
	edges            []string       // in each heartbeat's acknowledgement
	lastBatch        uint64         // likewise
	ackSeq           uint64         // likewise
	heartbeatDelay   time.Duration  // how long an acknowledgement takes
	onHeartbeat      func()         // called before an acknowledgement
	settled          map[string]int // outcomes committed, by request id
	inFlight         int
	maxInFlight      int // maximum number of reports in flight
	bodies           map[job.Position][]byte
	loads            int
	loadErr          error
	onLoad           func() // called before a body is returned
	blobs            map[string][]byte
	blobErr          int   // number of StoreResult calls that fail
	storeErr         error // of all StoreResult calls after those, and of StoreError; nil: they succeed
	attemptErrors    []job.AttemptError
	errorCalls       int
}

func newFakeTransport() *fakeTransport {
	return &fakeTransport{
		node: "n1", epoch: 5, changed: make(chan struct{}), lease: 6 * time.Second,
		settled: map[string]int{}, bodies: map[job.Position][]byte{}, blobs: map[string][]byte{},
	}
}

func (b *fakeTransport) Authority() (string, uint64, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.node, b.epoch, b.node != ""
}

func (b *fakeTransport) AuthorityChanged() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}

func (b *fakeTransport) change(fn func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fn()
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *fakeTransport) set(fn func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fn()
}

var errDown = errors.New("no answer")

func (b *fakeTransport) Report(ctx context.Context, node string, r job.Report) (job.ReportAck, error) {
	b.mu.Lock()
	b.reports = append(b.reports, r)
	b.sentTo = append(b.sentTo, node)
	b.inFlight++
	b.maxInFlight = max(b.maxInFlight, b.inFlight)
	hold := b.holdReports
	if b.holdOutcomesOnly && len(r.Outcomes) == 0 {
		hold = nil
	}
	b.mu.Unlock()
	defer func() { b.set(func() { b.inFlight-- }) }()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return job.ReportAck{}, ctx.Err()
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		return job.ReportAck{}, errDown
	}
	ack := job.ReportAck{Epoch: b.epoch}
	for _, o := range r.Outcomes {
		id := job.RequestID(o.Job, o.N)
		b.settled[id]++
		ack.Settled = append(ack.Settled, job.Settled{Duplicate: b.settled[id] > 1, State: job.Completed})
	}
	return ack, nil
}

func (b *fakeTransport) Heartbeat(_ context.Context, _ string, beat job.Heartbeat) (job.HeartbeatAck, error) {
	b.mu.Lock()
	slow, onHeartbeat := b.heartbeatDelay, b.onHeartbeat
	b.mu.Unlock()
	time.Sleep(slow)
	if onHeartbeat != nil {
		onHeartbeat()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.heartbeats = append(b.heartbeats, beat)
	if b.down {
		return job.HeartbeatAck{}, errDown
	}
	full := b.wantFull
	b.wantFull = false
	return job.HeartbeatAck{Epoch: b.epoch, Lease: b.lease, WantFull: full, Seq: b.ackSeq, LastBatch: b.lastBatch, Edges: b.edges}, nil
}

func (b *fakeTransport) LoadBody(ctx context.Context, pos job.Position, _ job.ID) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.loads++
	if b.onLoad != nil {
		b.onLoad()
	}
	if b.loadErr != nil {
		return nil, b.loadErr
	}
	body, ok := b.bodies[pos]
	if !ok {
		return nil, fmt.Errorf("lane %d: %w", pos.Lane, ErrBodyLost)
	}
	return body, nil
}

func (b *fakeTransport) StoreResult(_ context.Context, name string, data []byte) (job.Blob, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.blobErr > 0 {
		b.blobErr--
		return job.Blob{}, errDown
	}
	if b.storeErr != nil {
		return job.Blob{}, b.storeErr
	}
	b.blobs[name] = data
	return job.Blob{Name: name, Chunks: 1, Size: int64(len(data))}, nil
}

func (b *fakeTransport) StoreError(_ context.Context, id job.ID, e *job.AttemptError) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.errorCalls++
	if b.storeErr != nil {
		return b.storeErr
	}
	b.attemptErrors = append(b.attemptErrors, *e)
	return nil
}

// outcomes returns all reported outcomes, in order.
func (b *fakeTransport) outcomes() []job.Outcome {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []job.Outcome
	for _, r := range b.reports {
		all = append(all, r.Outcomes...)
	}
	return all
}

// lastOffers returns the capacity according to the reports so far.
func (b *fakeTransport) lastOffers() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	free := map[string]int{}
	for _, r := range b.reports {
		if r.Rev == 0 {
			continue
		}
		if r.Full {
			clear(free)
		}
		for _, o := range r.Offers {
			if free[o.Worker] = o.Free; o.Free == 0 {
				delete(free, o.Worker)
			}
		}
	}
	return free
}

// fakeTarget records the calls of its methods.
type fakeTarget struct {
	lastMoveIndex uint64 // of the last recall
	lastMessage   string // of the last recall
	mu            sync.Mutex
	full          bool
	started       []string
	stopped       []string
	onStop        func(id job.ID, n uint32, why job.RecallReason)
	onStart       func(job.Assignment)
}

func (f *fakeTarget) Kind() job.Kind { return job.Overhop }

func (f *fakeTarget) Start(a job.Assignment, spec job.Spec) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.full {
		return false
	}
	f.started = append(f.started, a.RequestID()+" "+spec.Function)
	if f.onStart != nil {
		f.onStart(a)
	}
	return true
}

func (f *fakeTarget) Stop(r job.Recall) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopped = append(f.stopped, job.RequestID(r.Job, r.N)+" "+string(r.Reason))
	f.lastMoveIndex, f.lastMessage = r.MoveIndex, r.Message
	if f.onStop != nil {
		f.onStop(r.Job, r.N, r.Reason)
	}
}

func (f *fakeTarget) seen() (started, stopped []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.started...), append([]string(nil), f.stopped...)
}

// harness is a running agent in a bubble of testing/synctest.
type harness struct {
	*Agent
	transport *fakeTransport
	target    *fakeTarget
	stop      context.CancelFunc
	done      chan error
}

func inBubble(t *testing.T, cfg Config, test func(t *testing.T, b *harness)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &harness{transport: newFakeTransport(), target: &fakeTarget{}, done: make(chan error, 1)}
		cfg.Node, cfg.Incarnation = "n2", 3
		b.Agent = New(cfg, b.transport, slog.New(slog.DiscardHandler))
		b.AddTarget(b.target)
		ctx, cancel := context.WithCancel(t.Context())
		b.stop = cancel
		go func() { b.done <- b.Run(ctx) }()
		synctest.Wait()
		test(t, b)
		cancel()
		if err := <-b.done; err != nil {
			t.Error(err)
		}
	})
}

// advance sleeps for d, until all goroutines of the bubble are blocked again.
func advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (b *harness) finish(i byte) {
	b.Report(job.Outcome{Job: job.ID{i}, N: 1, Status: job.Success, Started: true}, nil)
}

const body = `{"function":"send"}`

func assignment(i byte) job.Assignment {
	return job.Assignment{Job: job.ID{i}, N: 1, Kind: job.Overhop, Key: "mail", Worker: "w", Body: []byte(body)}
}

func batch(number uint64, assignments ...job.Assignment) job.AssignmentBatch {
	return job.AssignmentBatch{Epoch: 5, Number: number, Assignments: assignments}
}

func requestID(i byte) string { return job.RequestID(job.ID{i}, 1) }

func wantEqual(t *testing.T, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestLease_ExpiryStopsWork(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		b.Offer(job.Offer{Kind: job.Overhop, Key: "mail", Worker: "w", Free: 2})
		b.Assign(batch(1, assignment(1), assignment(2)))
		b.finish(2)
		advance(10 * time.Second) // acknowledged heartbeats extend the lease
		_, stopped := b.target.seen()
		wantEqual(t, "stopped under a lease", stopped, []string(nil))
		b.transport.set(func() { b.transport.down = true })
		end := b.Lease()
		advance(time.Until(end) - time.Millisecond)
		_, stopped = b.target.seen()
		wantEqual(t, "stopped too early", stopped, []string(nil))
		advance(time.Millisecond)
		synctest.Wait()
		_, stopped = b.target.seen()
		wantEqual(t, "stopped", stopped, []string{requestID(1) + " LEASE_EXPIRED"})
		wantEqual(t, "assigned without a lease", b.Assign(batch(2, assignment(3))), []job.Answer{job.NoCapacity})
		b.finish(1)
		reports := len(b.transport.reports)
		b.transport.set(func() { b.transport.down, b.transport.lastBatch = false, 3 })
		advance(2 * time.Second)
		wantEqual(t, "meant for the previous lease", b.Assign(batch(3, assignment(5))), []job.Answer{job.NoCapacity})
		wantEqual(t, "assigned under the next lease", b.Assign(batch(4, assignment(3), assignment(4))), []job.Answer{job.NoCapacity, job.Taken})
		full := false
		for _, r := range b.transport.reports[reports:] {
			full = full || r.Full
		}
		if !full {
			t.Error("the offers were not sent again")
		}
		b.finish(3)
	})
}

// TestLease_ExpiredWhileFrozen checks that a node that was frozen until after the end of
// its lease stops its work, although a new lease arrives before it has noticed the end.
func TestLease_ExpiredWhileFrozen(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		b.Assign(batch(1, assignment(1)))
		b.transport.set(func() {
			b.transport.lastBatch = 2
			b.transport.onHeartbeat = sync.OnceFunc(func() { // the process continues here
				b.mu.Lock()
				defer b.mu.Unlock()
				b.lease.until = time.Now()
			})
		})
		advance(2 * time.Second)
		_, stopped := b.target.seen()
		wantEqual(t, "stopped", stopped, []string{requestID(1) + " LEASE_EXPIRED"})
		wantEqual(t, "meant for the previous lease", b.Assign(batch(2, assignment(2))), []job.Answer{job.NoCapacity})
		wantEqual(t, "assigned under the next lease", b.Assign(batch(3, assignment(3))), []job.Answer{job.Taken})
		b.finish(1)
		b.finish(3)
	})
}

// TestLease_ExpiryOverridesRecall checks that an expired lease stops at once
// what was recalled gracefully before, and that targets get no other recall
// twice.
func TestLease_ExpiryOverridesRecall(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		b.Assign(batch(1, assignment(1)))
		for _, reason := range []job.RecallReason{job.RecallCancelled, job.RecallQueueGone, job.RecallCancelled} {
			b.Recall(job.Recall{Epoch: 5, Job: assignment(1).Job, N: assignment(1).N, Reason: reason})
		}
		b.transport.set(func() { b.transport.down = true })
		advance(time.Until(b.Lease()))
		b.Recall(job.Recall{Epoch: 5, Job: assignment(1).Job, N: assignment(1).N, Reason: job.RecallShutdown})
		_, stopped := b.target.seen()
		wantEqual(t, "stopped", stopped, []string{requestID(1) + " CANCELLED", requestID(1) + " LEASE_EXPIRED"})
		b.finish(1)
	})
}

func TestLease_IgnoresEarlierAuthority(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		next := batch(1, assignment(1))
		next.Epoch = 9
		b.Assign(next) // this node's ledger still names the previous authority
		before := b.Lease()
		advance(3 * time.Second)
		wantEqual(t, "lease", b.Lease(), before)
		b.finish(1)
	})
}

func TestLease_CountsFromSendTime(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		b.transport.set(func() { b.transport.heartbeatDelay = 400 * time.Millisecond })
		advance(5*time.Second + 500*time.Millisecond) // the last heartbeat was sent half a second ago
		if left := time.Until(b.Lease()); left != 5500*time.Millisecond {
			t.Errorf("lease of 6s has %v left after 500ms", left)
		}
	})
}

func TestRun_Drains(t *testing.T) {
	inBubble(t, Config{DrainTimeout: 10 * time.Second, StopTimeout: 3 * time.Second}, func(t *testing.T, b *harness) {
		b.Assign(batch(1, assignment(1), assignment(2)))
		b.target.onStop = func(id job.ID, n uint32, reason job.RecallReason) {
			go b.Report(job.Outcome{Job: id, N: n, Status: job.Interrupted, Started: true}, nil)
		}
		begun := time.Now()
		b.stop()
		advance(4 * time.Second)
		b.finish(1) // within DrainTimeout
		err := <-b.done
		if took := time.Since(begun); took != 10*time.Second {
			t.Errorf("drained in %v", took)
		}
		_, stopped := b.target.seen()
		wantEqual(t, "stopped", stopped, []string{requestID(2) + " SHUTDOWN"})
		wantEqual(t, "settled", b.transport.settled, map[string]int{requestID(1): 1, requestID(2): 1})
		b.done <- err
	})
}

func TestRun_DrainsInBoundedTime(t *testing.T) {
	inBubble(t, Config{DrainTimeout: 2 * time.Second, StopTimeout: time.Second}, func(t *testing.T, b *harness) {
		b.Assign(batch(1, assignment(1), assignment(2)))
		b.transport.set(func() { b.transport.down = true })
		b.finish(1)
		begun := time.Now()
		b.stop()
		err := <-b.done // dispatch 2 never ends, outcome 1 is never acknowledged
		if took := time.Since(begun); took != 4*time.Second {
			t.Errorf("gave up after %v", took)
		}
		b.done <- err
	})
}

// TestHeartbeat_Edges checks that heartbeats carry this node's edge and bring
// the edges of other nodes.
func TestHeartbeat_Edges(t *testing.T) {
	inBubble(t, Config{Edge: "n2:9876"}, func(t *testing.T, b *harness) {
		wantEqual(t, "edges before any heartbeat", b.Edges(), []string(nil))
		b.transport.set(func() { b.transport.edges = []string{"n1:9876", "n3:9876"} })
		advance(time.Second)
		wantEqual(t, "edges", b.Edges(), []string{"n1:9876", "n3:9876"})
		b.transport.set(func() { b.transport.down = true; b.transport.edges = nil })
		advance(time.Second)
		wantEqual(t, "edges without an answer", b.Edges(), []string{"n1:9876", "n3:9876"})
		b.transport.set(func() {
			for _, beat := range b.transport.heartbeats {
				wantEqual(t, "edge in the heartbeat", beat.Edge, "n2:9876")
			}
			b.transport.down = false
		})
	})
}
