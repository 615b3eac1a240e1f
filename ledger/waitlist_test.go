package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// checkWaitlists checks that each queue has exactly one waitlist for each class of its
// unfinished jobs.
func checkWaitlists(l *Ledger) error {
	want := map[*queue]map[string]map[*traits]bool{}
	for number := range l.jobs.records.all {
		r := l.jobs.at(number)
		if r.state.Ended() {
			continue
		}
		if want[r.queue] == nil {
			want[r.queue] = map[string]map[*traits]bool{}
		}
		name := r.waitlistName()
		if want[r.queue][name] == nil {
			want[r.queue][name] = map[*traits]bool{}
		}
		want[r.queue][name][r.traits] = true
		if wl, _ := r.queue.waitlists.Get(name); r.waitlist != wl {
			return fmt.Errorf("job %s is not in waitlist %q", r.id, name)
		}
	}
	all := 0
	var err error
	l.queues.byName.Scan(func(_ string, q *queue) bool {
		classes := map[string]bool{}
		q.waitlists.Scan(func(name string, wl *waitlist) bool {
			if ofRunner(wl.class) {
				classes[wl.class] = true
			}
			if n := len(want[q][name]); n == 0 || wl.traits != n || wl.name != name || wl.queue != q {
				err = fmt.Errorf("queue %s: waitlist %q of jobs with %d traits, want %d", q.name, name, wl.traits, n)
			}
			return err == nil
		})
		runners := len(classes)
		if all += runners; err == nil && (q.waitlists.Len() != len(want[q]) || q.runners != runners) {
			err = fmt.Errorf("queue %s: %d waitlists of %d runners, counted %d, want %d waitlists", q.name, q.waitlists.Len(), runners, q.runners, len(want[q]))
		}
		return err == nil
	})
	if err == nil && l.jobs.lines != all {
		err = fmt.Errorf("%d waitlists of runners, counted %d", all, l.jobs.lines)
	}
	return err
}

// waitlistHarness ingests, places and settles jobs of one lane.
type waitlistHarness struct {
	t  *testing.T
	l  *Ledger
	at Stamp
	n  int // number of jobs
}

func newWaitlistHarness(t *testing.T) *waitlistHarness {
	l, at := ledgerWithAuthority(t)
	return &waitlistHarness{t: t, l: l, at: at}
}

func (r *waitlistHarness) apply(c Command) Result {
	r.t.Helper()
	r.at.Index++
	r.at.At = r.at.At.Add(time.Millisecond)
	result := r.l.Apply(r.at, []Command{c, &MarkPublished{Events: r.l.LastEvent(), DeadLetters: r.l.LastDeadLetter()}})[0]
	if err := checkWaitlists(r.l); err != nil {
		r.t.Fatal(err)
	}
	return result
}

// job returns the next record of the lane.
func (r *waitlistHarness) job(queue, function string) job.Job {
	r.n++
	return job.Job{ID: jobID(r.n), Queue: queue, Function: function, Accepted: r.at.At, Position: job.Position{Seq: uint64(r.n)}}
}

// ingest ingests j, which must be the last job that was created.
func (r *waitlistHarness) ingest(j job.Job) Ingested {
	r.t.Helper()
	result := r.apply(&Ingest{Identity: "L0", From: j.Position.Seq - 1, To: j.Position.Seq, CreateQueues: true, Jobs: []job.Job{j}})
	if result.Err != nil {
		r.t.Fatal(result.Err)
	}
	return result.Ingested[0]
}

// place places dispatch n of a job.
func (r *waitlistHarness) place(id job.ID, n uint32) {
	r.t.Helper()
	if !r.apply(&Place{Placements: []Placement{{Job: id, N: n, Node: "n1", Incarnation: 1, Channel: "rrq/r/1"}}}).Placed[0] {
		r.t.Fatal("not placed")
	}
}

func (r *waitlistHarness) settle(id job.ID, n uint32, next job.Next) {
	r.apply(&Settle{Settlements: []Settlement{{Job: id, N: n, Next: next}}})
}

func (r *waitlistHarness) waitlists(queue string) int { return r.l.queues.get(queue).waitlists.Len() }

