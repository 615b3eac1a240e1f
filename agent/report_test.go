package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/yardmaster-dev/yardmaster/job"
)

func TestReport_ResentToNewAuthority(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		b.Offer(job.Offer{Kind: job.Overhop, Key: "mail", Worker: "w", Free: 2})
		b.Assign(batch(1, assignment(1), assignment(2), assignment(3)))
		synctest.Wait()
		b.transport.set(func() { b.transport.holdReports = make(chan struct{}) }) // the authority does not answer
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
		b.transport.set(func() { b.transport.holdReports, b.transport.node = nil, "" })
		advance(time.Second)
		wantEqual(t, "before there is an authority", len(b.transport.settled), 0)
		b.transport.change(func() { b.transport.node, b.transport.epoch = "n3", 8 })
		synctest.Wait()
		wantEqual(t, "settled", b.transport.settled, map[string]int{requestID(1): 1, requestID(2): 1, requestID(3): 1})
		mu.Lock()
		wantEqual(t, "callers that heard", heard, map[byte]int{1: 1, 2: 1, 3: 1})
		mu.Unlock()
		last := len(b.transport.reports) - 1
		for i, r := range b.transport.reports {
			if b.transport.sentTo[i] == "n3" && r.Full && r.SeenBatch == 0 && len(r.Offers) == 1 {
				return
			}
		}
		t.Errorf("the new authority did not get all offers; last report to %s: %+v", b.transport.sentTo[last], b.transport.reports[last])
	})
}

func TestReport_KeptUntilAcked(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		b.Assign(batch(1, assignment(1)))
		b.transport.set(func() { b.transport.down = true })
		b.finish(1)
		advance(4 * time.Second)
		tries := len(b.transport.outcomes())
		if tries < 4 || tries > 40 {
			t.Errorf("%d tries in 4s", tries)
		}
		wantEqual(t, "settled", len(b.transport.settled), 0)
		b.transport.set(func() { b.transport.down = false })
		advance(2 * time.Second)
		wantEqual(t, "settled", b.transport.settled, map[string]int{requestID(1): 1})
	})
}

func TestReport_BatchesBehindTheFirst(t *testing.T) {
	inBubble(t, Config{maxReports: 3, flushOutcomes: 10}, func(t *testing.T, b *harness) {
		hold := make(chan struct{})
		b.transport.set(func() { b.transport.holdReports = hold })
		for i := range byte(100) {
			b.finish(i + 1)
			synctest.Wait()
		}
		// One outcome, then ten, then ten: three reports in flight, the others wait.
		var sizes []int
		for _, r := range b.transport.reports {
			if len(r.Outcomes) > 0 {
				sizes = append(sizes, len(r.Outcomes))
			}
		}
		wantEqual(t, "sizes", sizes, []int{1, 10, 10})
		wantEqual(t, "at once", b.transport.maxInFlight, 3)
		b.transport.set(func() { b.transport.holdReports = nil })
		close(hold)
		synctest.Wait()
		wantEqual(t, "settled", len(b.transport.settled), 100)
		if n := len(b.transport.reports); n > 8 {
			t.Errorf("%d reports for 100 outcomes", n)
		}
	})
}

// TestReport_OffersDoNotWaitForOutcomes checks that free capacity is reported
// at once, however long the commit of an earlier outcome takes.
func TestReport_OffersDoNotWaitForOutcomes(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		hold := make(chan struct{})
		b.transport.set(func() { b.transport.holdReports, b.transport.holdOutcomesOnly = hold, true })
		for i := range 3 {
			b.Offer(job.Offer{Kind: job.RRQ, Key: "py", Worker: "py/1", Free: i + 1})
			b.Report(job.Outcome{Job: job.ID{byte(i + 1)}, N: 1, Status: job.Success}, nil)
			synctest.Wait()
			wantEqual(t, "reported capacity", b.transport.lastOffers(), map[string]int{"py/1": i + 1})
			wantEqual(t, "settled", len(b.transport.settled), 0)
		}
		close(hold)
		synctest.Wait()
		wantEqual(t, "settled", len(b.transport.settled), 3)
	})
}

func TestReport_BoundedInBytes(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		b.transport.set(func() { b.transport.down = true })
		for i := range 400 {
			b.Report(job.Outcome{Job: job.ID{byte(i), byte(i >> 8), 1}, N: 1, Status: job.Success, Result: job.Value{Data: make([]byte, 1000)}}, nil)
		}
		synctest.Wait()
		b.transport.set(func() { b.transport.down = false })
		advance(time.Second)
		wantEqual(t, "settled", len(b.transport.settled), 400)
		for _, r := range b.transport.reports {
			if len(r.Outcomes)*1000 > maxOutcomeBytes {
				t.Errorf("a report of %d outcomes", len(r.Outcomes))
			}
		}
	})
}

