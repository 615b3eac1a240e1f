package node

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

	"yardmaster/edge"
	"yardmaster/job"
	"yardmaster/ledger"
	"yardmaster/runnerpool"
	"yardmaster/scheduler"
)

var testNow = time.Date(2026, 3, 19, 1, 0, 0, 0, time.UTC)

// asked is an inquiry about a job in a state that nothing is wrong with, with
// what a case changes.
func asked(state job.State, change func(*inquiry)) *inquiry {
	q := &inquiry{now: testNow, defaults: inquiryDefaults{time.Minute, 5}, workers: "mail", why: &scheduler.Why{Room: 1}}
	p := &q.plight
	p.View = job.View{ID: job.ID{1}, Queue: "mail", State: state, Created: testNow, Attempts: 1, Dispatches: 1, Node: "n1", Worker: "overhop/w1"}
	p.Started, p.Ended, p.Due = testNow.Add(time.Second), testNow.Add(2*time.Second), testNow.Add(time.Hour)
	p.Line.Name = "mail"
	if change != nil {
		change(q)
	}
	return q
}

// noRoom has the authority know of no room, and the members say what they have.
func noRoom(hands ...nodeHands) func(*inquiry) {
	return func(q *inquiry) { q.why.Room, q.hands = 0, hands }
}

func workersOf(node string, w edge.Subscribers) nodeHands { return nodeHands{Node: node, Workers: &w} }

// ofRunner makes it a runner's job.
func ofRunner(hands ...nodeHands) func(*inquiry) {
	return func(q *inquiry) { q.why.Room, q.hands, q.workers, q.runner = 0, hands, "", "py" }
}

func poolOf(node string, p runnerpool.PoolStatus) nodeHands { return nodeHands{Node: node, Pool: &p} }

func silent(c code) func(*inquiry) {
	return func(q *inquiry) { q.why, q.silence = nil, silence{c, "nobody: " + string(c)} }
}

