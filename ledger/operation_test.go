package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/yardmaster-dev/yardmaster/job"
)

// operation parses the commands about operations:
//
//	operate <action> <query> [key=k rate=n to=queue params=json keep=y]
//	operation <number> [running|paused|cancelled] [rate=n]
//	step <number> <from> <to> <job>#<n>=<state>… [skipped=n failed=n waiting=text done=y relocated=seq]
//	     from, to: <job>@<time of acceptance>, or - for the place before all jobs
func (s *script) operation(verb string, words []string) Command {
	switch verb {
	case "operate":
		c := &StartOperation{Settings: OperationSettings{
			Query: words[1], Until: s.time("1h"), Key: option(words, "key"), To: option(words, "to"), KeepAttempts: option(words, "keep") != "",
		}}
		c.Settings.Action, _ = ParseOperationAction(words[0])
		if rate := option(words, "rate"); rate != "" {
			c.Settings.Rate = uint32(s.number(rate))
		}
		if params := option(words, "params"); params != "" {
			c.Settings.Params = []byte(params)
		}
		return c
	case "operation":
		c := &ChangeOperation{Number: s.number(words[0])}
		if i := slices.Index(operationStates[1:], words[1]); i >= 0 {
			c.State = OperationState(i + 1)
		}
		if rate := option(words, "rate"); rate != "" {
			c.Rate = new(uint32(s.number(rate)))
		}
		return c
	}
	c := &StepOperation{Number: s.number(words[0]), From: s.place(words[1]), To: s.place(words[2]), Waiting: option(words, "waiting"), Done: option(words, "done") != ""}
	for _, word := range words[3:] {
		name, state, ok := strings.Cut(word, "=")
		if !strings.Contains(name, "#") || !ok {
			continue
		}
		id, n := s.dispatch(name)
		j := OperationJob{Job: id, N: n}
		for j.State = job.Waiting; j.State.String() != state; j.State++ {
		}
		if seq := option(words, "relocated"); seq != "" {
			j.Relocated = s.number(seq)
		}
		if also := option(words, "also"); also != "" {
			other := job.Waiting
			for ; other.String() != also; other++ {
			}
			j.Also.Add(other)
		}
		c.Jobs = append(c.Jobs, j)
	}
	if n := option(words, "skipped"); n != "" {
		c.Counts.Skipped.NotFailed = s.number(n)
	}
	if n := option(words, "failed"); n != "" {
		c.Counts.Failed = s.number(n)
		c.Failures = []OperationFailure{{s.id("x"), "its params do not match"}}
	}
	return c
}

func (s *script) place(word string) JobPlace {
	name, at, found := strings.Cut(word, "@")
	if !found {
		return JobPlace{}
	}
	return JobPlace{s.time(at).UnixNano(), s.id(name)}
}

// showOperations writes the operations.
func (s *script) showOperations() {
	for _, op := range s.ledger.Operations() {
		fmt.Fprintf(&s.out, "%d %s %s %q: changed %d skipped %d failed %d, cursor %s", op.Number, op.Action, op.State, op.Query, op.Changed, op.Skipped.Total(), op.Failed, unixNano(op.Cursor.Accepted).Sub(scriptStart))
		if reasons := op.Skipped.ByReason(); reasons != nil {
			fmt.Fprintf(&s.out, ", skipped %v", reasons)
		}
		for _, f := range op.Failures {
			fmt.Fprintf(&s.out, ", %s: %s", f.Job, f.Text)
		}
		if op.Waiting != "" {
			fmt.Fprintf(&s.out, ", waiting for %s", op.Waiting)
		}
		if !op.Ended.IsZero() {
			fmt.Fprintf(&s.out, ", ended %s", FormatTime(op.Ended))
		}
		fmt.Fprintln(&s.out)
	}
}

// checkOperations checks the table of operations by itself.
func checkOperations(l *Ledger) error {
	unended, ended, first := 0, 0, int64(0)
	for i, op := range l.operations.all {
		switch {
		case i > 0 && l.operations.all[i-1].Number >= op.Number || op.Number > l.operations.last:
			return fmt.Errorf("operation %d is not in order", op.Number)
		case op.State.Ended() != !op.Ended.IsZero():
			return fmt.Errorf("operation %d is %s and ended at %s", op.Number, op.State, op.Ended)
		case len(op.Failures) > MaxOperationFailures || uint64(len(op.Failures)) > op.Failed:
			return fmt.Errorf("operation %d has %d of %d failures", op.Number, len(op.Failures), op.Failed)
		case op.State.Ended():
			ended++
			if at := op.Ended.UnixNano(); first == 0 || at < first {
				first = at
			}
		default:
			unended++
		}
	}
	if unended > MaxOperations || ended > MaxEndedOperations || first != l.operations.firstAt {
		return fmt.Errorf("%d operations run, %d have ended, the first at %d and not %d", unended, ended, first, l.operations.firstAt)
	}
	return nil
}

