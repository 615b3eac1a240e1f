package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

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
	full    bool // ask for all offers with the next beat
	reports []job.Report
	sentTo  []string
	beats   []job.Beat
	slow    time.Duration  // how long a beat's answer takes
	settled map[string]int // outcomes committed, by request id
	flying  int
	most    int // reports that were on their way at once
	bodies  map[job.Position][]byte
	loads   int
	loadErr error
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
	return job.BeatAck{Epoch: b.epoch, Lease: b.lease, WantFull: full}, nil
}

func (b *fakeBus) Load(ctx context.Context, pos job.Position) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.loads++
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

func TestAssign_SeenOnceNeverStartedAgain(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		want(t, "first", b.Assign(batch(1, order(1), order(1))), []job.Answer{job.Taken, job.Taken})
		hold := make(chan struct{})
		b.bus.set(func() { b.bus.hold = hold })
		b.finish(1)
		synctest.Wait()
		want(t, "outcome on its way", b.Assign(batch(2, order(1))), []job.Answer{job.Taken})
		b.bus.set(func() { b.bus.hold = nil })
		close(hold)
		synctest.Wait()
		want(t, "settled", b.Assign(batch(3, order(1))), []job.Answer{job.Taken})
		pass(rememberFor)
		b.Assign(batch(4, order(2)))
		b.finish(2) // turns the memory
		synctest.Wait()
		want(t, "settled a while ago", b.Assign(batch(5, order(1))), []job.Answer{job.Taken})
		started, _ := b.target.seen()
		want(t, "started", started, []string{request(1) + " send", request(2) + " send"})
		want(t, "running", b.Running(), 0)
	})
}

func TestAssign_Refusals(t *testing.T) {
	inBubble(t, Config{DrainGrace: time.Second}, func(t *testing.T, b *bench) {
		stale := batch(1, order(1), order(2))
		stale.Epoch = 4
		want(t, "lower epoch", b.Assign(stale), []job.Answer{job.StaleEpoch, job.StaleEpoch})
		alien := order(1)
		alien.Kind = job.RRQ
		b.target.full = true
		want(t, "no such target, no room", b.Assign(batch(1, alien, order(1))), []job.Answer{job.NoRoom, job.NoRoom})
		want(t, "running", b.Running(), 0)
		b.target.full = false
		want(t, "refused before, may come again", b.Assign(batch(2, order(1))), []job.Answer{job.Taken})
		b.Drain()
		want(t, "draining", b.Assign(batch(3, order(2))), []job.Answer{job.Draining})
		synctest.Wait()
		last := b.bus.beats[len(b.bus.beats)-1]
		if !last.Draining || last.Running != 1 || last.Incarnation != 3 {
			t.Errorf("last beat %+v", last)
		}
		b.finish(1)
	})
}

func TestAssign_HigherEpochIsTheNewMeasure(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		next := batch(1, order(1))
		next.Epoch = 9
		want(t, "higher", b.Assign(next), []job.Answer{job.Taken})
		want(t, "former", b.Assign(batch(2, order(2))), []job.Answer{job.StaleEpoch})
		b.Recall(job.Recall{Job: job.ID{1}, N: 1, Epoch: 5, Reason: job.RecallCancelled})
		_, stopped := b.target.seen()
		want(t, "recalled by the former", stopped, []string(nil))
		b.finish(1)
	})
}

func TestAssign_BadBodyIsAFinalError(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		bad := order(1)
		bad.Body = []byte(`{"function":`)
		want(t, "answer", b.Assign(batch(1, bad)), []job.Answer{job.Taken})
		synctest.Wait()
		got := b.bus.outcomes()
		if len(got) != 1 || got[0].Status != job.Error || got[0].Fault.Type != job.FaultInvalid || got[0].Started {
			t.Errorf("outcomes %+v", got)
		}
	})
}

func TestLoad_BodiesComeAfterwards(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		b.Offer(job.Offer{Kind: job.Overhop, Key: "mail", Worker: "w", Free: 3})
		here, gone := order(1), order(2)
		here.Body, here.Position = nil, job.Position{Lane: 1, Seq: 7}
		gone.Body, gone.Position = nil, job.Position{Lane: 1, Seq: 8}
		b.bus.bodies[here.Position] = []byte(body)
		want(t, "answers", b.Assign(batch(1, here, gone)), []job.Answer{job.Taken, job.Taken})
		synctest.Wait()
		started, _ := b.target.seen()
		want(t, "started", started, []string{request(1) + " send"})
		got := b.bus.outcomes()
		if len(got) != 1 || got[0].Job != (job.ID{2}) || got[0].Status != job.Error || !got[0].Final {
			t.Errorf("lost body: %+v", got)
		}
		b.finish(1)
	})
}

