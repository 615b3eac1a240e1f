package diagnose

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
)

var testNow = time.Date(2026, 3, 19, 1, 0, 0, 0, time.UTC)

// newTestDiagnosis returns a diagnosis of a job in a state, without any problem, with the
// change of a test case.
func newTestDiagnosis(state job.State, change func(*diagnosis)) *diagnosis {
	q := &diagnosis{now: testNow, timeout: time.Minute, attempts: 5, workers: "mail", placement: &scheduler.PlacementExplanation{Available: 1}}
	p := &q.job
	p.View = job.View{ID: job.ID{1}, Queue: "mail", State: state, Created: testNow, Attempts: 1, Dispatches: 1, Node: "n1", Worker: "overhop/w1"}
	p.Started, p.Ended, p.Due = testNow.Add(time.Second), testNow.Add(2*time.Second), testNow.Add(time.Hour)
	p.QueueView.Name = "mail"
	if change != nil {
		change(q)
	}
	return q
}

// withExecutors makes the authority report no available slots, and the members report these
// executors.
func withExecutors(hands ...api.NodeExecutors) func(*diagnosis) {
	return func(q *diagnosis) { q.placement.Available, q.executors = 0, hands }
}

func workersOn(node string, w api.Subscribers) api.NodeExecutors {
	return api.NodeExecutors{Node: node, Workers: &w}
}

// withRunner makes the job one for a runner.
func withRunner(hands ...api.NodeExecutors) func(*diagnosis) {
	return func(q *diagnosis) { q.placement.Available, q.executors, q.workers, q.runner = 0, hands, "", "py" }
}

func poolOn(node string, p api.Pool) api.NodeExecutors {
	return api.NodeExecutors{Node: node, Pool: &p}
}

func withNoAnswer(c api.ReasonCode) func(*diagnosis) {
	return func(q *diagnosis) { q.placement, q.noAnswer = nil, api.Reason{Code: c, Text: "nobody: " + string(c)} }
}

