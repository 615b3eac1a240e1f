package scheduler

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// TestReclaim_RelocatesFewRecords checks that a lane's records are purged once no job
// needs them, although one in between is of a delayed job, and that this job still runs,
// with its body.
func TestReclaim_RelocatesFewRecords(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		h.lanes.recordSize = 1 << 20
		h.node("n1").offer(job.Overhop, "mail", "w1", 8)
		first := func() (seq uint64) {
			h.lanes.set(func() { seq = h.lanes.lanes[0].first })
			return seq
		}
		for range 99 {
			h.enqueue("mail", "", anyJob)
		}
		late := h.enqueue("mail", "", fmt.Sprintf(`{"params":{},"run_at":%q}`, time.Now().Add(5*time.Minute).Format(time.RFC3339)))
		for range 100 {
			h.enqueue("mail", "", anyJob)
		}
		h.until("all but one ran", func() bool { return h.counts().Delivered == 199 })
		h.advance(reclaimInterval + time.Second)
		if got := first(); got != 200 {
			t.Fatalf("the lane begins at %d, want 200: the record at the cursor", got)
		}
		view, _ := h.find(late)
		if want := (job.Position{Lane: job.RelocatedLane, Seq: 1}); view.Position != want {
			t.Fatalf("the delayed job's record is at %s, want %s", view.Position, want)
		}
		h.advance(5 * time.Minute)
		h.until("the late one ran", func() bool { return h.state(late) == job.Completed })
	})
}

// TestReclaim_RelocatedRecords checks that the stream of relocated records is reclaimed
// like a lane: when most of them are not needed any more, the others are copied again.
func TestReclaim_RelocatedRecords(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		h.lanes.recordSize = 8 << 20 // eight records are worth a purge
		h.keepFinished()
		n := h.node("n1")
		delayed := func(d time.Duration) string {
			return fmt.Sprintf(`{"params":{},"run_at":%q}`, time.Now().Add(d).Format(time.RFC3339))
		}
		n.offer(job.Overhop, "mail", "w1", 8)
		var late job.ID
		const rounds, perRound = 4, 12
		for round := range rounds { // in each, 12 of 312 jobs wait 3 minutes, and one of all 30
			for i := range perRound {
				h.enqueue("mail", "", delayed(3*time.Minute))
				if round == 0 && i == 0 {
					late = h.enqueue("mail", "", delayed(30*time.Minute))
				}
				for range 25 {
					h.enqueue("mail", "", anyJob)
				}
			}
			h.until("the others ran", func() bool { return h.counts().Pending+h.counts().Notified == 0 })
			h.advance(3 * time.Minute)
		}
		h.lanes.set(func() {
			if r := &h.lanes.relocated; r.first < 2*perRound || len(r.records) > 2*rounds*perRound {
				t.Errorf("the relocated records are %d to %d", r.first, len(r.records))
			}
		})
		h.advance(30 * time.Minute)
		h.until("the late one ran", func() bool { return h.state(late) == job.Completed })
	})
}

