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

	"yardmaster/job"
)

// fakeBus is an authority that answers at once, unless it is told otherwise.
type fakeBus struct {
	mu      sync.Mutex
	node    string
	epoch   uint64
	changed chan struct{}
	lease   time.Duration
	down    bool // nothing is answered
	hold    chan struct{}
	quick   bool // hold holds back only what has outcomes, as their commits do
	full    bool // ask for all offers with the next beat
	reports []job.Report
	sentTo  []string
	beats   []job.Beat
	edges   []string       // told with each beat's answer
	batches uint64         // likewise
	slow    time.Duration  // how long a beat's answer takes
	settled map[string]int // outcomes committed, by request id
	flying  int
	most    int // reports that were on their way at once
	bodies  map[job.Position][]byte
	loads   int
	loadErr error
	onLoad  func() // before a body is given
	blobs   map[string][]byte
	blobErr int // so many tries fail
}

func newBus() *fakeBus {
	return &fakeBus{
		node: "n1", epoch: 5, changed: make(chan struct{}), lease: 6 * time.Second,
		settled: map[string]int{}, bodies: map[job.Position][]byte{}, blobs: map[string][]byte{},
	}
}

func (b *fakeBus) Authority() (string, uint64, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.node, b.epoch, b.node != ""
}

func (b *fakeBus) AuthorityChanged() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}

func (b *fakeBus) change(fn func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fn()
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *fakeBus) set(fn func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fn()
}

var errDown = errors.New("nobody answers")

func (b *fakeBus) Report(ctx context.Context, node string, r job.Report) (job.ReportAck, error) {
	b.mu.Lock()
	b.reports = append(b.reports, r)
	b.sentTo = append(b.sentTo, node)
	b.flying++
	b.most = max(b.most, b.flying)
	hold := b.hold
	if b.quick && len(r.Outcomes) == 0 {
		hold = nil
	}
	b.mu.Unlock()
	defer func() { b.set(func() { b.flying-- }) }()
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
		ack.Settled = append(ack.Settled, job.Settled{Dup: b.settled[id] > 1, State: job.Completed})
	}
	return ack, nil
}

func (b *fakeBus) Beat(_ context.Context, _ string, beat job.Beat) (job.BeatAck, error) {
	b.mu.Lock()
	slow := b.slow
	b.mu.Unlock()
	time.Sleep(slow)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.beats = append(b.beats, beat)
	if b.down {
		return job.BeatAck{}, errDown
	}
	full := b.full
	b.full = false
	return job.BeatAck{Epoch: b.epoch, Lease: b.lease, WantFull: full, Batches: b.batches, Edges: b.edges}, nil
}

func (b *fakeBus) Load(ctx context.Context, pos job.Position, _ job.ID) ([]byte, error) {
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

func (b *fakeBus) StoreBlob(_ context.Context, name string, data []byte) (job.Blob, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.blobErr > 0 {
		b.blobErr--
		return job.Blob{}, errDown
	}
	b.blobs[name] = data
	return job.Blob{Name: name, Chunks: 1, Size: int64(len(data))}, nil
}

// outcomes are all that were ever reported, in order.
func (b *fakeBus) outcomes() []job.Outcome {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []job.Outcome
	for _, r := range b.reports {
		all = append(all, r.Outcomes...)
	}
	return all
}

// lastOffers is the room as the authority would know it.
func (b *fakeBus) lastOffers() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	room := map[string]int{}
	for _, r := range b.reports {
		if r.Rev == 0 {
			continue
		}
		if r.Full {
			clear(room)
		}
		for _, o := range r.Offers {
			if room[o.Worker] = o.Free; o.Free == 0 {
				delete(room, o.Worker)
			}
		}
	}
	return room
}

// fakeTarget notes what it is told.
type fakeTarget struct {
	mu      sync.Mutex
	full    bool
	started []string
	stopped []string
	onStop  func(id job.ID, n uint32, why job.RecallReason)
	onStart func(job.Assignment)
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

func (f *fakeTarget) Stop(id job.ID, n uint32, why job.RecallReason) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopped = append(f.stopped, job.RequestID(id, n)+" "+string(why))
	if f.onStop != nil {
		f.onStop(id, n, why)
	}
}

func (f *fakeTarget) seen() (started, stopped []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.started...), append([]string(nil), f.stopped...)
}

// bench is an agent at work in a bubble.
type bench struct {
	*Agent
	bus    *fakeBus
	target *fakeTarget
	stop   context.CancelFunc
	done   chan error
}

func inBubble(t *testing.T, cfg Config, test func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{bus: newBus(), target: &fakeTarget{}, done: make(chan error, 1)}
		cfg.Node, cfg.Incarnation = "n2", 3
		b.Agent = New(cfg, b.bus, slog.New(slog.DiscardHandler))
		b.Add(b.target)
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

// pass lets time go by until everybody waits again.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (b *bench) finish(i byte) {
	b.Report(job.Outcome{Job: job.ID{i}, N: 1, Status: job.Success, Started: true}, nil)
}

const body = `{"function":"send"}`

func order(i byte) job.Assignment {
	return job.Assignment{Job: job.ID{i}, N: 1, Kind: job.Overhop, Key: "mail", Worker: "w", Body: []byte(body)}
}

func batch(number uint64, orders ...job.Assignment) job.Batch {
	return job.Batch{Epoch: 5, Number: number, Assignments: orders}
}

func request(i byte) string { return job.RequestID(job.ID{i}, 1) }