// explainCases cover every reason of a diagnosis.
var explainCases = []struct {
	q    *diagnosis
	want string // the codes, with "!" after those that block
	says string // the beginning of the verdict
}{
	{newTestDiagnosis(job.Delayed, nil), "delayed!", "It is due at 2026-03-19T02:00:00.000Z."},
	{newTestDiagnosis(job.Delayed, func(q *diagnosis) { q.job.Retrying, q.job.Reason = true, "boom" }), "retry_backoff!", "It is due at 2026-03-19T02:00:00.000Z: attempt 1 of 5 failed (boom)"},
	{newTestDiagnosis(job.Delayed, func(q *diagnosis) {
		q.job.Retrying, q.job.Reason, q.job.Function, q.job.MaxAttempts = true, "boom", "send", 3
		q.job.QueueView.Config.Retries = []job.RetryRule{{Function: "send", MaxAttempts: 3, Backoff: time.Second}}
	}), "retry_backoff!", "It is due at 2026-03-19T02:00:00.000Z: attempt 1 of 3 failed (boom), and it is tried again then (attempts and delay by the retry rule of queue mail for function send)"},
	{newTestDiagnosis(job.Delayed, func(q *diagnosis) {
		q.job.Retrying, q.job.Reason, q.job.MaxAttempts, q.job.QueueView.Config.MaxAttempts = true, "boom", 3, 3
		q.job.QueueView.Config.Retries = []job.RetryRule{{Jitter: new(uint8(0))}}
	}), "retry_backoff!", "It is due at 2026-03-19T02:00:00.000Z: attempt 1 of 3 failed (boom), and it is tried again then (delay by the retry rule of queue mail for all functions, attempts by queue mail)"},
	{newTestDiagnosis(job.Delayed, func(q *diagnosis) {
		q.job.Retrying, q.job.Reason, q.job.MaxAttempts, q.job.OwnAttempts, q.job.RetryInterval = true, "boom", 3, true, time.Second
		q.job.QueueView.Config.Retries = []job.RetryRule{{Backoff: time.Second}}
	}), "retry_backoff!", "It is due at 2026-03-19T02:00:00.000Z: attempt 1 of 3 failed (boom), and it is tried again then."},
	{newTestDiagnosis(job.Delayed, func(q *diagnosis) { q.job.Retrying, q.job.Redelivered = true, true }), "given_back!", "It is due at"},
	{newTestDiagnosis(job.Delayed, func(q *diagnosis) { q.job.Debounced = true }), "debounced!", "It is due at"},
	{newTestDiagnosis(job.Delayed, func(q *diagnosis) { q.job.QueueView.Paused, q.job.PausedSince = true, testNow }), "delayed! queue_paused!", "It is due at 2026-03-19T02:00:00.000Z; and queue mail is paused since 2026-03-19T01:00:00.000Z."},
	{newTestDiagnosis(job.Waiting, func(q *diagnosis) { q.job.QueueView.Paused, q.job.PausedSince = true, testNow }), "queue_paused! next_in_line", "It waits: queue mail is paused since 2026-03-19T01:00:00.000Z."},
	{newTestDiagnosis(job.Waiting, func(q *diagnosis) {
		q.job.LimitReached, q.job.QueueView.Config.Limit, q.job.QueueView.Counts[job.Active] = true, 3, 3
		q.holders = []ledger.ActiveDispatch{{WaitingJob: ledger.WaitingJob{Job: job.Job{ID: job.ID{2}}}, Node: "n2", Started: testNow}}
	}), "queue_limit! next_in_line", "It waits: queue mail runs as many jobs at once as its limit allows: 3."},
	{newTestDiagnosis(job.Waiting, withExecutors(workersOn("n1", api.Subscribers{}))), "no_worker! next_in_line", "It waits: no worker has credit for queue mail: none is subscribed."},
	{newTestDiagnosis(job.Waiting, withExecutors(workersOn("n1", api.Subscribers{}), api.NodeExecutors{Node: "n2", Error: "silence"})), "no_worker! members_unheard next_in_line",
		"It waits: no worker has credit for queue mail: none is subscribed at the members that answer."},
	{newTestDiagnosis(job.Waiting, withExecutors(workersOn("n1", api.Subscribers{Count: 2, Stalled: 1}))), "workers_busy! next_in_line", "It waits: no worker has credit for queue mail: those"},
	{newTestDiagnosis(job.Waiting, withExecutors(workersOn("n1", api.Subscribers{Count: 2, Stalled: 2}))), "workers_stalled! next_in_line", "It waits: no worker has credit for queue mail: all 2"},
	{newTestDiagnosis(job.Waiting, withExecutors(workersOn("n1", api.Subscribers{Count: 1, Stalled: 1}))), "workers_stalled! next_in_line", "It waits: no worker has credit for queue mail: the only one"},
	{newTestDiagnosis(job.Waiting, withExecutors(workersOn("n1", api.Subscribers{Count: 2, Credits: 1}))), "next_in_line", "It is the next to start."},
	{newTestDiagnosis(job.Waiting, withExecutors(workersOn("n1", api.Subscribers{}), api.NodeExecutors{Node: "n2", Drained: true, Workers: &api.Subscribers{Count: 1, Credits: 5}})),
		"no_worker! node_drained! next_in_line", "It waits: no worker has credit for queue mail: none is subscribed; and drained, so that nothing is started there: n2; 'yardmaster node resume n2' ends that."},
	{newTestDiagnosis(job.Waiting, withRunner(api.NodeExecutors{Node: "n1"}, api.NodeExecutors{Node: "n2", Drained: true, Pool: &api.Pool{Up: 1, Slots: 4}})), "node_drained! next_in_line",
		"It waits: drained, so that nothing is started there: n2; 'yardmaster node resume n2' ends that."},
	{newTestDiagnosis(job.Waiting, withRunner(api.NodeExecutors{Node: "n1"})), "runner_missing! next_in_line", "It waits: no member has runner py."},
	{newTestDiagnosis(job.Waiting, withRunner(poolOn("n1", api.Pool{Size: 1}))), "runner_down! next_in_line", "It waits: no process of runner py is up yet."},
	{newTestDiagnosis(job.Waiting, withRunner(poolOn("n1", api.Pool{Size: 1, CrashLooping: 1, Reason: "exit 1"}))), "runner_crash_looping! next_in_line",
		"It waits: no process of runner py is up: n1: exit 1."},
	{newTestDiagnosis(job.Waiting, withRunner(poolOn("n1", api.Pool{Reason: "exit 1"}), poolOn("n2", api.Pool{Reason: "exit 0"}), poolOn("n3", api.Pool{Reason: "exit 1"}))),
		"runner_down! next_in_line", "It waits: no process of runner py is up: n1, n3: exit 1; n2: exit 0."},
	{newTestDiagnosis(job.Waiting, withRunner(poolOn("n1", api.Pool{Size: 1, Up: 1, Slots: 2, InFlight: 2}))), "runner_busy! next_in_line", "It waits: all slots of runner py are taken."},
	{newTestDiagnosis(job.Waiting, withRunner(poolOn("n1", api.Pool{Size: 1, Up: 1, Slots: 2}))), "next_in_line", "It is the next to start."},
	{newTestDiagnosis(job.Waiting, func(q *diagnosis) { q.job.Ahead = 7 }), "ahead_in_line",
		"It waits for its turn: jobs of its queue for the same executors that start before it, by priority and then by acceptance: 7."},
	{newTestDiagnosis(job.Waiting, func(q *diagnosis) {
		q.job.Ahead, q.job.AheadHigher, q.job.Due = 7, 5, testNow.Add(-2*time.Minute)
	}), "ahead_in_line", "It waits for its turn: jobs of its queue for the same executors that start before it, by priority and then by acceptance: 7; " +
		"5 of them have a higher priority, but it has been due for more than a minute and may start before them: one start in 16 is of the job that has been due for longest."},
	{newTestDiagnosis(job.Waiting, func(q *diagnosis) { q.job.Ahead, q.job.LowerDue = 7, testNow.Add(-2*time.Minute) }), "ahead_in_line",
		"It waits for its turn: jobs of its queue for the same executors that start before it, by priority and then by acceptance: 7; besides these, one start in 16 is of a job of a lower priority that has been due for more than a minute."},
	{newTestDiagnosis(job.Waiting, func(q *diagnosis) {
		q.job.Ahead, q.job.LowerDue, q.job.Due = 7, testNow.Add(-time.Second), testNow.Add(-time.Hour)
	}), "ahead_in_line", "It waits for its turn: jobs of its queue for the same executors that start before it, by priority and then by acceptance: 7."},
	{newTestDiagnosis(job.Waiting, func(q *diagnosis) { q.placement.Placing = true }), "being_placed", "An executor has been chosen"},
	{newTestDiagnosis(job.Waiting, func(q *diagnosis) { q.placement.Blocked = "the outbox is half full" }), "not_dispatching! next_in_line", "It waits: the outbox is half full."},
	{newTestDiagnosis(job.Waiting, func(q *diagnosis) { q.placement.LeaseUncertain = true }), "lease_uncertain! next_in_line", "It waits: the authority's lease"},
	{newTestDiagnosis(job.Waiting, func(q *diagnosis) { q.outboxFull = true }), "history_full! next_in_line", "It waits: history cannot be written"},
	{newTestDiagnosis(job.Waiting, withNoAnswer(api.ReasonNoQuorum)), "no_quorum! next_in_line", "It waits: nobody: no_quorum."},
	{newTestDiagnosis(job.Waiting, withNoAnswer(api.ReasonNoAuthority)), "no_authority! next_in_line", "It waits"},
	{newTestDiagnosis(job.Waiting, withNoAnswer(api.ReasonAuthoritySilent)), "authority_silent! next_in_line", "It waits"},
	{newTestDiagnosis(job.Active, nil), "running", "It runs on node n1, channel overhop/w1, since 2026-03-19T01:00:01.000Z: attempt 1 of 5, until 2026-03-19T01:01:01.000Z at the latest."},
	{newTestDiagnosis(job.Active, func(q *diagnosis) { q.job.MaxAttempts, q.job.Timeout = 3, time.Second }), "running",
		"It runs on node n1, channel overhop/w1, since 2026-03-19T01:00:01.000Z: attempt 1 of 3, until 2026-03-19T01:00:02.000Z at the latest (attempts and timeout by queue mail)."},
	{newTestDiagnosis(job.Active, func(q *diagnosis) { q.job.Recalled = job.RecallCancelled }), "stopping running", "It is being stopped"},
	{newTestDiagnosis(job.Active, func(q *diagnosis) { q.placement.Dispatch = &scheduler.DispatchStatus{} }), "running not_taken", "It runs"},
	{newTestDiagnosis(job.Active, func(q *diagnosis) { q.placement.Dispatch = &scheduler.DispatchStatus{Confirmed: true, Silent: true} }), "running node_silent", "It runs"},
	{newTestDiagnosis(job.Active, withNoAnswer(api.ReasonNoQuorum)), "running no_quorum", "It runs"},
	{newTestDiagnosis(job.Completed, nil), "completed", "It completed at 2026-03-19T01:00:02.000Z, by attempt 1 of 5, on node n1."},
	{newTestDiagnosis(job.Failed, func(q *diagnosis) { q.job.Reason, q.job.Fault = "late", &job.Fault{Type: job.FaultTimeout} }), "failed", "It failed at 2026-03-19T01:00:02.000Z, after 1 of 5 attempts: late (a timeout is final unless the job or its queue has retry_on_timeout)"},
	{newTestDiagnosis(job.Failed, func(q *diagnosis) { q.job.Reason = "boom" }), "failed", "It failed at 2026-03-19T01:00:02.000Z, after 1 of 5 attempts: boom; its dead letter"},
	{newTestDiagnosis(job.Failed, func(q *diagnosis) { q.job.Reason, q.job.MaxAttempts = "boom", 1 }), "failed", "It failed at 2026-03-19T01:00:02.000Z, after 1 of 1 attempts (attempts by queue mail): boom; its dead letter"},
	{newTestDiagnosis(job.Failed, func(q *diagnosis) {
		rule := &job.RetryRule{DiscardOn: []string{job.FaultTimeout}}
		v := job.DefaultPolicy.Decide(job.Attempt{Number: 1}, rule, job.Outcome{Status: job.TimedOut})
		q.job.Reason, q.job.Fault = v.Reason, &job.Fault{Type: job.FaultTimeout}
	}), "failed", "It failed at 2026-03-19T01:00:02.000Z, after 1 of 5 attempts: timeout (not retried: timeout is in discard_on of the retry rule for all functions); its dead letter"},
	{newTestDiagnosis(job.Cancelled, func(q *diagnosis) {
		q.job.Cancellation = &job.Cancellation{Actor: "ann", Door: "cli", Reason: "wrong customer"}
	}), "cancelled", "It was cancelled by ann, over cli (wrong customer), and ended at"},
	{newTestDiagnosis(job.Expired, func(q *diagnosis) { q.job.Expires = testNow }), "expired", "It expired at " + ledger.FormatTime(testNow) + ", before it could start"},
}