// TestPlanReclaim checks how many needed records are relocated, and how far the stream
// is then purged.
func TestPlanReclaim(t *testing.T) {
	id := job.RecordID("lane", job.Position{Seq: 1}, time.Unix(0, 0))
	at := func(seqs ...uint64) (needed []ledger.NeededRecord) {
		for _, seq := range seqs {
			needed = append(needed, ledger.NeededRecord{Seq: seq, Job: id})
		}
		return needed
	}
	const mib = 1 << 20
	lane := LaneInfo{First: 1, Last: 1000, Bytes: 1000 * mib}
	nearlyFull := LaneInfo{First: 1, Last: 1000, Bytes: 1000 * mib, MaxBytes: 1200 * mib}
	for _, c := range []struct {
		name      string
		info      LaneInfo
		needs     ledger.LaneNeeds
		relocated bool
		want      reclaimPlan

		perMessage float64 // records; 0: one
	}{
		{"nothing is needed", lane, ledger.LaneNeeds{End: 990}, false, reclaimPlan{below: 990, gain: 989 * mib}, 0},
		{"the last record is kept", lane, ledger.LaneNeeds{End: 5000}, true, reclaimPlan{below: 1000, gain: 999 * mib}, 0},
		{"not worth a purge", lane, ledger.LaneNeeds{End: 60}, false, reclaimPlan{}, 0},
		{"one old record", lane, ledger.LaneNeeds{Count: 1, Oldest: at(2), End: 990}, false, reclaimPlan{relocate: 1, below: 990, gain: 989 * mib}, 0},
		{"too many old records", lane, ledger.LaneNeeds{Count: 8, Oldest: at(1, 2, 3, 4, 5, 6, 7, 8), End: 100}, false, reclaimPlan{}, 0},
		{"as many, and the lane is nearly full", nearlyFull, ledger.LaneNeeds{Count: 8, Oldest: at(1, 2, 3, 4, 5, 6, 7, 8), End: 200}, false, reclaimPlan{relocate: 8, below: 200, gain: 199 * mib}, 0},
		{"as many, and a message holds 64 records", lane, ledger.LaneNeeds{Count: 8, Oldest: at(1, 2, 3, 4, 5, 6, 7, 8), End: 100}, false, reclaimPlan{relocate: 8, below: 100, gain: 99 * mib}, 64},
		{"others are needed, too", lane, ledger.LaneNeeds{Count: 100, Oldest: at(2, 500), End: 990}, false, reclaimPlan{relocate: 1, below: 500, gain: 499 * mib}, 0},
		{"a dead letter is not published", lane, ledger.LaneNeeds{Count: 2, Oldest: []ledger.NeededRecord{{Seq: 2, Job: id}, {Seq: 300, Job: id, Fixed: true}}, End: 990}, false, reclaimPlan{relocate: 1, below: 300, gain: 299 * mib}, 0},
		{"the dead letter of a job that waits again is not published", lane, ledger.LaneNeeds{Count: 2, Oldest: []ledger.NeededRecord{{Seq: 1, Job: id}, {Seq: 1, Job: id, Fixed: true}}, End: 990}, false, reclaimPlan{}, 0},
		{"already purged", LaneInfo{First: 900, Last: 1000, Bytes: 100 * mib}, ledger.LaneNeeds{Count: 1, Oldest: at(900), End: 990}, false, reclaimPlan{relocate: 1, below: 990, gain: 89 * mib}, 0},
		{"empty", LaneInfo{First: 1001, Last: 1000}, ledger.LaneNeeds{End: 1000}, false, reclaimPlan{}, 0},
	} {
		got := planReclaim(c.info, &c.needs, c.relocated, max(c.perMessage, 1))
		if got.gain /= mib; got.gain != c.want.gain/mib || got.relocate != c.want.relocate || got.below != c.want.below {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// TestReclaim_SkipsReplacedStream checks that another stream under the lane's
// name is not purged.
func TestReclaim_SkipsReplacedStream(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		h.node("n1").offer(job.Overhop, "mail", "w1", 8)
		for range 100 {
			h.enqueue("mail", "", anyJob)
		}
		h.until("all ran", func() bool { return h.counts().Delivered == 100 })
		h.lanes.set(func() { h.lanes.lanes[0].identity = "another" })
		h.advance(2 * reclaimInterval)
		h.lanes.set(func() {
			if got := h.lanes.lanes[0].first; got != 1 {
				t.Errorf("the other stream was purged below %d", got)
			}
		})
	})
}

// TestReclaim_RelocatedFull checks that records of lanes leave enough space in the stream
// of relocated records to reclaim that stream, although its first record is needed.
func TestReclaim_RelocatedFull(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		const limit = 64 // records of a stream
		h.lanes.recordSize = 1 << 20
		h.lanes.set(func() { h.lanes.max = limit << 20 })
		h.node("n1").offer(job.Overhop, "mail", "w1", 8)
		kept := func(number uint8) (n uint64) {
			h.lanes.set(func() { n = h.lanes.lane(number).size() })
			return n
		}
		var delayed []job.ID
		ran := uint64(0)
		late := fmt.Sprintf(`{"params":{},"run_at":%q}`, time.Now().Add(24*time.Hour).Format(time.RFC3339))
		for kept(0) < limit {
			for range 12 {
				delayed = append(delayed, h.enqueue("mail", "", late))
			}
			for kept(0) < limit {
				h.enqueue("mail", "", anyJob)
				ran++
			}
			h.until("the others ran", func() bool { return h.counts().Delivered == ran })
			h.advance(reclaimInterval)
		}
		if n := kept(job.RelocatedLane); n > RelocatedLimit(limit) {
			t.Errorf("%d records were relocated, want at most %d", n, RelocatedLimit(limit))
		}
		inLane := slices.IndexFunc(delayed, func(id job.ID) bool {
			view, _ := h.find(id)
			return !view.Position.Relocated()
		})
		h.propose(&ledger.CancelJob{Job: delayed[inLane]})
		before := kept(0)
		h.advance(reclaimInterval)
		if now := kept(0); now != before {
			t.Errorf("the lane was purged from %d to %d records, which is not worth stalling it", before, now)
		}
		for _, id := range delayed[1:] {
			h.propose(&ledger.CancelJob{Job: id})
		}
		h.advance(reclaimInterval)
		if lane, relocated := kept(0), kept(job.RelocatedLane); lane > limit/2 || relocated > limit/2 {
			t.Errorf("after all but the oldest job were cancelled, the lane has %d records, and %d are relocated", lane, relocated)
		}
		if view, _ := h.find(delayed[0]); !view.Position.Relocated() {
			t.Errorf("the record of the job that waits is at %s", view.Position)
		}
	})
}