func want(t *testing.T, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestLease_EndStopsTheWork(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		b.Offer(job.Offer{Kind: job.Overhop, Key: "mail", Worker: "w", Free: 2})
		b.Assign(batch(1, order(1), order(2)))
		b.finish(2)
		pass(10 * time.Second) // answered beats carry it on
		_, stopped := b.target.seen()
		want(t, "stopped under a lease", stopped, []string(nil))
		b.bus.set(func() { b.bus.down = true })
		end := b.Lease()
		pass(time.Until(end) - time.Millisecond)
		_, stopped = b.target.seen()
		want(t, "stopped too early", stopped, []string(nil))
		pass(time.Millisecond)
		synctest.Wait()
		_, stopped = b.target.seen()
		want(t, "stopped", stopped, []string{request(1) + " LEASE_EXPIRED"})
		want(t, "assigned without a lease", b.Assign(batch(2, order(3))), []job.Answer{job.NoRoom})
		b.finish(1)
		reports := len(b.bus.reports)
		b.bus.set(func() { b.bus.down, b.bus.batches = false, 3 })
		pass(2 * time.Second)
		want(t, "meant for the former lease", b.Assign(batch(3, order(5))), []job.Answer{job.NoRoom})
		want(t, "assigned under the next lease", b.Assign(batch(4, order(3), order(4))), []job.Answer{job.NoRoom, job.Taken})
		full := false
		for _, r := range b.bus.reports[reports:] {
			full = full || r.Full
		}
		if !full {
			t.Error("room was not told again")
		}
		b.finish(3)
	})
}

// What is being stopped gently has no time left when the lease ends; nothing
// else is said twice.
func TestLease_EndHurriesWhatIsStopping(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		b.Assign(batch(1, order(1)))
		for _, why := range []job.RecallReason{job.RecallCancelled, job.RecallQueueGone, job.RecallCancelled} {
			b.Recall(job.Recall{Epoch: 5, Job: order(1).Job, N: order(1).N, Reason: why})
		}
		b.bus.set(func() { b.bus.down = true })
		pass(time.Until(b.Lease()))
		b.Recall(job.Recall{Epoch: 5, Job: order(1).Job, N: order(1).N, Reason: job.RecallShutdown})
		_, stopped := b.target.seen()
		want(t, "stopped", stopped, []string{request(1) + " CANCELLED", request(1) + " LEASE_EXPIRED"})
		b.finish(1)
	})
}

func TestLease_NotLentByAnEarlierAuthority(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		next := batch(1, order(1))
		next.Epoch = 9
		b.Assign(next) // the ledger here still names the former one
		before := b.Lease()
		pass(3 * time.Second)
		want(t, "lease", b.Lease(), before)
		b.finish(1)
	})
}

func TestLease_CountsFromTheSending(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		b.bus.set(func() { b.bus.slow = 400 * time.Millisecond })
		pass(5*time.Second + 500*time.Millisecond) // the last beat was sent half a second ago
		if left := time.Until(b.Lease()); left != 5500*time.Millisecond {
			t.Errorf("lease of 6s has %v left after 500ms", left)
		}
	})
}

func TestRun_Drains(t *testing.T) {
	inBubble(t, Config{DrainGrace: 10 * time.Second, StopGrace: 3 * time.Second}, func(t *testing.T, b *bench) {
		b.Assign(batch(1, order(1), order(2)))
		b.target.onStop = func(id job.ID, n uint32, why job.RecallReason) {
			go b.Report(job.Outcome{Job: id, N: n, Status: job.Interrupted, Started: true}, nil)
		}
		begun := time.Now()
		b.stop()
		pass(4 * time.Second)
		b.finish(1) // ends by itself
		err := <-b.done
		if took := time.Since(begun); took != 10*time.Second {
			t.Errorf("drained in %v", took)
		}
		_, stopped := b.target.seen()
		want(t, "stopped", stopped, []string{request(2) + " SHUTDOWN"})
		want(t, "settled", b.bus.settled, map[string]int{request(1): 1, request(2): 1})
		b.done <- err
	})
}

func TestRun_DrainsInBoundedTime(t *testing.T) {
	inBubble(t, Config{DrainGrace: 2 * time.Second, StopGrace: time.Second}, func(t *testing.T, b *bench) {
		b.Assign(batch(1, order(1), order(2)))
		b.bus.set(func() { b.bus.down = true })
		b.finish(1)
		begun := time.Now()
		b.stop()
		err := <-b.done // order 2 never ends, outcome 1 is never answered
		if took := time.Since(begun); took != 4*time.Second {
			t.Errorf("gave up after %v", took)
		}
		b.done <- err
	})
}

// Each beat tells where the node's edge is, and brings where the others' are.
func TestBeat_Edges(t *testing.T) {
	inBubble(t, Config{Edge: "n2:9876"}, func(t *testing.T, b *bench) {
		want(t, "edges before any is told", b.Edges(), []string(nil))
		b.bus.set(func() { b.bus.edges = []string{"n1:9876", "n3:9876"} })
		pass(time.Second)
		want(t, "edges", b.Edges(), []string{"n1:9876", "n3:9876"})
		b.bus.set(func() { b.bus.down = true; b.bus.edges = nil })
		pass(time.Second)
		want(t, "edges while nobody answers", b.Edges(), []string{"n1:9876", "n3:9876"})
		b.bus.set(func() {
			for _, beat := range b.bus.beats {
				want(t, "told", beat.Edge, "n2:9876")
			}
			b.bus.down = false
		})
	})
}