func codesOf(reasons []reason) string {
	var codes []string
	for _, r := range reasons {
		c := string(r.Code)
		if r.blocks {
			c += "!"
		}
		codes = append(codes, c)
	}
	return strings.Join(codes, " ")
}

func TestDiagnosis(t *testing.T) {
	for _, c := range explainCases {
		reasons := c.q.reasons()
		if got := codesOf(reasons); got != c.want {
			t.Errorf("%s: codes %q, want %q", c.says, got, c.want)
		}
		if got := c.q.verdict(reasons); !strings.HasPrefix(got, c.says) {
			t.Errorf("%s: verdict %q, want %q", c.want, got, c.says)
		}
		if blocked := strings.Contains(c.want, "!"); (c.q.waitReason() != "") != blocked {
			t.Errorf("%s: it waits because %q", c.want, c.q.waitReason())
		}
	}
}

func TestDiagnosis_Holders(t *testing.T) {
	q := newTestDiagnosis(job.Waiting, func(q *diagnosis) {
		q.job.LimitReached, q.job.QueueView.Counts[job.Active] = true, 30
		q.holders = make([]ledger.ActiveDispatch, api.MaxActiveJobs)
		q.holders[0] = ledger.ActiveDispatch{WaitingJob: ledger.WaitingJob{Attempt: 2}, Started: testNow, Recalled: job.RecallCancelled}
	})
	d := q.reasons()[0].Data
	if len(d.Holders) != api.MaxActiveJobs || d.MoreHolders != 10 || !d.Holders[0].Deadline.Equal(testNow.Add(time.Minute)) || !d.Holders[0].Stopping || d.Holders[0].Attempt != 2 {
		t.Errorf("holders: %+v", d)
	}
}

