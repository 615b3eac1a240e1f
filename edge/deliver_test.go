package edge

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"yardmaster/edge/overhop"
	"yardmaster/job"
)

// A credit is a place that the agent is offered, and a token tells its dispatch.
func TestQuestToDone(t *testing.T) {
	bubble(t, Config{}, func(r *rig) {
		p, _ := r.worker(2)
		if got := r.hands.room("jobs", p.wid); got != 2 {
			t.Fatalf("offered room is %d, want 2", got)
		}
		q := r.quest(p, 3, func(a *job.Assignment) { a.Redelivered = true })
		if got := r.hands.room("jobs", p.wid); got != 1 {
			t.Errorf("offered room after a QUEST is %d, want 1", got)
		}
		if num(q.Get("fence")) != 103 || str(q.Get("jid")) != someJob {
			t.Errorf("QUEST is %s", text(q))
		}
		if tok, _ := q.Get("tok").Bin(); len(tok) != 16 || tok[7] != 3 {
			t.Errorf("token is %x", tok)
		}
		p.ask(overhop.TAck, held(q), overhop.TOK)
		p.ask(overhop.TDone, heldAnd(q, fields{"result": fields{"big": int64(1) << 62}, "credits": 1}), overhop.TOK)
		o := r.hands.one(t)
		if o.Status != job.Success || !o.Started || o.N != 3 || o.Job != (theJob) || string(o.Result.Data) != `{"big":4611686018427387904}` || o.Result.Msgpack {
			t.Errorf("outcome is %+v", o)
		}
		if got := r.hands.room("jobs", p.wid); got != 2 {
			t.Errorf("offered room after DONE is %d, want 2", got)
		}
		if len(r.server.dispatches) != 0 {
			t.Errorf("%d dispatches are remembered", len(r.server.dispatches))
		}
	})
}

// An end that is told twice before it is settled is one outcome and two answers.
func TestSettling(t *testing.T) {
	bubble(t, Config{}, func(r *rig) {
		r.hands.keep = true
		p, _ := r.worker(5)
		q := r.quest(p, 1, nil)
		p.send(overhop.TDone, "1", heldAnd(q, fields{"result": []byte{1}}))
		p.send(overhop.TDone, "2", held(q))
		p.quiet()
		if o := r.hands.one(t); !o.Result.Msgpack || string(o.Result.Data) != "\xc4\x01\x01" {
			t.Errorf("binary result is %+v", o.Result)
		}
		r.hands.settle(0, job.Settled{State: job.Completed})
		if got := text(p.expect(overhop.TOK, "1")); got != `{"status":"completed"}` {
			t.Errorf("first DONE: %s", got)
		}
		if got := text(p.expect(overhop.TOK, "2")); got != `{"dup":true,"status":"completed"}` {
			t.Errorf("second DONE: %s", got)
		}
	})
}

func TestFail(t *testing.T) {
	bubble(t, Config{}, func(r *rig) {
		p, _ := r.worker(5)
		q := r.quest(p, 1, nil)
		p.ask(overhop.TFail, heldAnd(q, fields{
			"error": fields{"message": "no", "type": "t", "code": "c", "details": fields{"b": []byte{0}, "n": 1}}, "retry_after_ms": 250,
		}), overhop.TOK)
		o := r.hands.one(t)
		if o.Status != job.Error || o.Final || !o.Started || *o.RetryAfter != 250*time.Millisecond ||
			o.Fault.Message != "no" || o.Fault.Type != "t" || o.Fault.Code != "c" || string(o.Fault.Details) != `{"b":"AA==","n":1}` {
			t.Errorf("outcome is %+v %+v", o, o.Fault)
		}
		q = r.quest(p, 2, nil)
		p.ask(overhop.TFail, heldAnd(q, fields{"error": fields{"message": "no"}, "retry": false}), overhop.TOK)
		if o := r.hands.one(t); !o.Final || o.RetryAfter != nil {
			t.Errorf("final outcome is %+v", o)
		}
		q = r.quest(p, 3, nil)
		p.ask(overhop.TFail, heldAnd(q, fields{"error": fields{"message": "no", "type": job.FaultInvalid}}), overhop.TOK)
		if o := r.hands.one(t); !o.Final {
			t.Errorf("what can never be done has the outcome %+v", o)
		}
	})
}

func TestNack(t *testing.T) {
	bubble(t, Config{}, func(r *rig) {
		p, _ := r.worker(1)
		q := r.quest(p, 1, nil)
		if r.server.Start(assignment(p, 2), job.Spec{}) {
			t.Error("started without a credit")
		}
		p.ask(overhop.TNack, heldAnd(q, fields{"reason": "busy", "delay_ms": 1500, "credits": 4}), overhop.TOK)
		o := r.hands.one(t)
		if o.Status != job.Declined || o.Started || *o.RetryAfter != 1500*time.Millisecond || o.Fault.Message != "busy" {
			t.Errorf("outcome is %+v", o)
		}
		if got := r.hands.room("jobs", p.wid); got != 4 {
			t.Errorf("room is %d, want 4", got)
		}
	})
}