func TestLoad_TakesRoomWhileItWaits(t *testing.T) {
	inBubble(t, Config{Loads: 1}, func(t *testing.T, b *bench) {
		b.Offer(job.Offer{Kind: job.Overhop, Key: "mail", Worker: "w", Free: 3})
		b.bus.set(func() { b.bus.loadErr = errDown })
		o := order(1)
		o.Body = nil
		b.Assign(batch(1, o))
		pass(2 * lazily)
		want(t, "room while loading", b.bus.lastOffers(), map[string]int{"w": 2})
		pass(5 * time.Second) // all tries
		got := b.bus.outcomes()
		if len(got) != 1 || got[0].Status != job.Declined || b.bus.loads != loadTries {
			t.Errorf("after %d loads: %+v", b.bus.loads, got)
		}
		want(t, "room given back", b.bus.lastOffers(), map[string]int{"w": 3})
	})
}

func TestLoad_RecalledMeanwhile(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		b.bus.set(func() { b.bus.loadErr = errDown })
		o := order(1)
		o.Body = nil
		b.Assign(batch(1, o))
		b.Recall(job.Recall{Job: o.Job, N: 1, Epoch: 5, Reason: job.RecallCancelled})
		pass(5 * time.Second)
		started, stopped := b.target.seen()
		want(t, "started", started, []string(nil))
		want(t, "stopped", stopped, []string(nil))
		if got := b.bus.outcomes(); len(got) != 1 || got[0].Status != job.Cancelled {
			t.Errorf("outcomes %+v", got)
		}
	})
}

func TestRecall_ReachesTheTargetOnce(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		b.Assign(batch(1, order(1)))
		for range 2 {
			b.Recall(job.Recall{Job: job.ID{1}, N: 1, Epoch: 5, Reason: job.RecallQueueGone})
		}
		b.Recall(job.Recall{Job: job.ID{9}, N: 1, Epoch: 5, Reason: job.RecallQueueGone})
		_, stopped := b.target.seen()
		want(t, "stopped", stopped, []string{request(1) + " QUEUE_REMOVED"})
		b.finish(1)
	})
}

func TestReport_ResentOverAChangeOfAuthority(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		b.Offer(job.Offer{Kind: job.Overhop, Key: "mail", Worker: "w", Free: 2})
		b.Assign(batch(1, order(1), order(2), order(3)))
		synctest.Wait()
		b.bus.set(func() { b.bus.hold = make(chan struct{}) }) // the authority hangs
		var mu sync.Mutex
		heard := map[byte]int{}
		for i := byte(1); i <= 3; i++ {
			b.Report(job.Outcome{Job: job.ID{i}, N: 1, Status: job.Success}, func(s job.Settled) {
				mu.Lock()
				defer mu.Unlock()
				heard[i]++
			})
			synctest.Wait()
		}
		b.bus.set(func() { b.bus.hold, b.bus.node = nil, "" })
		pass(time.Second)
		want(t, "before there is an authority", len(b.bus.settled), 0)
		b.bus.change(func() { b.bus.node, b.bus.epoch = "n3", 8 })
		synctest.Wait()
		want(t, "settled", b.bus.settled, map[string]int{request(1): 1, request(2): 1, request(3): 1})
		mu.Lock()
		want(t, "callers that heard", heard, map[byte]int{1: 1, 2: 1, 3: 1})
		mu.Unlock()
		last := len(b.bus.reports) - 1
		for i, r := range b.bus.reports {
			if b.bus.sentTo[i] == "n3" && r.Full && r.Seen == 0 && len(r.Offers) == 1 {
				return
			}
		}
		t.Errorf("the new authority was not told all room; last report to %s: %+v", b.bus.sentTo[last], b.bus.reports[last])
	})
}