func TestDecisionReason(t *testing.T) {
	for folded, want := range map[ledger.Ingested]api.ReasonCode{
		ledger.IngestedDuplicate: api.ReasonDuplicate, ledger.IngestedRateLimited: api.ReasonRateLimited,
		ledger.IngestedDebounced: api.ReasonMerged, ledger.IngestedRejected: api.ReasonRejected, ledger.IngestedKeysFull: api.ReasonRejected,
	} {
		r := decisionReason(ledger.Decision{Ingested: folded, Job: job.ID{2}, Queue: "mail", RetryAfter: time.Minute, Reason: "no room"}, testNow)
		if r.Code != want || r.Text == "" || r.Data.Job == nil || folded == ledger.IngestedRateLimited && !r.Data.At.Equal(testNow.Add(time.Minute)) {
			t.Errorf("%d: %+v", folded, r)
		}
	}
}

func TestExplainNotIngested(t *testing.T) {
	q := newTestDiagnosis(job.New, func(q *diagnosis) { q.placement.Lanes = []string{"", "lane 1 is not read: strange"} })
	r := &job.Record{Position: job.Position{Lane: 1, Seq: 9}, Queue: "mail", Stored: testNow}
	all := q.notIngested(r, 6)
	if got := codesOf(all); got != "not_folded! lane_in_trouble!" || all[0].Data.Lag != 2 || all[1].Text != q.placement.Lanes[1] {
		t.Errorf("%s: %+v", got, all)
	}
}