// operation draws a command about operations. A step begins at the cursor, most of the time.
func (g *generator) operation(t *rapid.T) Command {
	all := g.ledger.Operations()
	if len(all) == 0 || rapid.IntRange(0, 5).Draw(t, "start") == 0 {
		action := OperationAction(rapid.IntRange(1, 4).Draw(t, "action"))
		c := &StartOperation{Settings: OperationSettings{Action: action, Query: "state:failed", Until: g.at.At, KeepAttempts: rapid.Bool().Draw(t, "keep")}}
		if rapid.Bool().Draw(t, "to") {
			c.Settings.To = "post"
		}
		return c
	}
	op := rapid.SampledFrom(all).Draw(t, "operation")
	if rapid.IntRange(0, 4).Draw(t, "change") == 0 {
		c := &ChangeOperation{Number: op.Number, State: OperationState(rapid.IntRange(0, 4).Draw(t, "state"))}
		if rapid.Bool().Draw(t, "rated") {
			c.Rate = new(uint32(rapid.IntRange(0, 2).Draw(t, "rate")))
		}
		return c
	}
	c := &StepOperation{Number: op.Number, From: op.Cursor, To: op.Cursor, Done: rapid.IntRange(0, 9).Draw(t, "done") == 0, Counts: OperationCounts{Skipped: Skips{Active: 1}}}
	c.To.Accepted++
	if rapid.IntRange(0, 5).Draw(t, "stale") == 0 {
		c.From.Accepted--
	}
	for range rapid.IntRange(0, 4).Draw(t, "jobs") {
		id, n := g.dispatch(t)
		view, _, _ := g.ledger.Find(id)
		c.Jobs = append(c.Jobs, OperationJob{Job: id, N: n, State: view.State, Also: States(rapid.Uint16().Draw(t, "also"))})
	}
	return c
}

// TestOperation_ExactlyOnce lets several nodes work on an operation at once, with steps from
// cursors that may be outdated, while jobs change, members take snapshots and operators pause.
// At the end, each job has been counted once, and has been retried as often as it was counted as
// changed.
func TestOperation_ExactlyOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const jobs = 12
		l, stamp := ledgerWithFailedJobs(t, jobs)
		apply := func(c Command) Result {
			stamp.Index++
			return l.Apply(stamp, []Command{c})[0]
		}
		by := Asked{By: Actor{Name: "ann", Door: DoorCLI}}
		if r := apply(&StartOperation{Settings: OperationSettings{Action: OperationRetry, Query: "state:failed"}, Asked: by}); r.Err != nil {
			t.Fatal(r.Err)
		}
		var prepared []*StepOperation
		for n := 0; ; n++ {
			op := l.Operation(1)
			if op.State == OperationDone {
				break
			}
			switch choice := rapid.IntRange(0, 9).Draw(t, "then"); {
			case choice < 3 || n > 200:
				prepared = append(prepared, stepOf(l, op, jobs, rapid.IntRange(1, 5).Draw(t, "page")))
			case choice < 6 && len(prepared) > 0:
				i := rapid.IntRange(0, len(prepared)-1).Draw(t, "step") // it stays, and may be proposed again
				before := *op
				r := apply(prepared[i])
				if r.Err != nil && !cmp.Equal(before, *l.Operation(1)) {
					t.Fatalf("a step that was refused with %v has changed the operation", r.Err)
				}
			case choice == 6:
				apply(&ChangeOperation{Number: 1, State: rapid.SampledFrom([]OperationState{OperationRunning, OperationPaused}).Draw(t, "state")})
			case choice == 7:
				apply(&RetryJob{Job: jobID(rapid.IntRange(1, jobs).Draw(t, "retried"))})
			case choice == 8:
				apply(&RemoveJob{Job: jobID(rapid.IntRange(1, jobs).Draw(t, "removed"))})
			default:
				l = roundTrip(t, l)
			}
			if n > 200 {
				apply(&ChangeOperation{Number: 1, State: OperationRunning})
				apply(prepared[len(prepared)-1])
			}
			if err := checkInvariants(l); err != nil {
				t.Fatal(err)
			}
		}
		retried := map[job.ID]int{}
		l.EventsAfter(0, func(_ uint64, _ time.Time, e *Event) bool {
			if e.Kind == OperatorActed && e.A == "job.retry" && strings.HasPrefix(e.Extra.By.Reason, "operation 1") {
				retried[e.Job]++
			}
			return true
		})
		op := l.Operation(1)
		for id, times := range retried {
			if times > 1 {
				t.Fatalf("job %s was retried %d times", id, times)
			}
		}
		if op.Matched() != jobs || op.Changed != uint64(len(retried)) {
			t.Fatalf("%+v of %d jobs, %d were retried", op.OperationCounts, jobs, len(retried))
		}
	})
}

// stepOf returns the step that follows the cursor of an operation, of at most page jobs. All jobs
// matched when it began.
func stepOf(l *Ledger, op *Operation, jobs, page int) *StepOperation {
	c := &StepOperation{Number: op.Number, From: op.Cursor, To: op.Cursor}
	for n := 1; n <= jobs; n++ {
		place := JobPlace{int64(n), jobID(n)}
		if place.Compare(op.Cursor) <= 0 {
			continue
		}
		if page--; page < 0 {
			return c
		}
		c.To = place
		if view, _, ok := l.Find(jobID(n)); ok && view.State == job.Failed {
			c.Jobs = append(c.Jobs, OperationJob{Job: jobID(n), N: view.Dispatches, State: view.State})
		} else {
			c.Counts.Skipped.Count(SkipNotFailed)
		}
	}
	c.Done = true
	return c
}

