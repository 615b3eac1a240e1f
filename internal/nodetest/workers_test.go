package nodetest_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"yardmaster/edge/overhop"
	"yardmaster/internal/nodetest"
	"yardmaster/ledger"
)

// stalled: a worker that lets a job lie is told of in history, and so is that
// it asks for work again.
func stalled(t *testing.T, y *nodetest.Yard) {
	a, b, c := y.Members[0], y.Members[1], y.Members[2]
	a.AddQueue(t, "stalled", 0)
	quests, stalls := make(chan overhop.Quest, 4), make(chan overhop.Raw, 4)
	w := b.Overhop(t, overhop.Options{
		Quests: func(q overhop.Quest) { quests <- q },
		Pushes: func(kind int64, p overhop.Raw) {
			if kind == overhop.TCredits {
				stalls <- slices.Clone(p)
			}
		},
	})
	sid, err := w.Subscribe(soon(t), "stalled", 1)
	if err != nil {
		t.Fatal(err)
	}
	id := a.Enqueue(t, "stalled", `{"params":{}}`).String()
	<-quests // and no ACK
	select {
	case p := <-stalls:
		if reason, _ := p.Get("reason").Str(); reason != overhop.CreditsStalled {
			t.Errorf("credits are %s", reason)
		}
	case <-soon(t).Done():
		t.Fatal("the worker is not taken for stalled")
	}
	tells(t, y, c, "worker.stalled", w.WID(), "ack-timeout")
	if err := w.Credit(soon(t), sid, 1); err != nil {
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
	tells(t, y, a, "worker.recovered", w.WID(), "credit")
}

// tells waits until the command line shows an event of a worker, once.
func tells(t *testing.T, y *nodetest.Yard, m *nodetest.Member, event, wid, detail string) {
	t.Helper()
	y.Eventually(event+" of "+wid, func() error {
		out, code := command(t, m, "events", "--type", event, "--json")
		if n := strings.Count(out, `"worker":"overhop/`+wid+`"`); code != 0 || n != 1 || !strings.Contains(out, `"`+detail+`"`) {
			return fmt.Errorf("exit code %d, told %d times: %s", code, n, out)
		}
		return nil
	})
}

// answer is what came of a request of a client.
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

// answers makes a callback, and waits for it.
func answers(t *testing.T) (then func(overhop.Raw, error), wait func() answer) {
	came := make(chan answer, 1)
	return func(ok overhop.Raw, err error) { came <- answer{slices.Clone(ok), err} }, func() answer {
		t.Helper()
		select {
		case a := <-came:
			return a
		case <-soon(t).Done():
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
	case <-soon(t).Done():
		t.Fatalf("%s nothing, want %q", what, want)
	}
}

// twoHands: two living connections to two nodes with one token. The job is
// where the token was shown last; whichever ends it first has ended it, once.
func twoHands(t *testing.T, y *nodetest.Yard) {
	a, b := y.Members[0], y.Members[1]
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
	one := a.Overhop(t, overhop.Options{Quests: func(q overhop.Quest) { quests <- q }, Pushes: recalled(atA)})
	two := b.Overhop(t, overhop.Options{Quests: func(q overhop.Quest) { quests <- q }, Pushes: recalled(atB)})
	if _, err := one.Subscribe(soon(t), "hands", 2); err != nil {
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
		wantText(t, "the first connection is told", atA, q.JID+" SUPERSEDED")
		if j := b.Job(t, id); j.Node != b.Name || j.Attempts != 1 || j.State != "active" {
			t.Errorf("the job is %+v", j)
		}
		return id, q
	}

	// The one that was left ends it; the other is told, and may say so too.
	id, q := begin()
	then, wait := answers(t)
	one.Done(&q, nil, 0, then)
	if got := wait().String(); got != "ok" {
		t.Errorf("DONE over the first connection: %s", got)
	}
	wantText(t, "the second connection is told", atB, q.JID+" SUPERSEDED")
	then, wait = answers(t)
	two.Done(&q, nil, 0, then)
	if got := wait().String(); got != "dup" {
		t.Errorf("DONE over the second connection: %s", got)
	}
	ended(t, y, a, id, "completed", ledger.DispatchDelivered)

	// Both at once, and not of one mind.
	id, q = begin()
	done, waitDone := answers(t)
	fail, waitFail := answers(t)
	one.Done(&q, nil, 0, done)
	two.Fail(&q, overhop.Fail{Message: "no"}, fail)
	switch d, f := waitDone().String(), waitFail().String(); {
	case d == "ok" && strings.Contains(f, "LEASE_LOST"):
		ended(t, y, a, id, "completed", ledger.DispatchDelivered)
	case f == "ok" && strings.Contains(d, "LEASE_LOST"):
		ended(t, y, a, id, "failed", ledger.DispatchFailed)
	default:
		t.Errorf("DONE: %s, FAIL: %s", d, f)
	}
}

// ended checks that a job has ended in a state, and that history tells one
// dispatch of it with one end.
func ended(t *testing.T, y *nodetest.Yard, m *nodetest.Member, id, state string, end ledger.EventKind) {
	t.Helper()
	if j := m.WaitOutcome(t, id); j.State != state || j.Dispatches != 1 {
		t.Errorf("the job is %+v, want %s", j, state)
	}
	var told []string
	for _, e := range story(t, y, m, y.WaitAuthority().Node().Ledger().LastEvent()) {
		if strings.HasPrefix(e.Request, id) {
			told = append(told, e.Event)
		}
	}
	want := []string{ledger.DispatchQueued.String(), ledger.DispatchNotified.String(), end.String()}
	if !slices.Equal(told, want) {
		t.Errorf("history tells %v of %s, want %v", told, id, want)
	}
}

// progress: what a worker says of its job is shown at every node.
func progress(t *testing.T, y *nodetest.Yard) {
	a, b, c := y.Members[0], y.Members[1], y.Members[2]
	a.AddQueue(t, "progress", 0)
	quests := make(chan overhop.Quest, 1)
	w := b.Overhop(t, overhop.Options{Quests: func(q overhop.Quest) { quests <- q }})
	if _, err := w.Subscribe(soon(t), "progress", 1); err != nil {
		t.Fatal(err)
	}
	id := a.Enqueue(t, "progress", `{"params":{}}`).String()
	q := <-quests
	if err := beatAfterAck(w, &q); err != nil {
		t.Fatal(err)
	}
	said := overhop.AppendValue(nil, overhop.Fields{
		"jid": q.JID, "tok": q.Token[:], "percent": 40, "data": overhop.Fields{"row": int64(1)<<60 + 1},
	})
	if _, err := w.Call(soon(t), overhop.TProgress, said); err != nil {
		t.Fatal(err)
	}
	for _, m := range []*nodetest.Member{a, b, c} {
		record, err := m.Overhop(t, overhop.Options{}).Job(soon(t), q.JID)
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
	record, err := c.Overhop(t, overhop.Options{}).Job(soon(t), q.JID)
	if now := record.Get("runtime"); err != nil || len(now.Get("lease_until")) > 0 || len(now.Get("progress")) > 0 {
		t.Errorf("after its end: %s, %v", overhop.AppendLossyJSON(nil, record), err)
	}
}