// TestWaitlists_RemovedWithLastJob checks that a waitlist is removed with the last
// unfinished job of its class, however that job ends: names chosen by producers must
// not accumulate.
func TestWaitlists_RemovedWithLastJob(t *testing.T) {
	ways := map[string]func(r *waitlistHarness, id job.ID){
		"completed": func(r *waitlistHarness, id job.ID) { r.place(id, 1); r.settle(id, 1, job.NextDone) },
		"dead":      func(r *waitlistHarness, id job.ID) { r.place(id, 1); r.settle(id, 1, job.NextDead) },
		"repeated": func(r *waitlistHarness, id job.ID) {
			r.place(id, 1)
			r.settle(id, 1, job.NextGiveBack)
			r.place(id, 2)
			r.settle(id, 2, job.NextDone)
		},
		"retried": func(r *waitlistHarness, id job.ID) {
			r.apply(&CancelJob{Job: id})
			r.apply(&RetryJob{Job: id})
			r.place(id, 2)
			r.settle(id, 2, job.NextDone)
		},
		"cancelled": func(r *waitlistHarness, id job.ID) { r.apply(&CancelJob{Job: id}) },
		"removed":   func(r *waitlistHarness, id job.ID) { r.apply(&RemoveJob{Job: id}) },
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			r := newWaitlistHarness(t)
			for i := range 3 * job.MaxPriority {
				j := r.job("mail", fmt.Sprintf("r%d#h", i))
				if i%3 == 0 {
					j.RunAt = r.at.At.Add(time.Hour)
				}
				r.ingest(j)
				if i%3 == 0 {
					r.at.At = r.at.At.Add(time.Hour)
					r.apply(&Observe{}) // promotes it
				}
				if n := r.waitlists("mail"); n != 1 {
					t.Fatalf("%d waitlists of one job", n)
				}
				way(r, j.ID)
				if n := r.waitlists("mail"); n != 0 {
					t.Fatalf("%d waitlists of no job", n)
				}
			}
			for _, function := range []string{"", "bare", "r1#h"} {
				r.ingest(r.job("mail", function))
			}
			copied := r.l.Copy()
			if n := copied.queues.get("mail").waitlists.Len(); n != 3 {
				t.Errorf("a copy has %d waitlists, want 3", n)
			}
		})
	}
}

// TestWaitlists_RunnersOfAQueue checks that the unfinished jobs of a queue name at most
// MaxQueueRunners runners: a job that names another becomes a dead letter, and
// accepted jobs always continue.
func TestWaitlists_RunnersOfAQueue(t *testing.T) {
	r := newWaitlistHarness(t)
	jobs := make([]job.Job, MaxQueueRunners)
	for i := range jobs {
		jobs[i] = r.job("mail", fmt.Sprintf("r%d#h", i))
		if i%4 == 1 {
			jobs[i].RunAt = r.at.At.Add(time.Minute)
		}
		if got := r.ingest(jobs[i]); got != IngestedWaiting && got != IngestedDelayed {
			t.Fatalf("runner %d: %s", i, ingestedNames[got])
		}
	}
	r.place(jobs[2].ID, 1) // an active job still counts
	late := r.job("mail", "late#h")
	before := r.l.LastDeadLetter()
	if got := r.ingest(late); got != IngestedKeysFull {
		t.Fatalf("one runner too many: %s", ingestedNames[got])
	}
	letter, _, known := r.l.Find(job.RecordID("L0", late.Position, late.Accepted))
	if !known || letter.State != job.Failed || !strings.Contains(letter.Reason, errQueueRunners.Error()) || r.l.LastDeadLetter() != before+1 {
		t.Errorf("its dead letter: %t, %s %q", known, letter.State, letter.Reason)
	}
	for _, function := range []string{"", "bare", "#x", "r0#other", "r1#other", "r2#other"} {
		if got := r.ingest(r.job("mail", function)); got != IngestedWaiting {
			t.Errorf("function %q: %s", function, ingestedNames[got])
		}
	}
	if got := r.ingest(r.job("post", "late#h")); got != IngestedWaiting {
		t.Errorf("another queue: %s", ingestedNames[got])
	}

	r.settle(jobs[2].ID, 1, job.NextGiveBack) // accepted jobs continue
	r.at.At = r.at.At.Add(time.Minute)
	r.apply(&Observe{})
	if q, _ := r.l.Queue("mail"); q.Counts[job.Delayed] != 0 || q.Counts[job.Active] != 0 {
		t.Errorf("jobs are not waiting again: %v", q.Counts)
	}

	r.apply(&CancelJob{Job: jobs[3].ID}) // permits another runner
	replacement := r.job("mail", "late#h")
	if got := r.ingest(replacement); got != IngestedWaiting {
		t.Errorf("a runner instead of another: %s", ingestedNames[got])
	}
	if err := r.apply(&RetryJob{Job: jobs[3].ID}).Err; !errors.Is(err, ErrRunnersFull) {
		t.Errorf("a retry for a runner too many: %v", err)
	}
	r.apply(&CancelJob{Job: replacement.ID})
	if err := r.apply(&RetryJob{Job: jobs[3].ID}).Err; err != nil {
		t.Errorf("a retry: %v", err)
	}
}