// No push comes between a PING and its PONG.
func TestPingHoldsPushes(t *testing.T) {
	bubble(t, Config{}, func(r *rig) {
		r.hands.keep = true
		p, _ := r.worker(5)
		q := r.quest(p, 1, nil)
		p.send(overhop.TDone, "1", held(q))
		p.send(overhop.TPing, "2", nil)
		synctest.Wait()
		if !r.server.Start(assignment(p, 2), job.Spec{Payload: []byte{0xc0}}) {
			t.Fatal("Start found no room")
		}
		p.quiet()
		r.hands.settle(0, job.Settled{State: job.Completed})
		p.expect(overhop.TOK, "1")
		p.expect(overhop.TPong, "2")
		p.expect(overhop.TQuest, "0")
	})
}

// Who did not offer the extension is no room for jobs, unless that is not asked.
func TestSeedClientGetsNoJobs(t *testing.T) {
	bubble(t, Config{}, func(r *rig) {
		p := r.register(false)
		p.ask(overhop.TSubscribe, fields{"q": "jobs", "credits": 7}, overhop.TOK)
		if got := r.hands.room("jobs", p.wid); got != 0 {
			t.Errorf("room is %d", got)
		}
		if r.server.Start(assignment(p, 1), job.Spec{}) {
			t.Error("Start took a client that knows no QUEST")
		}
	})
	anyone := false
	bubble(t, Config{Delivery: DeliveryConfig{RequireHelloExt: &anyone}}, func(r *rig) {
		p := r.register(false)
		p.ask(overhop.TSubscribe, fields{"q": "jobs", "credits": 7}, overhop.TOK)
		q := r.quest(p, 1, nil)
		p.ask(overhop.TAck, held(q), overhop.TOK) // what it is given it may also do
	})
}

func TestNoSecretNoJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newMemoryYard()
		y.secret = nil
		r := newRigWith(t, Config{}, y)
		defer func() { r.stop(); <-r.served }()
		p, _ := r.worker(3)
		if got := r.hands.room("jobs", p.wid); got != 0 {
			t.Errorf("room without a secret is %d", got)
		}
		if r.server.Start(assignment(p, 1), job.Spec{}) {
			t.Error("started without a secret")
		}
		p.refused(overhop.TAck, fields{"jid": someJob, "tok": make([]byte, 16)}, overhop.CodeUnavailable)
	})
}

// The room is announced as soon as the secret is known.
func TestSecretLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newMemoryYard()
		y.secret = nil
		r := newRigWith(t, Config{}, y)
		p, _ := r.worker(3)
		if got := r.hands.room("jobs", p.wid); got != 0 {
			t.Errorf("room without a secret is %d", got)
		}
		y.mu.Lock()
		y.secret = []byte("now")
		y.mu.Unlock()
		time.Sleep(secretPoll)
		if got := r.hands.room("jobs", p.wid); got != 3 {
			t.Errorf("room with a secret is %d, want 3", got)
		}
		r.stop()
		<-r.served
	})
}

func TestUnsendable(t *testing.T) {
	bubble(t, Config{Wire: WireConfig{MaxEnvelope: 65536}}, func(r *rig) {
		p, _ := r.worker(1)
		for n, spec := range []job.Spec{
			{Payload: []byte{0xca, 0, 0, 0, 0}},
			{Params: []byte(`{"x":"` + strings.Repeat("x", 70_000) + `"}`)},
		} {
			if !r.server.Start(assignment(p, uint32(n+1)), spec) {
				t.Fatal("Start gave the job back: it would come again")
			}
			if o := r.hands.one(t); o.Status != job.Error || !o.Final || o.Started || o.Fault.Type != job.FaultInvalid {
				t.Errorf("outcome is %+v", o)
			}
			if got := r.hands.room("jobs", p.wid); got != 1 {
				t.Errorf("room is %d, want 1", got)
			}
			p.quiet()
		}
	})
}

// DRAIN names the other nodes, and not the same one first to everybody.
func TestDrain_Reconnect(t *testing.T) {
	bubble(t, Config{}, func(r *rig) {
		r.yard.edges = []string{"n2:9876", "n3:9876"}
		a, _ := r.worker(1)
		b, _ := r.worker(1)
		r.server.Drain(Stops)
		told := []string{
			text(a.expect(overhop.TDrain, "0").Get("reconnect")),
			text(b.expect(overhop.TDrain, "0").Get("reconnect")),
		}
		slices.Sort(told)
		if want := []string{`["n2:9876","n3:9876"]`, `["n3:9876","n2:9876"]`}; !slices.Equal(told, want) {
			t.Errorf("workers are sent to %v, want %v", told, want)
		}
		if got := r.yard.edges[0]; got != "n2:9876" {
			t.Errorf("the yard's list now begins with %s", got)
		}
	})
}