// ledgerWithFailedJobs returns a ledger with the jobs 1 to n, which have failed.
func ledgerWithFailedJobs(t failer, n int) (*Ledger, Stamp) {
	l := New()
	l.Apply(stampAt(1, 0, 0), []Command{&Lead{Owner: "n1", Until: scriptStart.Add(time.Hour), Level: Level}})
	stamp := stampAt(2, 0, l.Authority().Epoch)
	ingest, place, settle := &Ingest{Identity: "L0", To: uint64(n), CreateQueues: true}, &Place{}, &Settle{}
	for i := 1; i <= n; i++ {
		id := jobID(i)
		ingest.Jobs = append(ingest.Jobs, job.Job{ID: id, Queue: "mail", Accepted: time.Unix(0, int64(i)), Position: job.Position{Seq: uint64(i)}})
		place.Placements = append(place.Placements, Placement{Job: id, N: 1, Node: "n1", Incarnation: 1, Channel: "overhop/w1"})
		settle.Settlements = append(settle.Settlements, Settlement{Job: id, N: 1, Next: job.NextDead, Reason: "no"})
	}
	for _, r := range l.Apply(stamp, []Command{&Bootstrap{Secret: []byte("s"), Lanes: []string{"L0"}}, ingest, place, settle}) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	return l, stamp
}

// TestOperation_Bounds checks how many operations there may be, and for how long.
func TestOperation_Bounds(t *testing.T) {
	l, stamp := ledgerWithAuthority(t)
	apply := func(c Command) error { stamp.Index++; return l.Apply(stamp, []Command{c})[0].Err }
	start := &StartOperation{Settings: OperationSettings{Action: OperationCancel, Query: "queue:mail"}}
	for range MaxOperations {
		if err := apply(start); err != nil {
			t.Fatal(err)
		}
	}
	if err := apply(start); !errors.Is(err, ErrTooManyOperations) {
		t.Fatalf("one more: %v", err)
	}
	for number := uint64(1); number <= MaxEndedOperations+10; number++ {
		if err := apply(&ChangeOperation{Number: number, State: OperationCancelled}); err != nil {
			t.Fatal(err)
		}
		if err := apply(start); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(l.Operations()); got != MaxOperations+MaxEndedOperations || l.Operation(10) != nil || l.Operation(11) == nil {
		t.Errorf("%d operations, the first is %d", got, l.Operations()[0].Number)
	}
	if err := checkOperations(l); err != nil {
		t.Error(err)
	}
	stamp.At = stamp.At.Add(OperationKept + time.Second)
	l.Apply(stamp, nil)
	if got := len(l.Operations()); got != MaxOperations {
		t.Errorf("%d operations a week later", got)
	}
	long := &StartOperation{Settings: OperationSettings{Action: OperationCancel, Query: strings.Repeat("a", MaxOperationQuery+1)}}
	if err := Check(long); err == nil {
		t.Error("a long query is accepted")
	}
}

// TestOperation_Encode checks that all fields of an operation survive a snapshot, and a restore
// pauses it.
func TestOperation_Encode(t *testing.T) {
	l, stamp := ledgerWithFailedJobs(t, 3)
	settings := OperationSettings{
		Action: OperationRequeue, Query: "state:failed", Until: scriptStart, Rate: 7, Params: []byte(`{"a":1}`), To: "post", Key: "k", KeepAttempts: true, Expected: 3,
	}
	step := &StepOperation{
		Number: 1, To: JobPlace{2, jobID(2)}, Counts: OperationCounts{Changed: 1, Skipped: Skips{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, Failed: 3},
		Failures: []OperationFailure{{jobID(9), "no"}}, Waiting: "the index",
	}
	l.Apply(stamp, []Command{&StartOperation{Settings: settings, Asked: Asked{By: Actor{"ann", DoorCLI, "why"}}}, &StartOperation{Settings: OperationSettings{Action: OperationCancel}}, step, &ChangeOperation{Number: 2, State: OperationCancelled}})
	restored := decoded(t, l)
	if diff := cmp.Diff(l.Operations(), restored.Operations()); diff != "" || l.Operation(1).Waiting == "" {
		t.Errorf("the decoded operations differ: %s", diff)
	}
	if !bytes.Equal(encoded(t, l), encoded(t, restored)) {
		t.Error("the decoded ledger differs")
	}
	fresh, _ := ledgerWithAuthority(t)
	fresh.replaceWith(restored, nil, func() {})
	if op := fresh.Operation(1); op.State != OperationPaused || op.Index != fresh.index || op.Waiting == "" {
		t.Errorf("after a restore: %+v", op)
	}
	if op := fresh.Operation(2); op.State != OperationCancelled {
		t.Errorf("after a restore: %+v", op)
	}
}