func TestReport_LargeResultsAndFaults(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		b.transport.blobErr = 2
		large := bytes.Repeat([]byte("x"), job.MaxInlineResult+1)
		b.Report(job.Outcome{Job: job.ID{1}, N: 1, Status: job.Success, Result: job.Value{Msgpack: true, Data: large}}, nil)
		long := strings.Repeat("ä", 5000)
		b.Report(job.Outcome{Job: job.ID{2}, N: 1, Status: job.Error, Fault: &job.Fault{Message: long, Details: []byte(long)}}, nil)
		advance(time.Second)
		var result, fault job.Outcome
		for _, o := range b.transport.outcomes() {
			if o.Fault != nil {
				fault = o
			} else {
				result = o
			}
		}
		if result.Blob == nil || len(result.Result.Data) != 0 || !result.Result.Msgpack {
			t.Errorf("large result %+v", result)
		} else if !bytes.Equal(b.transport.blobs[result.Blob.Name], large) {
			t.Errorf("blob %q does not contain the result", result.Blob.Name)
		}
		if f := fault.Fault; f == nil || len(f.Message)+len(f.Details) > job.MaxInlineFault || !utf8.ValidString(f.Message) || !json.Valid(f.Details) || len(f.Message) < 1900 {
			t.Errorf("fault has a message of %d bytes and details %s", len(fault.Fault.Message), fault.Fault.Details)
		}
	})
}

// TestReport_LargeNamesOfFaults checks that a fault with a long type and code
// is shortened to fit into a report: otherwise it would block all later
// outcomes.
func TestReport_LargeNamesOfFaults(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		long := strings.Repeat("ä", 3<<20)
		b.Report(job.Outcome{Job: job.ID{1}, N: 1, Status: job.Error, Fault: &job.Fault{Message: long, Type: long, Code: long, Details: []byte(long)}}, nil)
		b.Report(job.Outcome{Job: job.ID{2}, N: 1, Status: job.Error, Fault: &job.Fault{Message: "m", Type: "t", Code: "c", Details: []byte("{}")}}, nil)
		synctest.Wait()
		got := b.transport.outcomes()
		if len(got) != 2 {
			t.Fatalf("%d outcomes are reported", len(got))
		}
		slices.SortFunc(got, func(a, b job.Outcome) int { return bytes.Compare(a.Job[:], b.Job[:]) }) // errors are stored at the same time
		f := got[0].Fault
		if n := len(f.Message) + len(f.Type) + len(f.Code) + len(f.Details); n > job.MaxInlineFault || n < job.MaxInlineFault-100 {
			t.Errorf("the fault has %d bytes", n)
		}
		if !utf8.ValidString(f.Type+f.Code+f.Message) || !strings.HasPrefix(f.Type, "ää") || !strings.HasSuffix(f.Code, "ä (cut)") {
			t.Errorf("type is %q, code %q", f.Type, f.Code)
		}
		wantEqual(t, "a short fault", *got[1].Fault, job.Fault{Message: "m", Type: "t", Code: "c", Details: []byte("{}")})
	})
}

func TestReport_SecondOutcomeIsADuplicate(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		b.transport.set(func() { b.transport.down = true })
		heard := make(chan job.Settled, 2)
		then := func(s job.Settled) { heard <- s }
		b.Report(job.Outcome{Job: job.ID{1}, N: 1, Status: job.Success}, then)
		b.Report(job.Outcome{Job: job.ID{1}, N: 1, Status: job.Lost}, then)
		b.transport.set(func() { b.transport.down = false })
		for range 2 {
			wantEqual(t, "heard", <-heard, job.Settled{State: job.Completed})
		}
		for _, o := range b.transport.outcomes() {
			wantEqual(t, "reported", o.Status, job.Success)
		}
	})
}

func TestReport_LossKeepsOrderAndResendsOffers(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		b.Offer(job.Offer{Kind: job.Overhop, Key: "mail", Worker: "a", Free: 1})
		synctest.Wait()
		hold := make(chan struct{})
		b.transport.set(func() { b.transport.down, b.transport.holdReports = true, hold })
		b.Offer(job.Offer{Kind: job.Overhop, Key: "mail", Worker: "b", Free: 1})
		b.finish(1)
		synctest.Wait()
		b.finish(2) // waits for the first report
		b.finish(3)
		close(hold)
		synctest.Wait()
		lost := len(b.transport.reports)
		b.transport.set(func() { b.transport.down, b.transport.holdReports = false, nil })
		advance(100 * time.Millisecond)
		var order []byte
		full := false
		for _, r := range b.transport.reports[lost:] {
			full = full || r.Full && len(r.Offers) == 2
			for _, o := range r.Outcomes {
				order = append(order, o.Job[0])
			}
		}
		wantEqual(t, "order", order, []byte{1, 2, 3})
		if !full {
			t.Errorf("after a lost report: %+v", b.transport.reports[lost:])
		}
	})
}