func TestReport_KeptWhileNothingIsAnswered(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		b.Assign(batch(1, order(1)))
		b.bus.set(func() { b.bus.down = true })
		b.finish(1)
		pass(4 * time.Second)
		tries := len(b.bus.outcomes())
		if tries < 4 || tries > 40 {
			t.Errorf("%d tries in 4s", tries)
		}
		want(t, "settled", len(b.bus.settled), 0)
		b.bus.set(func() { b.bus.down = false })
		pass(2 * time.Second)
		want(t, "settled", b.bus.settled, map[string]int{request(1): 1})
	})
}

func TestReport_GathersBehindTheFirst(t *testing.T) {
	inBubble(t, Config{Reports: 3, Gather: 10}, func(t *testing.T, b *bench) {
		hold := make(chan struct{})
		b.bus.set(func() { b.bus.hold = hold })
		for i := range byte(100) {
			b.finish(i + 1)
			synctest.Wait()
		}
		// One alone, then ten, then ten: three on their way, the rest waits.
		var sizes []int
		for _, r := range b.bus.reports {
			if len(r.Outcomes) > 0 {
				sizes = append(sizes, len(r.Outcomes))
			}
		}
		want(t, "sizes", sizes, []int{1, 10, 10})
		want(t, "at once", b.bus.most, 3)
		b.bus.set(func() { b.bus.hold = nil })
		close(hold)
		synctest.Wait()
		want(t, "settled", len(b.bus.settled), 100)
		if n := len(b.bus.reports); n > 8 {
			t.Errorf("%d reports for 100 outcomes", n)
		}
	})
}

func TestReport_BoundedInBytes(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		b.bus.set(func() { b.bus.down = true })
		for i := range 400 {
			b.Report(job.Outcome{Job: job.ID{byte(i), byte(i >> 8), 1}, N: 1, Status: job.Success, Result: job.Value{Data: make([]byte, 1000)}}, nil)
		}
		synctest.Wait()
		b.bus.set(func() { b.bus.down = false })
		pass(time.Second)
		want(t, "settled", len(b.bus.settled), 400)
		for _, r := range b.bus.reports {
			if len(r.Outcomes)*1000 > maxOutcomeBytes {
				t.Errorf("a report of %d outcomes", len(r.Outcomes))
			}
		}
	})
}

func TestReport_LargeResultsAndFaults(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		b.bus.blobErr = 2
		large := bytes.Repeat([]byte("x"), job.MaxInlineResult+1)
		b.Report(job.Outcome{Job: job.ID{1}, N: 1, Status: job.Success, Result: job.Value{Msgpack: true, Data: large}}, nil)
		long := strings.Repeat("ä", 5000)
		b.Report(job.Outcome{Job: job.ID{2}, N: 1, Status: job.Error, Fault: &job.Fault{Message: long, Details: []byte(long)}}, nil)
		pass(time.Second)
		var result, fault job.Outcome
		for _, o := range b.bus.outcomes() {
			if o.Fault != nil {
				fault = o
			} else {
				result = o
			}
		}
		if result.Blob == nil || len(result.Result.Data) != 0 || !result.Result.Msgpack {
			t.Errorf("large result %+v", result)
		} else if !bytes.Equal(b.bus.blobs[result.Blob.Name], large) {
			t.Errorf("blob %q holds something else", result.Blob.Name)
		}
		if f := fault.Fault; f == nil || len(f.Message) > job.MaxInlineFault || !utf8.ValidString(f.Message) || f.Details != nil || len(f.Message) < 4000 {
			t.Errorf("fault of %d bytes", len(fault.Fault.Message))
		}
	})
}

func TestReport_SecondOutcomeHearsTheFirsts(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		b.bus.set(func() { b.bus.down = true })
		heard := make(chan job.Settled, 2)
		then := func(s job.Settled) { heard <- s }
		b.Report(job.Outcome{Job: job.ID{1}, N: 1, Status: job.Success}, then)
		b.Report(job.Outcome{Job: job.ID{1}, N: 1, Status: job.Lost}, then)
		b.bus.set(func() { b.bus.down = false })
		for range 2 {
			want(t, "heard", <-heard, job.Settled{State: job.Completed})
		}
		for _, o := range b.bus.outcomes() {
			want(t, "reported", o.Status, job.Success)
		}
	})
}