// TestWaitlists_RunnersOfGuardedJobs checks that a job with guards is also refused, and
// that a debounced job is not replaced by a refused one.
func TestWaitlists_RunnersOfGuardedJobs(t *testing.T) {
	r := newWaitlistHarness(t)
	held := r.job("mail", "first#h")
	held.Guards = &job.Guards{Debounce: job.Guard{Key: job.GuardKey{1}, TTL: time.Minute}}
	r.ingest(held)
	for i := range MaxQueueRunners - 1 {
		r.ingest(r.job("mail", fmt.Sprintf("r%d#h", i)))
	}
	unique := r.job("mail", "late#h")
	unique.Guards = &job.Guards{Unique: job.Guard{Key: job.GuardKey{2}, TTL: time.Hour}}
	merged := unique
	for _, guards := range []*job.Guards{unique.Guards, held.Guards} {
		if merged.Guards != guards {
			merged = r.job("mail", "late#h")
			merged.Guards = guards
		}
		if got := r.ingest(merged); got != IngestedKeysFull {
			t.Errorf("ingested: %s", ingestedNames[got])
		}
		if decision, ok := r.l.Decision(merged.Position); !ok || decision.Ingested != IngestedKeysFull || decision.Reason != errQueueRunners.Error() {
			t.Errorf("decision %+v", decision)
		}
	}
	if r.l.HeldKeys() != 1 {
		t.Errorf("%d keys are held", r.l.HeldKeys())
	}
	if view, _, _ := r.l.Find(held.ID); view.Function != "first#h" {
		t.Errorf("function of the debounced job is now %s", view.Function)
	}
	same := r.job("mail", "r0#h")
	same.Guards = held.Guards
	if got := r.ingest(same); got != IngestedDebounced {
		t.Errorf("for a runner in use: %s", ingestedNames[got])
	}
}

// TestWaitlists_RunnersOfAllQueues checks the limit for all queues together.
func TestWaitlists_RunnersOfAllQueues(t *testing.T) {
	l, at := ledgerWithAuthority(t)
	seq := uint64(0)
	ingest := func(queue string, runners int) (results []Ingested) {
		c := &Ingest{Identity: "L0", From: seq, CreateQueues: true}
		for i := range runners {
			seq++
			c.Jobs = append(c.Jobs, job.Job{
				ID: jobID(int(seq)), Queue: queue, Function: fmt.Sprintf("r%d#h", i), Accepted: at.At, Position: job.Position{Seq: seq},
			})
		}
		c.To = seq
		at.Index++
		return l.Apply(at, []Command{c, &MarkPublished{Events: l.LastEvent()}})[0].Ingested
	}
	for i := range MaxRunnerLines / MaxQueueRunners {
		for _, got := range ingest(fmt.Sprint("q", i), MaxQueueRunners) {
			if got != IngestedWaiting {
				t.Fatalf("queue %d: %s", i, ingestedNames[got])
			}
		}
	}
	if got := ingest("another", 1)[0]; got != IngestedKeysFull {
		t.Errorf("one waitlist too many: %s", ingestedNames[got])
	}
	if got := ingest("q0", 1)[0]; got != IngestedWaiting {
		t.Errorf("existing waitlist: %s", ingestedNames[got])
	}
	if dead := l.DeadLettersAfter(0); len(dead) != 1 || !strings.Contains(dead[0].Reason, errRunnerLines.Error()) {
		t.Errorf("dead letters %+v", dead)
	}
	if err := checkInvariants(l); err != nil {
		t.Error(err)
	}
}

