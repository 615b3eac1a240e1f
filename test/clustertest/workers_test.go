package clustertest_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// stalledWorker checks that history reports a worker that does not acknowledge a job as
// stalled, and as recovered when it requests jobs again.
func stalledWorker(t *testing.T, cl *clustertest.Cluster) {
	a, b, c := cl.Members[0], cl.Members[1], cl.Members[2]
	a.AddQueue(t, "stalled", 0)
	quests, stalls := make(chan overhop.Quest, 4), make(chan overhop.Raw, 4)
	w := b.Overhop(t, overhop.Options{
		OnQuest: func(q overhop.Quest) { quests <- q },
		OnPush: func(kind int64, p overhop.Raw) {
			if kind == overhop.TCredits {
				stalls <- slices.Clone(p)
			}
		},
	})
	sid, err := w.Subscribe(shortContext(t), "stalled", 1)
	if err != nil {
		t.Fatal(err)
	}
	id := a.Enqueue(t, "stalled", `{"params":{}}`).String()
	<-quests // without an ACK
	select {
	case p := <-stalls:
		if reason, _ := p.Get("reason").Str(); reason != overhop.CreditsStalled {
			t.Errorf("credits are %s", reason)
		}
	case <-shortContext(t).Done():
		t.Fatal("the worker was not reported as stalled")
	}
	waitEvent(t, cl, c, "worker.stalled", w.WID(), "ack-timeout")
	if err := w.Credit(shortContext(t), sid, 1); err != nil {
		t.Fatal(err)
	}
	again := <-quests
	if !again.Redelivered || again.Attempt != 1 {
		t.Errorf("attempt %d, redelivered %t", again.Attempt, again.Redelivered)
	}
	w.Done(&again, nil, 0, func(overhop.Raw, error) {})
	if j := a.WaitOutcome(t, id); j.State != "completed" {
		t.Errorf("%+v", j)
	}
	waitEvent(t, cl, a, "worker.recovered", w.WID(), "credit")
}

// waitEvent waits until the command line prints an event of a worker exactly once.
func waitEvent(t *testing.T, cl *clustertest.Cluster, m *clustertest.Member, event, wid, detail string) {
	t.Helper()
	cl.Eventually(event+" of "+wid, func() error {
		out, code := command(t, m, "events", "--type", event, "--json")
		if n := strings.Count(out, `"worker":"overhop/`+wid+`"`); code != 0 || n != 1 || !strings.Contains(out, `"`+detail+`"`) {
			return fmt.Errorf("exit code %d, printed %d times: %s", code, n, out)
		}
		return nil
	})
}

// answer is the answer to a request of a client.
type answer struct {
	ok  overhop.Raw
	err error
}

func (a answer) String() string {
	if a.err != nil {
		return a.err.Error()
	}
	if dup, _ := a.ok.Get("dup").Bool(); dup {
		return "dup"
	}
	return "ok"
}

// answers returns a callback and a function that waits for its call.
func answers(t *testing.T) (then func(overhop.Raw, error), wait func() answer) {
	came := make(chan answer, 1)
	return func(ok overhop.Raw, err error) { came <- answer{slices.Clone(ok), err} }, func() answer {
		t.Helper()
		select {
		case a := <-came:
			return a
		case <-shortContext(t).Done():
			t.Fatal("no answer")
			return answer{}
		}
	}
}

func wantText(t *testing.T, what string, came chan string, want string) {
	t.Helper()
	select {
	case got := <-came:
		if got != want {
			t.Errorf("%s %q, want %q", what, got, want)
		}
	case <-shortContext(t).Done():
		t.Fatalf("%s nothing, want %q", what, want)
	}
}

