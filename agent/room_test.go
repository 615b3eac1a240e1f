package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"yardmaster/job"
)

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
