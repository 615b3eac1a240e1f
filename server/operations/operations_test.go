package operations

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/index/query"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/deadletters"
	"github.com/yardmaster-dev/yardmaster/test/fakeledger"
)

// TestPlanFor checks what each action does to a job in each state, which the ledger has or has
// forgotten.
func TestPlanFor(t *testing.T) {
	kept := map[ledger.OperationAction]string{
		ledger.OperationRetry:   "failed cancelled expired",
		ledger.OperationCancel:  "waiting delayed active",
		ledger.OperationRemove:  "waiting delayed completed failed cancelled expired",
		ledger.OperationRequeue: "failed",
	}
	for action, want := range kept {
		var got []string
		for state := job.Waiting; int(state) < job.States; state++ {
			d := &job.Document{State: state, DeadLetter: 7}
			if todo := planFor(&ledger.OperationSettings{Action: action}, d, true); todo.way == inLedger {
				got = append(got, state.String())
			} else if todo.way != notAtAll || todo.why == ledger.SkipChanged {
				t.Errorf("%s of a job that is %s: %+v", action, state, todo)
			}
			forgotten := planFor(&ledger.OperationSettings{Action: action}, d, false)
			created := state == job.Failed && (action == ledger.OperationRetry || action == ledger.OperationRequeue)
			if (forgotten.way == asNewJob) != created || forgotten.way == inLedger {
				t.Errorf("%s of a forgotten job that was %s: %+v", action, state, forgotten)
			}
		}
		slices.Sort(got)
		wanted := strings.Fields(want)
		if slices.Sort(wanted); !slices.Equal(got, wanted) {
			t.Errorf("%s applies to %s, want %s", action, got, wanted)
		}
	}
	failed := &job.Document{State: job.Failed, Queue: "mail", DeadLetter: 7}
	for name, c := range map[string]struct {
		settings ledger.OperationSettings
		document job.Document
		want     plan
	}{
		"as it is":      {ledger.OperationSettings{}, *failed, plan{way: inLedger, letter: 7}},
		"the same":      {ledger.OperationSettings{To: "mail"}, *failed, plan{way: inLedger, letter: 7}},
		"another queue": {ledger.OperationSettings{To: "post"}, *failed, plan{way: asNewJob}},
		"other params":  {ledger.OperationSettings{Params: []byte("{}")}, *failed, plan{way: asNewJob}},
		"no letter":     {ledger.OperationSettings{}, job.Document{State: job.Failed}, plan{why: ledger.SkipNoLetter}},
		"rejected":      {ledger.OperationSettings{}, job.Document{State: job.Failed, DeadLetter: 7, Fault: &job.Fault{Type: job.FaultRejected}}, plan{way: asNewJob}},
	} {
		c.settings.Action = ledger.OperationRequeue
		if got := planFor(&c.settings, &c.document, true); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// yard is a ledger with jobs that have failed, an index of it, and a stream of dead letters.
type yard struct {
	mu      sync.Mutex
	ledger  *ledger.Ledger
	stamp   ledger.Stamp
	changed chan struct{}
	refuse  error                // of the next steps that have jobs
	hidden  []*job.Document      // jobs that only the index has
	created map[job.ID]time.Time // by the job of the letter
	wait    error                // of the index
	lacking *job.UnavailableError
	removed int // letters
}

func newYard(t *testing.T, failed int) *yard {
	y := &yard{ledger: ledger.New(), changed: make(chan struct{}), created: map[job.ID]time.Time{}, stamp: ledger.Stamp{Index: 1, Term: 1, At: time.Now()}}
	y.apply(t, &ledger.Lead{Owner: "n1", Until: time.Now().Add(time.Hour), Level: ledger.Level})
	y.stamp.Epoch = y.ledger.Authority().Epoch
	ingest, place, settle := &ledger.Ingest{Identity: "L0", To: uint64(failed), CreateQueues: true}, &ledger.Place{}, &ledger.Settle{}
	for i := range failed {
		id := job.ID{15: byte(i + 1)}
		ingest.Jobs = append(ingest.Jobs, job.Job{ID: id, Queue: "mail", Accepted: time.Unix(int64(i+1), 0).UTC(), Position: job.Position{Seq: uint64(i + 1)}})
		place.Placements = append(place.Placements, ledger.Placement{Job: id, N: 1, Node: "n1", Incarnation: 1, Channel: "overhop/w1"})
		settle.Settlements = append(settle.Settlements, ledger.Settlement{Job: id, N: 1, Next: job.NextDead, Reason: "no"})
	}
	for _, c := range []ledger.Command{&ledger.Bootstrap{Lanes: []string{"L0"}}, ingest, place, settle} {
		y.apply(t, c)
	}
	return y
}

func (y *yard) apply(t *testing.T, c ledger.Command) {
	t.Helper()
	if r, _, err := y.Propose(t.Context(), c); errors.Join(err, r.Err) != nil {
		t.Fatal(err, r.Err)
	}
}

func (y *yard) View(fn func(*ledger.Ledger)) {
	y.mu.Lock()
	defer y.mu.Unlock()
	fn(y.ledger)
}

func (y *yard) Applied() (uint64, <-chan struct{}) {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.stamp.Index, y.changed
}

func (y *yard) Propose(_ context.Context, c ledger.Command) (ledger.Result, uint64, error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if step, ok := c.(*ledger.StepOperation); ok && step.To != step.From && y.refuse != nil {
		err := y.refuse
		y.refuse = nil
		return ledger.Result{}, 0, err
	}
	y.stamp.Index++
	r := y.ledger.Apply(y.stamp, []ledger.Command{c})[0]
	close(y.changed)
	y.changed = make(chan struct{})
	return r, y.stamp.Index, nil
}

func (y *yard) FindJobs(ctx context.Context, q *query.Query, after ledger.JobPlace, limit int) (ledger.FoundJobs, error) {
	y.mu.Lock()
	wait, lacking := y.wait, y.lacking
	y.mu.Unlock()
	if wait != nil {
		return ledger.FoundJobs{}, wait
	}
	found, err := fakeledger.Finder{View: y.View}.FindJobs(ctx, q, after, limit)
	for _, d := range y.hidden {
		if placeOf(d).Compare(after) > 0 && q.Match(d) {
			found.Documents = append(found.Documents, d)
		}
	}
	found.Lacking = lacking
	slices.SortFunc(found.Documents, func(a, b *job.Document) int { return placeOf(a).Compare(placeOf(b)) })
	return found, err
}

// noLabels returns what queries are read with where no job has labels.
func noLabels(context.Context) query.Options {
	none := func(string) bool { return false }
	return query.Options{Now: time.Now(), HasQueue: none, HasLabel: func(*query.Term) bool { return false }}
}

func (y *yard) Create(_ context.Context, q *deadletters.NewJob) (deadletters.Created, error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if q.DeadLetter == 404 {
		return deadletters.Created{}, deadletters.ErrLetterGone
	}
	if q.DeadLetter == 400 {
		return deadletters.Created{}, errors.New("its params do not match")
	}
	_, before := y.created[q.Job]
	y.created[q.Job] = time.Now()
	return deadletters.Created{ID: q.Job, Before: before}, nil
}

func (y *yard) RemoveLetter(context.Context, uint64) error { return y.remove(1) }
func (y *yard) RemoveNumbered(_ context.Context, numbers []uint64) error {
	return y.remove(len(numbers))
}

func (y *yard) remove(letters int) error {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.removed += letters
	return nil
}

// run lets a runner work until the operation satisfies fn.
func (y *yard) run(t *testing.T, fn func(*ledger.Operation) bool) *ledger.Operation {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &Runner{Ledger: y, Find: y, Propose: y.Propose, Letters: y, Log: slog.New(slog.DiscardHandler)}
	stopped := make(chan struct{})
	go func() { defer close(stopped); r.Run(ctx) }()
	defer func() { cancel(); <-stopped }()
	for {
		_, changed := y.Applied()
		var op *ledger.Operation
		y.View(func(l *ledger.Ledger) { op = l.Operation(1) })
		if fn(op) {
			return op
		}
		select {
		case <-changed:
		case <-time.After(30 * time.Second):
			t.Fatalf("the operation does not go on: %+v", op)
		}
	}
}

func ended(op *ledger.Operation) bool { return op.State.Ended() }

// start starts an operation on failed jobs.
func (y *yard) start(t *testing.T, s ledger.OperationSettings) {
	t.Helper()
	s.Query, s.Until = cmp.Or(s.Query, "state:failed"), time.Now().Add(time.Hour)
	y.apply(t, &ledger.StartOperation{Settings: s})
}

// TestRunner_StepRefused checks that a node that could not commit a step, after it has created jobs,
// creates no second ones, and that they count as changed.
func TestRunner_StepRefused(t *testing.T) {
	y := newYard(t, 2)
	for i := range 4 {
		y.hidden = append(y.hidden, &job.Document{ID: job.ID{14: 1, 15: byte(i)}, Queue: "mail", State: job.Failed, DeadLetter: uint64(i + 1), Created: time.Unix(int64(100+i), 0).UTC()})
	}
	y.hidden[2].DeadLetter, y.hidden[3].DeadLetter = 400, 404
	y.refuse = errors.New("the authority changed")
	y.start(t, ledger.OperationSettings{Action: ledger.OperationRequeue})
	op := y.run(t, ended)
	if len(y.created) != 2 || op.Changed != 4 || op.Failed != 1 || op.Skipped != (ledger.Skips{LetterGone: 1}) || op.Failures[0].Job != y.hidden[2].ID {
		t.Errorf("%d jobs were created; %+v", len(y.created), op)
	}
	if y.removed != 4 {
		t.Errorf("%d letters were removed, want 4", y.removed)
	}
}

// TestRunner_IndexLacksJobs checks that an operation on jobs that the ledger may have forgotten, or by labels, waits for
// an index that is being rebuilt, which it and the dry run say, and that another operation does not.
func TestRunner_IndexLacksJobs(t *testing.T) {
	y := newYard(t, 2)
	y.lacking = &job.UnavailableError{Reason: "an index that is being rebuilt"}
	y.start(t, ledger.OperationSettings{Action: ledger.OperationRemove})
	y.run(t, ended)

	y = newYard(t, 2)
	y.lacking = &job.UnavailableError{Reason: "an index that is being rebuilt"}
	s := &Server{View: y.View, Find: y, Options: noLabels}
	preview, err := s.preview(t.Context(), &api.OperationStart{Action: "retry", Query: "state:failed"})
	if err != nil || !preview.AtLeast || len(preview.Advice) != 1 {
		t.Errorf("%+v, %v; want an advice that jobs may be missing", preview, err)
	}
	if _, err := s.preview(t.Context(), &api.OperationStart{Action: "remove", Query: "-tag:eu"}); !errors.Is(err, y.lacking) {
		t.Errorf("a dry run by tags: %v", err)
	}
	for _, settings := range []ledger.OperationSettings{{Action: ledger.OperationRetry}, {Action: ledger.OperationRemove, Query: "-tag:eu"}} {
		y = newYard(t, 2)
		y.lacking = &job.UnavailableError{Reason: "an index that is being rebuilt"}
		y.start(t, settings)
		op := y.run(t, func(op *ledger.Operation) bool { return op.Waiting != "" })
		if op.Changed != 0 || !strings.Contains(op.Waiting, "is being rebuilt") {
			t.Errorf("%+v; want no job changed, and what it waits for", op)
		}
		y.mu.Lock()
		y.lacking = nil
		y.mu.Unlock()
		if op = y.run(t, ended); op.Changed != 2 {
			t.Errorf("%+v; want 2 jobs changed", op)
		}
	}
}

// TestPreview_LetterGone checks that a dry run does not count forgotten jobs as applicable whose dead letters are gone.
func TestPreview_LetterGone(t *testing.T) {
	y := newYard(t, 2)
	for i := range 30 {
		y.hidden = append(y.hidden, &job.Document{ID: job.ID{14: 1, 15: byte(i)}, Queue: "mail", State: job.Failed, DeadLetter: 1, Created: time.Unix(int64(100+i), 0).UTC()})
	}
	for _, i := range []int{0, 1, 29} {
		y.hidden[i].DeadLetter = 404
	}
	y.hidden[2].DeadLetter = 500
	s := &Server{
		View: y.View, Find: y, Options: noLabels,
		Preview: func(context.Context, *deadletters.NewJob) (json.RawMessage, error) { return nil, nil },
		HasLetter: func(_ context.Context, _ job.ID, number uint64) (bool, error) {
			if number == 500 {
				return false, errors.New("no answer")
			}
			return number != 404, nil
		},
	}
	p, err := s.preview(t.Context(), &api.OperationStart{Action: "retry", Query: "state:failed"})
	if err != nil {
		t.Fatal(err)
	}
	if p.Matched != 32 || p.Applicable != 29 || p.Skipped["its dead letter is gone"] != 3 || p.Unchecked != 1 || p.Sample[2].Skipped == "" || p.Sample[4].Skipped != "" {
		t.Errorf("%+v", p)
	}
}

// TestRunner_Waits checks that an operation shows what it waits for, and goes on after that.
func TestRunner_Waits(t *testing.T) {
	y := newYard(t, 3)
	y.wait = &job.UnavailableError{Reason: "the index, which is being rebuilt"}
	y.start(t, ledger.OperationSettings{Action: ledger.OperationRetry})
	op := y.run(t, func(op *ledger.Operation) bool { return op.Waiting != "" })
	if op.Waiting != "the index, which is being rebuilt" || op.Changed != 0 {
		t.Errorf("%+v", op)
	}
	y.wait = nil
	if op = y.run(t, ended); op.Changed != 3 || op.Waiting != "" {
		t.Errorf("%+v", op)
	}
}

// TestNewPage_Rechecks checks that jobs of an index that is behind are compared with the ledger, and that those are
// skipped that do not match any more, or did not when the operation began.
func TestNewPage_Rechecks(t *testing.T) {
	y := newYard(t, 4)
	y.apply(t, &ledger.RetryJob{Job: job.ID{15: 1}})
	y.apply(t, &ledger.RemoveJob{Job: job.ID{15: 2}})
	q, err := parse("state:failed", query.Options{Now: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	found := ledger.FoundJobs{More: true}
	for i := range 4 {
		d := &job.Document{ID: job.ID{15: byte(i + 1)}, State: job.Failed, Dispatches: 1, Created: time.Unix(int64(i+1), 0).UTC()}
		if i == 2 { // of an earlier job with the id
			d.Created = d.Created.Add(-time.Nanosecond)
		}
		found.Documents = append(found.Documents, d)
	}
	op := &ledger.Operation{Number: 1, Started: y.ledger.Now(), OperationSettings: ledger.OperationSettings{Action: ledger.OperationRetry, Until: time.Now()}}
	p := newPage(y.ledger, op, q, &found)
	skipped := ledger.Skips{Changed: 1, Removed: 1, Forgotten: 1}
	if len(p.step.Jobs) != 1 || p.step.Jobs[0].Job != (job.ID{15: 4}) || p.step.Counts.Skipped != skipped || p.step.Done || p.step.To != placeOf(found.Documents[3]) {
		t.Errorf("%+v", p.step)
	}
	op.Started = op.Started.Add(-time.Hour)
	if p = newPage(y.ledger, op, q, &found); len(p.step.Jobs) != 0 || p.step.Counts.Skipped.Changed != 2 {
		t.Errorf("of a job that has failed since: %+v", p.step)
	}
	if q, err = parse("queue:mail", query.Options{Now: time.Now()}); err != nil {
		t.Fatal(err)
	}
	if p = newPage(y.ledger, op, q, &found); len(p.step.Jobs) != 1 || p.step.Counts.Skipped.Changed != 0 {
		t.Errorf("of a job that has failed since and matched before: %+v", p.step)
	}
	op.Until = time.Unix(2, 0)
	if p = newPage(y.ledger, op, q, &found); !p.step.Done || p.step.To != placeOf(found.Documents[1]) {
		t.Errorf("of jobs that were accepted until then: %+v", p.step)
	}
}