// twoConnections uses one token over two connections to two nodes. The job belongs to the
// connection that used the token last; the first outcome over either one counts.
func twoConnections(t *testing.T, cl *clustertest.Cluster) {
	a, b := cl.Members[0], cl.Members[1]
	a.AddQueue(t, "hands", 0)
	quests := make(chan overhop.Quest, 4)
	recalled := func(to chan string) func(int64, overhop.Raw) {
		return func(kind int64, p overhop.Raw) {
			if kind == overhop.TRecall {
				jid, _ := p.Get("jid").Str()
				reason, _ := p.Get("reason").Str()
				to <- jid + " " + reason
			}
		}
	}
	atA, atB := make(chan string, 16), make(chan string, 16)
	one := a.Overhop(t, overhop.Options{OnQuest: func(q overhop.Quest) { quests <- q }, OnPush: recalled(atA)})
	two := b.Overhop(t, overhop.Options{OnQuest: func(q overhop.Quest) { quests <- q }, OnPush: recalled(atB)})
	if _, err := one.Subscribe(shortContext(t), "hands", 2); err != nil {
		t.Fatal(err)
	}
	begin := func() (id string, q overhop.Quest) {
		t.Helper()
		id = a.Enqueue(t, "hands", `{"params":{}}`).String()
		q = <-quests
		if err := beatAfterAck(one, &q); err != nil {
			t.Fatal(err)
		}
		if err := beat(two, &q); err != nil {
			t.Fatalf("over the other connection: %v", err)
		}
		wantText(t, "the first connection gets", atA, q.JID+" SUPERSEDED")
		if j := b.Job(t, id); j.Node != b.Name || j.Attempts != 1 || j.State != "active" {
			t.Errorf("the job is %+v", j)
		}
		return id, q
	}

	// The older connection reports the outcome; a repetition over the other is accepted.
	id, q := begin()
	then, wait := answers(t)
	one.Done(&q, nil, 0, then)
	if got := wait().String(); got != "ok" {
		t.Errorf("DONE over the first connection: %s", got)
	}
	wantText(t, "the second connection gets", atB, q.JID+" SUPERSEDED")
	then, wait = answers(t)
	two.Done(&q, nil, 0, then)
	if got := wait().String(); got != "dup" {
		t.Errorf("DONE over the second connection: %s", got)
	}
	checkEnd(t, cl, a, id, "completed", ledger.DispatchDelivered)

	// Both connections report concurrently, with different outcomes.
	id, q = begin()
	done, waitDone := answers(t)
	fail, waitFail := answers(t)
	one.Done(&q, nil, 0, done)
	two.Fail(&q, overhop.Fail{Message: "no"}, fail)
	switch d, f := waitDone().String(), waitFail().String(); {
	case d == "ok" && strings.Contains(f, "LEASE_LOST"):
		checkEnd(t, cl, a, id, "completed", ledger.DispatchDelivered)
	case f == "ok" && strings.Contains(d, "LEASE_LOST"):
		checkEnd(t, cl, a, id, "failed", ledger.DispatchFailed)
	default:
		t.Errorf("DONE: %s, FAIL: %s", d, f)
	}
}

// checkEnd checks that a job has ended in a state, and that history has one dispatch of it
// with one end.
func checkEnd(t *testing.T, cl *clustertest.Cluster, m *clustertest.Member, id, state string, end ledger.EventKind) {
	t.Helper()
	if j := m.WaitOutcome(t, id); j.State != state || j.Dispatches != 1 {
		t.Errorf("the job is %+v, want %s", j, state)
	}
	var told []string
	for _, e := range readHistory(t, cl, m, cl.WaitAuthority().Node().Ledger().LastEvent()) {
		if strings.HasPrefix(e.Request, id) {
			told = append(told, e.Event)
		}
	}
	want := []string{ledger.DispatchQueued.String(), ledger.DispatchNotified.String(), end.String()}
	if !slices.Equal(told, want) {
		t.Errorf("history has %v of %s, want %v", told, id, want)
	}
}

// jobProgress checks that the progress of a job is shown at every node.
func jobProgress(t *testing.T, cl *clustertest.Cluster) {
	a, b, c := cl.Members[0], cl.Members[1], cl.Members[2]
	a.AddQueue(t, "progress", 0)
	quests := make(chan overhop.Quest, 1)
	w := b.Overhop(t, overhop.Options{OnQuest: func(q overhop.Quest) { quests <- q }})
	if _, err := w.Subscribe(shortContext(t), "progress", 1); err != nil {
		t.Fatal(err)
	}
	id := a.Enqueue(t, "progress", `{"params":{}}`).String()
	q := <-quests
	if err := beatAfterAck(w, &q); err != nil {
		t.Fatal(err)
	}
	output := overhop.AppendValue(nil, overhop.Fields{
		"jid": q.JID, "tok": q.Token[:], "percent": 40, "data": overhop.Fields{"row": int64(1)<<60 + 1},
	})
	if _, err := w.Call(shortContext(t), overhop.TProgress, output); err != nil {
		t.Fatal(err)
	}
	for _, m := range []*clustertest.Member{a, b, c} {
		record, err := m.Overhop(t, overhop.Options{}).Job(shortContext(t), q.JID)
		now := record.Get("runtime")
		percent, _ := now.Get("progress").Get("percent").Int()
		row, _ := now.Get("progress").Get("data").Get("row").Int()
		if lease, ok := now.Get("lease_until").Str(); err != nil || !ok || lease == "" || percent != 40 || row != 1<<60+1 {
			t.Errorf("%s shows %s, %v", m.Name, overhop.AppendLossyJSON(nil, record), err)
		}
		if out, code := command(t, m, "job", "show", id); code != 0 || !strings.Contains(out, `40 %, {"row":1152921504606846977}`) {
			t.Errorf("at %s the command line shows %s", m.Name, out)
		}
	}
	then, wait := answers(t)
	w.Done(&q, nil, 0, then)
	if got := wait().String(); got != "ok" {
		t.Errorf("DONE: %s", got)
	}
	record, err := c.Overhop(t, overhop.Options{}).Job(shortContext(t), q.JID)
	if now := record.Get("runtime"); err != nil || len(now.Get("lease_until")) > 0 || len(now.Get("progress")) > 0 {
		t.Errorf("after its end: %s, %v", overhop.AppendLossyJSON(nil, record), err)
	}
}