// An error with details is stored up to its bound before its outcome is reported with the beginning and the
// end of the error. An error that cannot be stored delays its outcome by a moment, and later outcomes not at
// all.
func TestReport_StoresErrors(t *testing.T) {
	inBubble(t, Config{MaxError: 16 << 10}, func(t *testing.T, b *harness) {
		trace := strings.Repeat("  File \"a.py\", line 1\n", 1<<19) + "ValueError: the last line"
		details, err := json.Marshal(map[string]string{"traceback": trace}) // 11 MB
		if err != nil {
			t.Fatal(err)
		}
		fail := func(n byte, details []byte) {
			b.Report(job.Outcome{Job: job.ID{n}, N: 3, Status: job.Error, Fault: &job.Fault{Message: "m", Type: "ValueError", Code: "c", Details: details}}, nil)
		}
		fail(1, details)
		fail(2, nil)
		synctest.Wait()
		reported := b.transport.outcomes()
		if len(reported) != 2 || len(b.transport.attemptErrors) != 1 {
			t.Fatalf("%d reported, %d stored", len(reported), len(b.transport.attemptErrors))
		}
		stored := b.transport.attemptErrors[0]
		inline := reported[slices.IndexFunc(reported, func(o job.Outcome) bool { return o.Job == job.ID{1} })].Fault
		for _, c := range []struct {
			fault *job.Fault
			size  int
		}{{&stored.Error, 16 << 10}, {inline, job.MaxInlineFault}} {
			f := c.fault
			if f.Message != "m" || f.Type != "ValueError" || f.Code != "c" || !strings.HasSuffix(string(f.Details), `\nValueError: the last line"}`) || f.Size() > c.size || f.Size() < c.size*9/10 || !f.IsCut() {
				t.Errorf("an error of %d bytes: %s", f.Size(), f.Details)
			}
		}
		if stored.N != 3 || stored.At.IsZero() {
			t.Errorf("stored %+v", stored)
		}

		b.transport.set(func() { b.transport.storeErr = errDown })
		fail(3, details)
		synctest.Wait()
		fail(4, details)
		synctest.Wait()
		wantEqual(t, "reported", len(b.transport.outcomes()), 4)
		wantEqual(t, "attempts to store", b.transport.errorCalls, 2)
		b.transport.set(func() { b.transport.storeErr = nil })
		advance(errorStorePause)
		fail(5, details)
		synctest.Wait()
		wantEqual(t, "stored", len(b.transport.attemptErrors), 2)
		wantEqual(t, "reported", len(b.transport.outcomes()), 5)
	})
}

func TestReport_ResultStoreFails(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		b.transport.set(func() { b.transport.blobErr = 1 << 30 })
		large := make([]byte, maxStoringBytes/4)
		heard := make(chan job.Settled, 1)
		for i := range byte(4) {
			b.Report(job.Outcome{Job: job.ID{i + 1}, N: 1, Status: job.Success, Result: job.Value{Data: large}}, func(job.Settled) {})
		}
		advance(storeTimeout - time.Second)
		wantEqual(t, "reported while there is hope", len(b.transport.outcomes()), 0)
		b.Report(job.Outcome{Job: job.ID{5}, N: 1, Status: job.Success, Result: job.Value{Data: large}}, func(s job.Settled) { heard <- s })
		synctest.Wait()
		wantEqual(t, "beyond what may wait, heard", len(heard), 1)
		advance(2 * time.Second)
		got := b.transport.outcomes()
		wantEqual(t, "reported", len(got), 5)
		for _, o := range got {
			if o.Status != job.Success || o.Fault != nil || o.Blob != nil || len(o.Result.Data) > 0 || o.Dropped == nil || o.Dropped.Size != int64(len(large)) || o.Dropped.Reason == "" {
				t.Errorf("a result that was not stored is reported as %+v", o)
			}
		}
		// A result that is larger than the yard ever keeps is dropped without delay.
		b.transport.set(func() {
			b.transport.blobErr, b.transport.storeErr = 0, fmt.Errorf("the whole stream holds less: %w", job.ErrTooLarge)
		})
		b.Report(job.Outcome{Job: job.ID{7}, N: 1, Status: job.Success, Result: job.Value{Data: large}}, nil)
		advance(time.Second)
		if last := b.transport.outcomes()[5]; last.Status != job.Success || last.Dropped == nil || !strings.Contains(last.Dropped.Reason, "whole stream") {
			t.Errorf("a result that is too large is reported as %+v", last)
		}
		b.transport.set(func() { b.transport.storeErr = nil })

		// Later results are stored again.
		b.Report(job.Outcome{Job: job.ID{6}, N: 1, Status: job.Success, Result: job.Value{Data: large}}, nil)
		advance(time.Second)
		if last := b.transport.outcomes()[6]; last.Status != job.Success || last.Blob == nil {
			t.Errorf("once results are stored again: %+v", last.Status)
		}
	})
}
