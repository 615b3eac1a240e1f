package agent

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"yardmaster/job"
)

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

// A place that comes free is told at once, however long the commit of an end
// takes that was reported before.
func TestReport_RoomIsToldWhileEndsAreCommitted(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		hold := make(chan struct{})
		b.bus.set(func() { b.bus.hold, b.bus.quick = hold, true })
		for i := range 3 {
			b.Offer(job.Offer{Kind: job.RRQ, Key: "py", Worker: "py/1", Free: i + 1})
			b.Report(job.Outcome{Job: job.ID{byte(i + 1)}, N: 1, Status: job.Success}, nil)
			synctest.Wait()
			want(t, "room that is known", b.bus.lastOffers(), map[string]int{"py/1": i + 1})
			want(t, "settled", len(b.bus.settled), 0)
		}
		close(hold)
		synctest.Wait()
		want(t, "settled", len(b.bus.settled), 3)
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

// Whatever a worker calls its fault, it fits into a report: one that did not
// would hold back every outcome behind it.
func TestReport_LargeNamesOfFaults(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		long := strings.Repeat("ä", 3<<20)
		b.Report(job.Outcome{Job: job.ID{1}, N: 1, Status: job.Error, Fault: &job.Fault{Message: long, Type: long, Code: long, Details: []byte(long)}}, nil)
		b.Report(job.Outcome{Job: job.ID{2}, N: 1, Status: job.Error, Fault: &job.Fault{Message: "m", Type: "t", Code: "c", Details: []byte("{}")}}, nil)
		synctest.Wait()
		got := b.bus.outcomes()
		if len(got) != 2 {
			t.Fatalf("%d outcomes are reported", len(got))
		}
		f := got[0].Fault
		if n := len(f.Message) + len(f.Type) + len(f.Code) + len(f.Details); n > job.MaxInlineFault || n < job.MaxInlineFault-10 {
			t.Errorf("the fault has %d bytes", n)
		}
		if !utf8.ValidString(f.Type+f.Code+f.Message) || !strings.HasPrefix(f.Type, "ää") || !strings.HasSuffix(f.Code, "ä (cut)") {
			t.Errorf("type is %q, code %q", f.Type, f.Code)
		}
		want(t, "a short fault", *got[1].Fault, job.Fault{Message: "m", Type: "t", Code: "c", Details: []byte("{}")})
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

func TestReport_ResultThatCannotBeStored(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		b.bus.set(func() { b.bus.blobErr = 1 << 30 })
		large := make([]byte, maxStoring/4)
		heard := make(chan job.Settled, 1)
		for i := range byte(4) {
			b.Report(job.Outcome{Job: job.ID{i + 1}, N: 1, Status: job.Success, Result: job.Value{Data: large}}, func(job.Settled) {})
		}
		pass(storePatience - time.Second)
		want(t, "reported while there is hope", len(b.bus.outcomes()), 0)
		b.Report(job.Outcome{Job: job.ID{5}, N: 1, Status: job.Success, Result: job.Value{Data: large}}, func(s job.Settled) { heard <- s })
		synctest.Wait()
		want(t, "beyond what may wait, heard", len(heard), 1)
		pass(2 * time.Second)
		got := b.bus.outcomes()
		want(t, "reported", len(got), 5)
		for _, o := range got {
			if o.Status != job.Error || !o.Final || o.Fault == nil || o.Fault.Type != job.FaultNotStored || o.Blob != nil || len(o.Result.Data) > 0 {
				t.Errorf("a result that was not stored is told as %+v", o)
			}
		}
		// Room and hope are back.
		b.bus.set(func() { b.bus.blobErr = 0 })
		b.Report(job.Outcome{Job: job.ID{6}, N: 1, Status: job.Success, Result: job.Value{Data: large}}, nil)
		pass(time.Second)
		if last := b.bus.outcomes()[5]; last.Status != job.Success || last.Blob == nil {
			t.Errorf("once results are stored again: %+v", last.Status)
		}
	})
}