// A queue's verdict depends on its waiting jobs and on what blocks them.
func TestQueueExplanation(t *testing.T) {
	view := func(waiting, active int) *ledger.QueueView {
		v := &ledger.QueueView{Queue: job.Queue{Name: "mail"}}
		v.Counts[job.Waiting], v.Counts[job.Active] = waiting, active
		return v
	}
	later := func(v *ledger.QueueView, delayed int) *ledger.QueueView {
		v.Counts[job.Delayed] = delayed
		return v
	}
	paused := []reason{{Reason: api.Reason{Code: api.ReasonPaused, Text: "queue mail is paused"}, blocks: true}}
	for _, c := range []struct {
		view    *ledger.QueueView
		reasons []reason
		last    api.ReasonCode
		want    string
	}{
		{view(0, 0), nil, api.ReasonIdle, "Nothing waits in queue mail."},
		{view(0, 2), nil, api.ReasonIdle, "Nothing waits in queue mail, and 2 of its jobs run."},
		{view(0, 0), paused, api.ReasonPaused, "Nothing waits in queue mail; but queue mail is paused."},
		{later(view(0, 0), 1), nil, api.ReasonIdle, "Nothing waits in queue mail; 1 job is due later, the first at 2026-03-19T01:00:00.000Z."},
		{later(view(0, 1), 3), nil, api.ReasonIdle, "Nothing waits in queue mail, and 1 of its jobs runs; 3 jobs are due later, the first at 2026-03-19T01:00:00.000Z."},
		{later(view(0, 0), 2), paused, api.ReasonPaused, "Nothing waits in queue mail; 2 jobs are due later, the first at 2026-03-19T01:00:00.000Z; but queue mail is paused."},
		{view(3, 2), nil, api.ReasonFlowing, "The jobs of queue mail start in their order: 3 wait, 2 run."},
		{view(1, 2), paused, api.ReasonPaused, "Queue mail has 1 job waiting: queue mail is paused."},
	} {
		e := &api.QueueExplanation{Observed: api.Provenance{Certain: true}}
		if c.view.Counts[job.Delayed] > 0 {
			e.NextDue = &api.NextDueJob{ID: &job.ID{1}, At: testNow}
		}
		summarize(e, c.view, c.reasons)
		if e.Verdict != c.want || len(e.Reasons) == 0 || e.Reasons[len(e.Reasons)-1].Code != c.last {
			t.Errorf("%q, %+v; want %q", e.Verdict, e.Reasons, c.want)
		}
	}
}