// TestWaitlists_SnapshotBeyondTheBound checks that a snapshot of a release without the
// limit can be decoded, and that its jobs continue.
func TestWaitlists_SnapshotBeyondTheBound(t *testing.T) {
	r := newWaitlistHarness(t)
	r.ingest(r.job("mail", ""))
	const runners = 2 * MaxQueueRunners
	var jobs []job.Job
	for i := range runners {
		j := r.job("mail", fmt.Sprintf("r%d#h", i))
		added := r.l.newStoredJob(&j, r.l.queues.get("mail"))
		r.l.enqueue(nil, &added) // without the limit
		jobs = append(jobs, j)
	}
	back, err := Decode(bytes.NewReader(encoded(t, r.l)))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(encoded(t, back), encoded(t, r.l)) || back.queues.get("mail").waitlists.Len() != runners+1 {
		t.Fatalf("decoded ledger differs, with %d waitlists", back.queues.get("mail").waitlists.Len())
	}
	r.l = back
	for _, j := range jobs[:runners/2+1] {
		r.place(j.ID, 1)
		r.settle(j.ID, 1, job.NextDone)
	}
	r.l.lanes[0].Cursor = uint64(r.n)
	for _, want := range []Ingested{IngestedWaiting, IngestedKeysFull} {
		if got := r.ingest(r.job("mail", fmt.Sprint("late", want, "#h"))); got != want {
			t.Errorf("with %d waitlists: %s", r.waitlists("mail"), ingestedNames[got])
		}
	}
}

// TestWaitlists_SameWhateverTheWay checks that replicas refuse the same jobs and have
// the same hash, whether or not they were decoded from snapshots in between.
func TestWaitlists_SameWhateverTheWay(t *testing.T) {
	for seed := range uint64(3) {
		rng := rand.New(rand.NewPCG(seed, 1))
		a, restored := newWaitlistHarness(t), newWaitlistHarness(t)
		refused := 0
		for range 1000 {
			c := a.any(rng)
			if rng.IntN(20) == 0 {
				back, err := Decode(bytes.NewReader(encoded(t, restored.l)))
				if err != nil {
					t.Fatal(err)
				}
				restored.l = back
			}
			got, want := restored.apply(c), a.apply(c)
			if text := fmt.Sprint(formatResults([]Result{want})); fmt.Sprint(formatResults([]Result{got})) != text {
				t.Fatalf("seed %d, %T: %v, with snapshots: %v", seed, c, want, got)
			}
			if errors.Is(want.Err, ErrRunnersFull) || len(want.Ingested) > 0 && want.Ingested[0] == IngestedKeysFull {
				refused++
			}
		}
		if err := checkInvariants(restored.l); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		if hash(t, a.l) != hash(t, restored.l) {
			t.Errorf("seed %d: hashes differ", seed)
		}
		if refused == 0 {
			t.Errorf("seed %d: nothing was refused", seed)
		}
	}
}

// any returns a random command about a job of one of many runners.
func (r *waitlistHarness) any(rng *rand.Rand) Command {
	if rng.IntN(3) > 0 || r.n == 0 {
		j := r.job("mail", fmt.Sprintf("r%d#h", rng.IntN(2*MaxQueueRunners)))
		if rng.IntN(3) == 0 {
			j.RunAt = r.at.At.Add(time.Duration(rng.IntN(100)) * time.Millisecond)
		}
		return &Ingest{Identity: "L0", From: j.Position.Seq - 1, To: j.Position.Seq, CreateQueues: true, Jobs: []job.Job{j}}
	}
	id := jobID(1 + rng.IntN(r.n))
	view, _, _ := r.l.Find(id)
	switch rng.IntN(5) {
	case 0:
		return &CancelJob{Job: id}
	case 1:
		return &RemoveJob{Job: id}
	case 2:
		return &RetryJob{Job: id}
	case 3:
		return &Place{Placements: []Placement{{Job: id, N: view.Dispatches, Node: "n1", Incarnation: 1, Channel: "rrq/r/1"}}}
	}
	return &Settle{Settlements: []Settlement{{Job: id, N: view.Dispatches, Next: job.Next(1 + rng.IntN(4))}}}
}