// explainCases provoke every reason that is made of an inquiry.
var explainCases = []struct {
	q    *inquiry
	want string // its codes, those that block with "!"
	says string // the verdict begins so
}{
	{asked(job.Delayed, nil), "delayed!", "It is due at 2026-03-19T02:00:00.000Z."},
	{asked(job.Delayed, func(q *inquiry) { q.plight.Again, q.plight.Reason = true, "boom" }), "retry_backoff!", "It is due at 2026-03-19T02:00:00.000Z: attempt 1 of 5 failed (boom)"},
	{asked(job.Delayed, func(q *inquiry) { q.plight.Again, q.plight.Redelivered = true, true }), "given_back!", "It is due at"},
	{asked(job.Delayed, func(q *inquiry) { q.plight.Debounced = true }), "debounced!", "It is due at"},
	{asked(job.Delayed, func(q *inquiry) { q.plight.Line.Paused, q.plight.Paused = true, testNow }), "delayed! queue_paused!", "It is due at 2026-03-19T02:00:00.000Z; and queue mail is paused since 2026-03-19T01:00:00.000Z."},
	{asked(job.Waiting, func(q *inquiry) { q.plight.Line.Paused, q.plight.Paused = true, testNow }), "queue_paused! next_in_line", "It waits: queue mail is paused since 2026-03-19T01:00:00.000Z."},
	{asked(job.Waiting, func(q *inquiry) {
		q.plight.Full, q.plight.Line.Config.Limit, q.plight.Line.Counts[job.Active] = true, 3, 3
		q.holders = []ledger.Active{{Waiting: ledger.Waiting{Job: job.Job{ID: job.ID{2}}}, Node: "n2", Started: testNow}}
	}), "queue_limit! next_in_line", "It waits: queue mail runs as many jobs at once as its limit allows: 3."},
	{asked(job.Waiting, noRoom(workersOf("n1", edge.Subscribers{}))), "no_worker! next_in_line", "It waits: no worker has credit for queue mail: none is subscribed."},
	{asked(job.Waiting, noRoom(workersOf("n1", edge.Subscribers{}), nodeHands{Node: "n2", Error: "silence"})), "no_worker! members_unheard next_in_line",
		"It waits: no worker has credit for queue mail: none is subscribed at the members that answer."},
	{asked(job.Waiting, noRoom(workersOf("n1", edge.Subscribers{Count: 2, Stalled: 1}))), "workers_busy! next_in_line", "It waits: no worker has credit for queue mail: those"},
	{asked(job.Waiting, noRoom(workersOf("n1", edge.Subscribers{Count: 2, Stalled: 2}))), "workers_stalled! next_in_line", "It waits: no worker has credit for queue mail: all 2"},
	{asked(job.Waiting, noRoom(workersOf("n1", edge.Subscribers{Count: 1, Stalled: 1}))), "workers_stalled! next_in_line", "It waits: no worker has credit for queue mail: the only one"},
	{asked(job.Waiting, noRoom(workersOf("n1", edge.Subscribers{Count: 2, Credits: 1}))), "next_in_line", "It is the next to start."},
	{asked(job.Waiting, noRoom(workersOf("n1", edge.Subscribers{}), nodeHands{Node: "n2", Drained: true, Workers: &edge.Subscribers{Count: 1, Credits: 5}})),
		"no_worker! node_drained! next_in_line", "It waits: no worker has credit for queue mail: none is subscribed; and drained, so that nothing is started there: n2; 'yardmaster node resume n2' ends that."},
	{asked(job.Waiting, ofRunner(nodeHands{Node: "n1"}, nodeHands{Node: "n2", Drained: true, Pool: &runnerpool.PoolStatus{Up: 1, Slots: 4}})), "node_drained! next_in_line",
		"It waits: drained, so that nothing is started there: n2; 'yardmaster node resume n2' ends that."},
	{asked(job.Waiting, ofRunner(nodeHands{Node: "n1"})), "runner_missing! next_in_line", "It waits: no member has runner py."},
	{asked(job.Waiting, ofRunner(poolOf("n1", runnerpool.PoolStatus{Size: 1}))), "runner_down! next_in_line", "It waits: no process of runner py is up yet."},
	{asked(job.Waiting, ofRunner(poolOf("n1", runnerpool.PoolStatus{Size: 1, Looping: 1, Reason: "exit 1"}))), "runner_crash_looping! next_in_line",
		"It waits: no process of runner py is up: n1: exit 1."},
	{asked(job.Waiting, ofRunner(poolOf("n1", runnerpool.PoolStatus{Reason: "exit 1"}), poolOf("n2", runnerpool.PoolStatus{Reason: "exit 0"}), poolOf("n3", runnerpool.PoolStatus{Reason: "exit 1"}))),
		"runner_down! next_in_line", "It waits: no process of runner py is up: n1, n3: exit 1; n2: exit 0."},
	{asked(job.Waiting, ofRunner(poolOf("n1", runnerpool.PoolStatus{Size: 1, Up: 1, Slots: 2, InFlight: 2}))), "runner_busy! next_in_line", "It waits: all slots of runner py are taken."},
	{asked(job.Waiting, ofRunner(poolOf("n1", runnerpool.PoolStatus{Size: 1, Up: 1, Slots: 2}))), "next_in_line", "It is the next to start."},
	{asked(job.Waiting, func(q *inquiry) { q.plight.Ahead = 7 }), "ahead_in_line", "It waits for its turn: jobs of its queue for the same hands that start before it: 7."},
	{asked(job.Waiting, func(q *inquiry) { q.why.Placing = true }), "being_placed", "A worker has been chosen"},
	{asked(job.Waiting, func(q *inquiry) { q.why.Blocked = "the outbox is half full" }), "not_dispatching! next_in_line", "It waits: the outbox is half full."},
	{asked(job.Waiting, func(q *inquiry) { q.why.Unsure = true }), "lease_uncertain! next_in_line", "It waits: the authority's lease"},
	{asked(job.Waiting, func(q *inquiry) { q.full = true }), "history_full! next_in_line", "It waits: history cannot be written"},
	{asked(job.Waiting, silent(codeNoQuorum)), "no_quorum! next_in_line", "It waits: nobody: no_quorum."},
	{asked(job.Waiting, silent(codeNoAuthority)), "no_authority! next_in_line", "It waits"},
	{asked(job.Waiting, silent(codeSilent)), "authority_silent! next_in_line", "It waits"},
	{asked(job.Active, nil), "running", "It runs on node n1, channel overhop/w1, since 2026-03-19T01:00:01.000Z: attempt 1 of 5, until 2026-03-19T01:01:01.000Z at the latest."},
	{asked(job.Active, func(q *inquiry) { q.plight.Recalled = job.RecallCancelled }), "stopping running", "It has been told to stop"},
	{asked(job.Active, func(q *inquiry) { q.why.Sent = &scheduler.Sent{} }), "running not_taken", "It runs"},
	{asked(job.Active, func(q *inquiry) { q.why.Sent = &scheduler.Sent{Taken: true, Silent: true} }), "running node_silent", "It runs"},
	{asked(job.Active, silent(codeNoQuorum)), "running no_quorum", "It runs"},
	{asked(job.Completed, nil), "completed", "It completed at 2026-03-19T01:00:02.000Z, by attempt 1 of 5, on node n1."},
	{asked(job.Failed, func(q *inquiry) { q.plight.Reason = "boom" }), "failed", "It failed at 2026-03-19T01:00:02.000Z, after 1 of 5 attempts: boom; its dead letter"},
	{asked(job.Failed, func(q *inquiry) { q.plight.Fault = &job.Fault{Type: job.FaultCancelled} }), "cancelled", "It was cancelled"},
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

func TestInquiry(t *testing.T) {
	for _, c := range explainCases {
		reasons := c.q.reasons()
		if got := codesOf(reasons); got != c.want {
			t.Errorf("%s: codes %q, want %q", c.says, got, c.want)
		}
		if got := c.q.verdict(reasons); !strings.HasPrefix(got, c.says) {
			t.Errorf("%s: verdict %q, want %q", c.want, got, c.says)
		}
		if blocked := strings.Contains(c.want, "!"); (c.q.because() != "") != blocked {
			t.Errorf("%s: it waits because %q", c.want, c.q.because())
		}
	}
}

func TestInquiry_Holders(t *testing.T) {
	q := asked(job.Waiting, func(q *inquiry) {
		q.plight.Full, q.plight.Line.Counts[job.Active] = true, 30
		q.holders = make([]ledger.Active, maxHolders)
		q.holders[0] = ledger.Active{Waiting: ledger.Waiting{Attempt: 2}, Started: testNow, Recalled: job.RecallCancelled}
	})
	d := q.reasons()[0].Data
	if len(d.Holders) != maxHolders || d.MoreHolders != 10 || !d.Holders[0].Deadline.Equal(testNow.Add(time.Minute)) || !d.Holders[0].Stopping || d.Holders[0].Attempt != 2 {
		t.Errorf("holders: %+v", d)
	}
}

func TestRulingReason(t *testing.T) {
	for folded, want := range map[ledger.Folded]code{
		ledger.FoldedDuplicate: codeDuplicate, ledger.FoldedLimited: codeRateLimited,
		ledger.FoldedDebounced: codeMerged, ledger.FoldedRejected: codeRejected, ledger.FoldedLater: codeRejected,
	} {
		r := rulingReason(ledger.Ruling{Folded: folded, Job: job.ID{2}, Queue: "mail", RetryAfter: time.Minute, Reason: "no room"}, testNow)
		if r.Code != want || r.Text == "" || r.Data.Job == nil || folded == ledger.FoldedLimited && !r.Data.At.Equal(testNow.Add(time.Minute)) {
			t.Errorf("%d: %+v", folded, r)
		}
	}
}

func TestExplainNew(t *testing.T) {
	q := asked(job.New, func(q *inquiry) { q.why.Lanes = []string{"", "lane 1 is not read: strange"} })
	r := &job.Record{Position: job.Position{Lane: 1, Seq: 9}, Queue: "mail", Stored: testNow}
	all := q.notFolded(r, 6)
	if got := codesOf(all); got != "not_folded! lane_in_trouble!" || all[0].Data.Lag != 2 || all[1].Text != q.why.Lanes[1] {
		t.Errorf("%s: %+v", got, all)
	}
}

// A queue's verdict goes by what waits and what is in its way.
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
	paused := []reason{{Code: codePaused, Text: "queue mail is paused", blocks: true}}
	for _, c := range []struct {
		view    *ledger.QueueView
		reasons []reason
		last    code
		want    string
	}{
		{view(0, 0), nil, codeIdle, "Nothing waits in queue mail."},
		{view(0, 2), nil, codeIdle, "Nothing waits in queue mail, and 2 of its jobs run."},
		{view(0, 0), paused, codePaused, "Nothing waits in queue mail; but queue mail is paused."},
		{later(view(0, 0), 1), nil, codeIdle, "Nothing waits in queue mail; 1 job is due later, the first at 2026-03-19T01:00:00.000Z."},
		{later(view(0, 1), 3), nil, codeIdle, "Nothing waits in queue mail, and 1 of its jobs runs; 3 jobs are due later, the first at 2026-03-19T01:00:00.000Z."},
		{later(view(0, 0), 2), paused, codePaused, "Nothing waits in queue mail; 2 jobs are due later, the first at 2026-03-19T01:00:00.000Z; but queue mail is paused."},
		{view(3, 2), nil, codeFlows, "The jobs of queue mail are started in their turn: 3 wait, 2 run."},
		{view(1, 2), paused, codePaused, "Queue mail has 1 job waiting: queue mail is paused."},
	} {
		e := &queueExplanation{Reasons: slices.Clone(c.reasons), Observed: observed{Certain: true}}
		if c.view.Counts[job.Delayed] > 0 {
			e.NextDue = &dueNext{ID: &job.ID{1}, At: testNow}
		}
		e.conclude(c.view)
		if e.Verdict != c.want || len(e.Reasons) == 0 || e.Reasons[len(e.Reasons)-1].Code != c.last {
			t.Errorf("%q, %+v; want %q", e.Verdict, e.Reasons, c.want)
		}
	}
}

