package ledger

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/yardmaster-dev/yardmaster/job"
)

// horizonTest is a ledger with two lanes.
type horizonTest struct {
	*testing.T
	*Ledger
	stamp Stamp
}

func newHorizonTest(t *testing.T) *horizonTest { return newLeveledTest(t, 0) }

// newLeveledTest is newHorizonTest with a ledger of the given level.
func newLeveledTest(t *testing.T, level uint8) *horizonTest {
	h := &horizonTest{t, New(), stampAt(1, 0, 0)}
	h.Apply(h.stamp, []Command{&Lead{Owner: "n1", Until: scriptStart.Add(1000 * time.Hour), Level: level}})
	h.stamp.Epoch = h.Authority().Epoch
	h.apply(0, &Bootstrap{Secret: []byte("s"), Lanes: []string{"L0", "L1"}})
	return h
}

// apply applies an entry after a pause, and returns the result of its last command.
func (h *horizonTest) apply(pause time.Duration, cmds ...Command) (last Result) {
	h.Helper()
	h.stamp.Index++
	h.stamp.At = h.stamp.At.Add(pause)
	for _, r := range h.Apply(h.stamp, append(cmds, &MarkPublished{Events: h.LastEvent()})) {
		if r.Err != nil {
			h.Fatal(r.Err)
		}
		last = r
	}
	return last
}

// ingest ingests a record of the n-th job from a lane.
func (h *horizonTest) ingest(lane uint8, n int) Ingested {
	h.Helper()
	from := h.Lanes()[lane].Cursor
	h.stamp.Index++
	r := h.Apply(h.stamp, []Command{&Ingest{Lane: lane, Identity: h.Lanes()[lane].Identity, From: from, To: from + 1, CreateQueues: true, Jobs: []job.Job{{
		ID: jobID(n), Queue: "mail", Position: job.Position{Lane: lane, Seq: from + 1}, Accepted: scriptStart, Priority: job.DefaultPriority,
	}}}})
	if r[0].Err != nil {
		h.Fatal(r[0].Err)
	}
	return r[0].Ingested[0]
}

// read marks lanes as ingested to their ends at the ledger's present time.
func (h *horizonTest) read(lanes ...uint8) {
	h.Helper()
	c := &MarkIngested{}
	for _, lane := range lanes {
		c.Lanes = append(c.Lanes, LaneEnd{Lane: lane, Last: h.Lanes()[lane].Cursor, At: h.Now()})
	}
	h.apply(0, c)
}

// end removes a job's record, so that only its id is kept.
func (h *horizonTest) end(n int) {
	h.Helper()
	h.apply(0, &CancelJob{Job: jobID(n), Reason: "test"})
	h.apply(0, &RemoveJob{Job: jobID(n)})
}

// TestForget_UnreadableLane checks that a copy of a record, in a lane that could not be
// read for an hour, does not become a job again, and that ids are forgotten once that
// lane was ingested past the time at which they were.
func TestForget_UnreadableLane(t *testing.T) {
	h := newHorizonTest(t)
	h.read(0, 1)
	h.ingest(0, 0)
	h.end(0)
	for range 60 {
		h.apply(time.Minute)
		h.read(0)
	}
	if got := h.ingest(1, 0); got != IngestedKnown {
		t.Fatalf("a copy that was ingested an hour later is %d: the job runs again", got)
	}

	h.apply(0, &MarkIngested{Lanes: []LaneEnd{{Lane: 1, Last: h.Lanes()[1].Cursor + 1, At: h.Now()}}})
	if !h.Lanes()[1].IngestedUntil.Equal(scriptStart) {
		t.Fatal("a lane counts as ingested although its last record is not")
	}
	h.read(1)
	h.apply(0)
	if _, known := h.Known(jobID(0)); known {
		t.Error("the id is still known")
	}
	if got := h.ingest(1, 0); got != IngestedWaiting {
		t.Errorf("a new record with the id is %d after the dedupe horizon", got)
	}
}