func TestOffer_LastValueWins(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		hold := make(chan struct{})
		b.bus.set(func() { b.bus.hold = hold })
		offer := func(w string, free int) { b.Offer(job.Offer{Kind: job.Overhop, Key: "mail", Worker: w, Free: free}) }
		offer("a", 1)
		synctest.Wait()
		for i := range 50 {
			offer("a", i)
			offer("b", i)
			synctest.Wait()
		}
		offer("b", 0)
		before := len(b.bus.reports)
		b.bus.set(func() { b.bus.hold = nil })
		close(hold)
		pass(2 * lazily)
		want(t, "room", b.bus.lastOffers(), map[string]int{"a": 49})
		if n := len(b.bus.reports) - before; n != 1 {
			t.Errorf("100 changes behind a report took %d more reports", n)
		}
		var rev uint64
		for _, r := range b.bus.reports {
			if r.Rev != rev+1 {
				t.Errorf("rev %d after %d", r.Rev, rev)
			}
			rev = r.Rev
		}
		offer("a", 0)
		pass(2 * lazily)
		want(t, "withdrawn", b.bus.lastOffers(), map[string]int{})
	})
}

func TestOffer_HoldsWithTheBatchSeen(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		free := 4
		b.target.onStart = func(job.Assignment) {
			free--
			b.Offer(job.Offer{Kind: job.Overhop, Key: "mail", Worker: "w", Free: free})
		}
		b.Offer(job.Offer{Kind: job.Overhop, Key: "mail", Worker: "w", Free: free})
		synctest.Wait()
		b.Assign(batch(7, order(1), order(2)))
		pass(2 * lazily)
		last := b.bus.reports[len(b.bus.reports)-1]
		want(t, "last report", last.Seen, uint64(7))
		want(t, "room", b.bus.lastOffers(), map[string]int{"w": 2})
		// A batch that changes nothing is told as seen too.
		b.target.full = true
		b.Assign(batch(8, order(3)))
		pass(2 * lazily)
		last = b.bus.reports[len(b.bus.reports)-1]
		want(t, "last report", []any{last.Seen, len(last.Offers)}, []any{uint64(8), 1})
		b.finish(1)
		b.finish(2)
	})
}

func TestOffer_AllOfThemWhenAsked(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		for _, w := range []string{"a", "b", "c"} {
			b.Offer(job.Offer{Kind: job.Overhop, Key: "mail", Worker: w, Free: 1})
			synctest.Wait()
		}
		b.bus.set(func() { b.bus.full = true })
		pass(1100 * time.Millisecond)
		last := b.bus.reports[len(b.bus.reports)-1]
		if !last.Full || len(last.Offers) != 3 {
			t.Errorf("asked for all, told %+v", last)
		}
	})
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
		b.bus.set(func() { b.bus.down = false })
		pass(2 * time.Second)
		want(t, "assigned under the next lease", b.Assign(batch(3, order(3))), []job.Answer{job.Taken})
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

func TestLease_CountsFromTheSending(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		b.bus.set(func() { b.bus.slow = 400 * time.Millisecond })
		pass(5*time.Second + 500*time.Millisecond) // the last beat was sent half a second ago
		if left := time.Until(b.Lease()); left != 5500*time.Millisecond {
			t.Errorf("lease of 6s has %v left after 500ms", left)
		}
	})
}

func TestReport_LostOneKeepsTheOrderAndTellsAllRoom(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		b.Offer(job.Offer{Kind: job.Overhop, Key: "mail", Worker: "a", Free: 1})
		synctest.Wait()
		hold := make(chan struct{})
		b.bus.set(func() { b.bus.down, b.bus.hold = true, hold })
		b.Offer(job.Offer{Kind: job.Overhop, Key: "mail", Worker: "b", Free: 1})
		b.finish(1)
		synctest.Wait()
		b.finish(2) // waits behind the first
		b.finish(3)
		close(hold)
		synctest.Wait()
		lost := len(b.bus.reports)
		b.bus.set(func() { b.bus.down, b.bus.hold = false, nil })
		pass(100 * time.Millisecond)
		var order []byte
		full := false
		for _, r := range b.bus.reports[lost:] {
			full = full || r.Full && len(r.Offers) == 2
			for _, o := range r.Outcomes {
				order = append(order, o.Job[0])
			}
		}
		want(t, "order", order, []byte{1, 2, 3})
		if !full {
			t.Errorf("after a lost report: %+v", b.bus.reports[lost:])
		}
	})
}