// Every code is in docs/explain.md and nothing else is, and every one is
// provoked: here, or where elsewhere says.
func TestExplainCodes(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "explaincodes.go", nil, 0)
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
	page, err := os.ReadFile("../docs/explain.md")
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]bool{}
	_, tables, _ := strings.Cut(string(page), "\n## Codes\n")
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(tables, -1) {
		told[row[1]] = true
	}
	if len(codes) < 30 || !maps.Equal(codes, told) {
		t.Errorf("codes: %v\n in docs/explain.md: %v", slices.Sorted(maps.Keys(codes)), slices.Sorted(maps.Keys(told)))
	}
	provoked := map[string]string{
		"duplicate": "TestRulingReason", "rate_limited": "TestRulingReason", "merged": "TestRulingReason", "rejected": "TestRulingReason",
		"idle": "TestQueueExplanation", "flows": "TestQueueExplanation",
		"not_folded": "internal/nodetest", "unknown_here": "internal/nodetest", "forgotten": "internal/nodetest",
		"lane_in_trouble": "TestExplainNew",
	}
	for _, c := range explainCases {
		for _, one := range strings.Fields(c.want) {
			provoked[strings.TrimSuffix(one, "!")] = "TestInquiry"
		}
	}
	for c := range codes {
		if provoked[c] == "" {
			t.Errorf("no test provokes %s", c)
		}
	}
}

// The quorum may go between the first look and the last: an answer that gives it
// as a reason does not call itself certain.
func TestObserved_Caveat(t *testing.T) {
	for _, c := range []struct {
		reasons []reason
		certain bool
		says    string
	}{
		{nil, true, "It waits."},
		{[]reason{{Code: codeNoWorker}, {Code: codeNoAuthority}}, true, "It waits."},
		{[]reason{{Code: codeNoWorker}, {Code: codeNoQuorum}}, false, "As node n1 knew it at 2026-03-19T01:00:00.000Z: It waits."},
	} {
		o := observed{Node: "n1", LedgerAt: testNow, Certain: true}
		if says := o.caveat("It waits.", c.reasons); says != c.says || o.Certain != c.certain {
			t.Errorf("%+v: %q, certain %v", c.reasons, says, o.Certain)
		}
	}
}