// A node that drains is no room, whatever its workers grant.
func TestDrain(t *testing.T) {
	bubble(t, Config{}, func(r *rig) {
		p, _ := r.worker(3)
		q := r.quest(p, 1, nil)
		p.ask(overhop.TAck, held(q), overhop.TOK)
		r.server.Drain(Stops)
		p.expect(overhop.TDrain, "0")
		if got := r.hands.room("jobs", p.wid); got != 0 {
			t.Errorf("room is %d", got)
		}
		p.ask(overhop.TDone, heldAnd(q, fields{"credits": 1}), overhop.TOK)
		if got := r.hands.room("jobs", p.wid); got != 0 {
			t.Errorf("room after DONE is %d", got)
		}
	})
}

func TestServeEndInterrupts(t *testing.T) {
	bubble(t, Config{}, func(r *rig) {
		p, _ := r.worker(3)
		q := r.quest(p, 1, nil)
		p.ask(overhop.TAck, held(q), overhop.TOK)
		r.stop()
		if o := r.hands.one(t); o.Status != job.Interrupted || !o.Started {
			t.Errorf("outcome is %+v", o)
		}
	})
}

func TestGoodbye(t *testing.T) {
	bubble(t, Config{}, func(r *rig) {
		p, _ := r.worker(3)
		r.quest(p, 1, nil)
		p.ask(overhop.TGoodbye, fields{"drain": true}, overhop.TOK)
		if r.server.Start(assignment(p, 2), job.Spec{}) {
			t.Error("started at a leaving worker")
		}

		p, _ = r.worker(3)
		r.quest(p, 3, nil)
		q := r.quest(p, 4, nil)
		p.ask(overhop.TAck, held(q), overhop.TOK)
		p.ask(overhop.TGoodbye, nil, overhop.TOK)
		p.expect(overhop.TBye, "0")
		got := r.hands.outcomes()
		slices.SortFunc(got, func(a, b job.Outcome) int { return int(a.N) - int(b.N) })
		if len(got) != 2 || got[0].Started || !got[1].Started || got[0].Status != job.Interrupted || got[1].Status != job.Interrupted {
			t.Errorf("outcomes are %+v", got)
		}
	})
}

func TestUnsubscribe(t *testing.T) {
	bubble(t, Config{}, func(r *rig) {
		p, sid := r.worker(3)
		q := r.quest(p, 1, nil)
		p.ask(overhop.TUnsubscribe, fields{"sid": sid}, overhop.TOK)
		if got := r.hands.room("jobs", p.wid); got != 0 {
			t.Errorf("room is %d", got)
		}
		p.ask(overhop.TDone, held(q), overhop.TOK)
		if o := r.hands.one(t); o.Status != job.Success {
			t.Errorf("outcome of what was in hand is %+v", o)
		}
	})
}

// A job in the hands of this node's workers is shown with what they said last,
// whatever it was; one in another node's as far as that has told.
func TestProgressIsShown(t *testing.T) {
	bubble(t, Config{}, func(r *rig) {
		p, _ := r.worker(3)
		q := r.quest(p, 2, nil)
		view := job.View{ID: theJob, Queue: "jobs", State: job.Active, Dispatches: 2, Created: time.Now(), Worker: "overhop/" + p.wid}
		shown := func() overhop.Raw {
			t.Helper()
			r.yard.mu.Lock()
			r.yard.jobs[theJob] = view
			r.yard.mu.Unlock()
			return p.ask(overhop.TJob, fields{"jid": someJob}, overhop.TOK).Get("runtime")
		}
		want := func(what, want string) {
			t.Helper()
			if got := text(shown().Get("progress")); got != want {
				t.Errorf("%s: progress is %s, want %s", what, got, want)
			}
		}
		if got := shown(); len(got.Get("lease_until")) > 0 {
			t.Errorf("before ACK: %s", text(got))
		}
		p.ask(overhop.TAck, held(q), overhop.TOK)
		if got := shown(); str(got.Get("lease_until")) == "" || len(got.Get("progress")) > 0 {
			t.Errorf("after ACK: %s", text(got))
		}
		p.ask(overhop.TProgress, heldAnd(q, fields{"percent": 40}), overhop.TOK)
		want("a number", `{"percent":40}`)
		p.ask(overhop.TProgress, heldAnd(q, fields{"percent": 50, "data": fields{"n": int64(1) << 62, "ü": []any{nil, "x"}}}), overhop.TOK)
		want("a map", `{"data":{"n":4611686018427387904,"ü":[null,"x"]},"percent":50}`)
		p.ask(overhop.TProgress, heldAnd(q, fields{"data": []byte{0, 255}}), overhop.TOK)
		want("binary", `{"data":"AP8="}`)

		percent := int64(7)
		view.Dispatches = 3 // which this node does not have
		if got := shown(); len(got.Get("lease_until")) > 0 || len(got.Get("progress")) > 0 {
			t.Errorf("of another dispatch: %s", text(got))
		}
		view.Running = &job.Running{Lease: time.Now(), Percent: &percent, Data: job.Value{Data: []byte(`[1]`)}}
		want("from another node", `{"data":[1],"percent":7}`)
	})
}