// docs/reference/readiness.md documents every code, and no others, and every code is covered by a test
// in this file or elsewhere.
func TestExplainCodes(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../api/reasoncode.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	codes := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if ok && len(spec.Values) == 1 {
			if value, ok := spec.Values[0].(*ast.BasicLit); ok {
				text, _ := strconv.Unquote(value.Value)
				codes[text] = true
			}
		}
		return true
	})
	page, err := os.ReadFile("../docs/reference/readiness.md")
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]bool{}
	_, tables, _ := strings.Cut(string(page), "\n## Explain codes\n")
	for _, row := range regexp.MustCompile("(?m)^- `([a-z_]+)`: ").FindAllStringSubmatch(tables, -1) {
		told[row[1]] = true
	}
	if len(codes) < 30 || !maps.Equal(codes, told) {
		t.Errorf("codes: %v\n in docs/reference/readiness.md: %v", slices.Sorted(maps.Keys(codes)), slices.Sorted(maps.Keys(told)))
	}
	provoked := map[string]string{
		"duplicate": "TestDecisionReason", "rate_limited": "TestDecisionReason", "merged": "TestDecisionReason", "rejected": "TestDecisionReason",
		"idle": "TestQueueExplanation", "flows": "TestQueueExplanation",
		"not_folded": "test/clustertest", "unknown_here": "test/clustertest", "forgotten": "test/clustertest",
		"lane_in_trouble": "TestExplainNotIngested",
		"limit_paused":    "TestLimitReason", "limit_circuit_open": "TestLimitReason", "limit_full": "TestLimitReason", "limit_rate": "TestLimitReason",
		"limit_key_full": "TestLimitReason", "limit_key_rate": "TestLimitReason", "keys_blocked": "TestKeysReason", "fair_turn": "TestFairReason",
	}
	for _, c := range explainCases {
		for _, one := range strings.Fields(c.want) {
			provoked[strings.TrimSuffix(one, "!")] = "TestDiagnosis"
		}
	}
	for c := range codes {
		if provoked[c] == "" {
			t.Errorf("no test covers %s", c)
		}
	}
}

// The quorum may be lost during the queries: an explanation with that reason is not marked
// as certain.
func TestWithCaveat(t *testing.T) {
	for _, c := range []struct {
		reasons []api.Reason
		index   uint64
		certain bool
		says    string
	}{
		{nil, 7, true, "It waits."},
		{[]api.Reason{{Code: api.ReasonNoWorker}, {Code: api.ReasonNoAuthority}}, 7, true, "It waits."},
		{[]api.Reason{{Code: api.ReasonNoWorker}, {Code: api.ReasonNoQuorum}}, 7, false, "As node n1 knew it at 2026-03-19T01:00:00.000Z: It waits."},
		{[]api.Reason{{Code: api.ReasonNoQuorum}}, 0, false, "As node n1 knows it: It waits."},
	} {
		o := api.Provenance{Node: "n1", LedgerAt: testNow, Index: c.index, Certain: true}
		if says := withCaveat(&o, "It waits.", c.reasons); says != c.says || o.Certain != c.certain {
			t.Errorf("%+v: %q, certain %v", c.reasons, says, o.Certain)
		}
	}
}

// TestEndReason_LetterGone checks that a failed job's explanation names its dead letter only while there is one.
func TestEndReason_LetterGone(t *testing.T) {
	for _, fault := range []string{job.FaultTimeout, job.FaultRejected} {
		for _, gone := range []bool{false, true} {
			d := newTestDiagnosis(job.Failed, func(d *diagnosis) {
				d.letterGone, d.job.View.Fault = gone, &job.Fault{Type: fault}
			})
			text := d.endReason().Text
			if strings.Contains(text, "dlq show") == gone || strings.Contains(text, "is gone") != gone || strings.Contains(text, "job history") != gone {
				t.Errorf("%s, gone %t: %s", fault, gone, text)
			}
		}
	}
}