// TestForget_Decision checks that the decision about a record is kept while a lane may
// hold a copy of the record.
func TestForget_Decision(t *testing.T) {
	h := newHorizonTest(t)
	h.read(0, 1)
	record := func(lane uint8, n int) Ingested {
		j := job.Job{ID: jobID(n), Queue: "mail", Position: job.Position{Lane: lane, Seq: h.Lanes()[lane].Cursor + 1}, Accepted: scriptStart.Add(time.Duration(n) * time.Second)}
		j.Guards = &job.Guards{Rate: job.Guard{Key: job.GuardKey{1}, TTL: time.Minute}}
		return h.applyIngest(&j)
	}
	if record(0, 0) != IngestedWaiting || record(0, 1) != IngestedRateLimited {
		t.Fatal("the second record is not limited")
	}
	for range 60 {
		h.apply(time.Minute)
		h.read(0)
	}
	if got := record(1, 1); got != IngestedRateLimited {
		t.Errorf("a copy of a refused record is %d an hour later", got)
	}
}

func (h *horizonTest) applyIngest(j *job.Job) Ingested {
	h.Helper()
	h.stamp.Index++
	lane := h.Lanes()[j.Position.Lane]
	r := h.Apply(h.stamp, []Command{&Ingest{Lane: j.Position.Lane, Identity: lane.Identity, From: lane.Cursor, To: lane.Cursor + 1, CreateQueues: true, Jobs: []job.Job{*j}}})
	if r[0].Err != nil {
		h.Fatal(r[0].Err)
	}
	return r[0].Ingested[0]
}

// TestForgottenIDs_Bound checks what is ingested, and what an operator is told, when the
// ledger has as many ids as it may have.
func TestForgottenIDs_Bound(t *testing.T) {
	h := newHorizonTest(t)
	h.read(0, 1)
	h.ingest(0, 0)
	h.end(0)
	check := func(when, warning string, may ...bool) {
		t.Helper()
		for lane, want := range may {
			if h.MayIngest(uint8(lane)) != want {
				t.Errorf("%s: lane %d may be ingested: %t, want %t", when, lane, !want, want)
			}
		}
		if got := h.ForgottenIDs().Warning(); !strings.Contains(got, warning) || warning == "" && got != "" {
			t.Errorf("%s: warning %q, want %q", when, got, warning)
		}
		if got := h.Snapshot(SnapshotContext{Now: h.Now()}).Readiness.Reasons; len(got) > 0 {
			t.Errorf("%s: not ready: %q", when, got)
		}
	}
	check("with few ids", "", true, true)
	h.jobs.forgotten.size += MaxDedupeIDs // as if it had that many
	check("with young ids", "because more jobs end within 10m than are expected", false, false)
	for range 12 {
		h.apply(time.Minute)
		h.read(0)
	}
	check("while lane 1 is not read", "because lane 1 is ingested only up to "+FormatTime(scriptStart)+": make the lane readable", false, true)
	h.read(1)
	h.jobs.forgotten.size -= MaxDedupeIDs
	h.apply(0)
	check("when it was read", "", true, true)
	if n := h.ForgottenIDs().Count; n != 0 {
		t.Errorf("%d ids are kept", n)
	}
}

// TestForget_Properties stores records in two lanes, many of them in both, which are read at
// random times, and checks that no record makes a job twice, however late it is ingested.
func TestForget_Properties(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		h := newHorizonTest(t)
		var stored [2][]int // jobs, by lane
		var ends [2]*LaneEnd
		ran := map[int]bool{}
		jobs := 0
		for range rapid.IntRange(1, 80).Draw(r, "steps") {
			lane := uint8(rapid.IntRange(0, 1).Draw(r, "lane"))
			cursor := h.Lanes()[lane].Cursor
			switch rapid.IntRange(0, 4).Draw(r, "step") {
			case 0:
				stored[lane] = append(stored[lane], jobs)
				if rapid.Bool().Draw(r, "copied") {
					stored[1-lane] = append(stored[1-lane], jobs)
				}
				jobs++
			case 1:
				for _, n := range stored[lane][cursor:] {
					if h.ingest(lane, n) != IngestedWaiting {
						continue
					}
					if ran[n] {
						r.Fatalf("job %d runs again", n)
					}
					ran[n] = true
					h.end(n)
				}
			case 2: // the authority sees where the lane ends
				if ends[lane] == nil {
					ends[lane] = &LaneEnd{Lane: lane, Last: uint64(len(stored[lane])), At: h.Now()}
				}
			case 3:
				if ends[lane] != nil {
					h.apply(0, &MarkIngested{Lanes: []LaneEnd{*ends[lane]}})
					if cursor >= ends[lane].Last {
						ends[lane] = nil
					}
				}
			case 4:
				h.apply(time.Duration(rapid.IntRange(0, 20).Draw(r, "minutes")) * time.Minute)
			}
		}
	})
}
