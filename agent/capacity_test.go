package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

func TestOffer_LastValueWins(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		hold := make(chan struct{})
		b.transport.set(func() { b.transport.holdReports = hold })
		offer := func(w string, free int) { b.Offer(job.Offer{Kind: job.Overhop, Key: "mail", Worker: w, Free: free}) }
		offer("a", 1)
		synctest.Wait()
		for i := range 50 {
			offer("a", i)
			offer("b", i)
			synctest.Wait()
		}
		offer("b", 0)
		before := len(b.transport.reports)
		b.transport.set(func() { b.transport.holdReports = nil })
		close(hold)
		advance(2 * coalesceDelay)
		wantEqual(t, "capacity", b.transport.lastOffers(), map[string]int{"a": 49})
		if n := len(b.transport.reports) - before; n != 1 {
			t.Errorf("100 changes during a report took %d more reports", n)
		}
		var rev uint64
		for _, r := range b.transport.reports {
			if r.Rev != rev+1 {
				t.Errorf("rev %d after %d", r.Rev, rev)
			}
			rev = r.Rev
		}
		offer("a", 0)
		advance(2 * coalesceDelay)
		wantEqual(t, "withdrawn", b.transport.lastOffers(), map[string]int{})
	})
}

func TestOffer_ReportsSeenBatch(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		free := 4
		b.target.onStart = func(job.Assignment) {
			free--
			b.Offer(job.Offer{Kind: job.Overhop, Key: "mail", Worker: "w", Free: free})
		}
		b.Offer(job.Offer{Kind: job.Overhop, Key: "mail", Worker: "w", Free: free})
		synctest.Wait()
		b.Assign(batch(7, assignment(1), assignment(2)))
		advance(2 * coalesceDelay)
		last := b.transport.reports[len(b.transport.reports)-1]
		wantEqual(t, "last report", last.SeenBatch, uint64(7))
		wantEqual(t, "capacity", b.transport.lastOffers(), map[string]int{"w": 2})
		// A batch that changes no offer is reported as seen, too.
		b.target.full = true
		b.Assign(batch(8, assignment(3)))
		advance(2 * coalesceDelay)
		last = b.transport.reports[len(b.transport.reports)-1]
		wantEqual(t, "last report", []any{last.SeenBatch, len(last.Offers)}, []any{uint64(8), 1})
		b.finish(1)
		b.finish(2)
	})
}

func TestOffer_FullOnRequest(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		for _, w := range []string{"a", "b", "c"} {
			b.Offer(job.Offer{Kind: job.Overhop, Key: "mail", Worker: w, Free: 1})
			synctest.Wait()
		}
		b.transport.set(func() { b.transport.wantFull = true })
		advance(1100 * time.Millisecond)
		last := b.transport.reports[len(b.transport.reports)-1]
		if !last.Full || len(last.Offers) != 3 {
			t.Errorf("report after WantFull: %+v", last)
		}
	})
}
