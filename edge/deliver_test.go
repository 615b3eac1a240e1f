package edge

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// A credit is offered to the agent, and a token names its dispatch.
func TestQuestToDone(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p, _ := r.startWorker(2)
		if got := r.executor.offered("jobs", p.wid); got != 2 {
			t.Fatalf("offer is %d, want 2", got)
		}
		q := r.startJob(p, 3, func(a *job.Assignment) { a.Redelivered = true })
		if got := r.executor.offered("jobs", p.wid); got != 1 {
			t.Errorf("offer after a QUEST is %d, want 1", got)
		}
		if num(q.Get("fence")) != 103 || str(q.Get("jid")) != someJob {
			t.Errorf("QUEST is %s", text(q))
		}
		if tok, _ := q.Get("tok").Bin(); len(tok) != 16 || tok[7] != 3 {
			t.Errorf("token is %x", tok)
		}
		p.ask(overhop.TAck, leaseFields(q), overhop.TOK)
		p.ask(overhop.TDone, leaseFieldsWith(q, fields{"result": fields{"big": int64(1) << 62}, "credits": 1}), overhop.TOK)
		o := r.executor.onlyOutcome(t)
		if o.Status != job.Success || !o.Started || o.N != 3 || o.Job != (someJobID) || string(o.Result.Data) != `{"big":4611686018427387904}` || o.Result.Msgpack {
			t.Errorf("outcome is %+v", o)
		}
		if got := r.executor.offered("jobs", p.wid); got != 2 {
			t.Errorf("offer after DONE is %d, want 2", got)
		}
		if len(r.server.deliveries.dispatches) != 0 {
			t.Errorf("%d dispatches are kept", len(r.server.deliveries.dispatches))
		}
	})
}

// An end that is reported twice before it is committed is one outcome with two
// answers.
func TestDone_WaitsForCommit(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		r.executor.holdSettled = true
		p, _ := r.startWorker(5)
		q := r.startJob(p, 1, nil)
		p.send(overhop.TDone, "1", leaseFieldsWith(q, fields{"result": []byte{1}}))
		p.send(overhop.TDone, "2", leaseFields(q))
		p.expectNothing()
		if o := r.executor.onlyOutcome(t); !o.Result.Msgpack || string(o.Result.Data) != "\xc4\x01\x01" {
			t.Errorf("binary result is %+v", o.Result)
		}
		r.executor.settle(0, job.Settled{State: job.Completed})
		if got := text(p.expect(overhop.TOK, "1")); got != `{"status":"completed"}` {
			t.Errorf("first DONE: %s", got)
		}
		if got := text(p.expect(overhop.TOK, "2")); got != `{"dup":true,"status":"completed"}` {
			t.Errorf("second DONE: %s", got)
		}
	})
}

func TestFail(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p, _ := r.startWorker(5)
		q := r.startJob(p, 1, nil)
		p.ask(overhop.TFail, leaseFieldsWith(q, fields{
			"error": fields{"message": "no", "type": "t", "code": "c", "details": fields{"b": []byte{0}, "n": 1}}, "retry_after_ms": 250,
		}), overhop.TOK)
		o := r.executor.onlyOutcome(t)
		if o.Status != job.Error || o.Final || !o.Started || *o.RetryAfter != 250*time.Millisecond ||
			o.Fault.Message != "no" || o.Fault.Type != "t" || o.Fault.Code != "c" || string(o.Fault.Details) != `{"b":"AA==","n":1}` {
			t.Errorf("outcome is %+v %+v", o, o.Fault)
		}
		q = r.startJob(p, 2, nil)
		p.ask(overhop.TFail, leaseFieldsWith(q, fields{"error": fields{"message": "no"}, "retry": false}), overhop.TOK)
		if o := r.executor.onlyOutcome(t); !o.Final || o.RetryAfter != nil {
			t.Errorf("final outcome is %+v", o)
		}
		q = r.startJob(p, 3, nil)
		p.ask(overhop.TFail, leaseFieldsWith(q, fields{"error": fields{"message": "no", "type": job.FaultInvalid}}), overhop.TOK)
		if o := r.executor.onlyOutcome(t); !o.Final {
			t.Errorf("an unknown handler has the outcome %+v", o)
		}
	})
}

func TestNack(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p, _ := r.startWorker(1)
		q := r.startJob(p, 1, nil)
		if r.server.Start(assignment(p, 2), job.Spec{}) {
			t.Error("started without a credit")
		}
		p.ask(overhop.TNack, leaseFieldsWith(q, fields{"reason": "busy", "delay_ms": 1500, "credits": 4}), overhop.TOK)
		o := r.executor.onlyOutcome(t)
		if o.Status != job.Declined || o.Started || *o.RetryAfter != 1500*time.Millisecond || o.Fault.Message != "busy" {
			t.Errorf("outcome is %+v", o)
		}
		if got := r.executor.offered("jobs", p.wid); got != 4 {
			t.Errorf("offer is %d, want 4", got)
		}
	})
}

// No push comes between a PING and its PONG.
func TestPingHoldsPushes(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		r.executor.holdSettled = true
		p, _ := r.startWorker(5)
		q := r.startJob(p, 1, nil)
		p.send(overhop.TDone, "1", leaseFields(q))
		p.send(overhop.TPing, "2", nil)
		synctest.Wait()
		if !r.server.Start(assignment(p, 2), job.Spec{Payload: []byte{0xc0}}) {
			t.Fatal("Start refused the job")
		}
		p.expectNothing()
		r.executor.settle(0, job.Settled{State: job.Completed})
		p.expect(overhop.TOK, "1")
		p.expect(overhop.TPong, "2")
		p.expect(overhop.TQuest, "0")
	})
}

// A client without the delivery extension gets no jobs, unless RequireHelloExt
// is false.
func TestPlainClientGetsNoJobs(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p := r.register(false)
		p.ask(overhop.TSubscribe, fields{"q": "jobs", "credits": 7}, overhop.TOK)
		if got := r.executor.offered("jobs", p.wid); got != 0 {
			t.Errorf("offer is %d", got)
		}
		if r.server.Start(assignment(p, 1), job.Spec{}) {
			t.Error("Start accepted a client without the delivery extension")
		}
	})
	anyone := false
	bubble(t, Config{Delivery: DeliveryConfig{RequireHelloExt: &anyone}}, func(r *harness) {
		p := r.register(false)
		p.ask(overhop.TSubscribe, fields{"q": "jobs", "credits": 7}, overhop.TOK)
		q := r.startJob(p, 1, nil)
		p.ask(overhop.TAck, leaseFields(q), overhop.TOK) // a client that gets jobs may also answer them
	})
}

// A worker subscribes to a queue that its node knows while no other node answers.
func TestSubscribe_KnownQueue(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p := r.register(true)
		r.cluster.mu.Lock()
		r.cluster.readErr = &job.UnavailableError{Reason: "no authority", RetryAfter: time.Second}
		r.cluster.mu.Unlock()
		p.ask(overhop.TSubscribe, fields{"q": "jobs", "credits": 7}, overhop.TOK)
		if got := r.executor.offered("jobs", p.wid); got != 7 {
			t.Errorf("offer is %d, want 7", got)
		}
		p.ask(overhop.TSubscribe, fields{"q": "others"}, overhop.TErr)
	})
}

func TestNoSecretNoJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newMemCluster()
		y.secret = nil
		r := newHarnessWith(t, Config{}, y)
		defer func() { r.stop(); <-r.served }()
		p, _ := r.startWorker(3)
		if got := r.executor.offered("jobs", p.wid); got != 0 {
			t.Errorf("offer without a secret is %d", got)
		}
		if r.server.Start(assignment(p, 1), job.Spec{}) {
			t.Error("started without a secret")
		}
		p.expectErr(overhop.TAck, fields{"jid": someJob, "tok": make([]byte, 16)}, overhop.CodeUnavailable)
	})
}

// Capacity is offered as soon as the secret is known.
func TestSecretArrivesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newMemCluster()
		y.secret = nil
		r := newHarnessWith(t, Config{}, y)
		p, _ := r.startWorker(3)
		if got := r.executor.offered("jobs", p.wid); got != 0 {
			t.Errorf("offer without a secret is %d", got)
		}
		y.mu.Lock()
		y.secret = []byte("now")
		y.mu.Unlock()
		time.Sleep(secretPoll)
		if got := r.executor.offered("jobs", p.wid); got != 3 {
			t.Errorf("offer with a secret is %d, want 3", got)
		}
		r.stop()
		<-r.served
	})
}

func TestUnsendable(t *testing.T) {
	bubble(t, Config{Wire: WireConfig{MaxEnvelope: 65536}}, func(r *harness) {
		p, _ := r.startWorker(1)
		for n, spec := range []job.Spec{
			{Payload: []byte{0xca, 0, 0, 0, 0}},
			{Params: []byte(`{"x":"` + strings.Repeat("x", 70_000) + `"}`)},
		} {
			if !r.server.Start(assignment(p, uint32(n+1)), spec) {
				t.Fatal("Start refused the job: it would be retried for ever")
			}
			if o := r.executor.onlyOutcome(t); o.Status != job.Error || !o.Final || o.Started || o.Fault.Type != job.FaultInvalid {
				t.Errorf("outcome is %+v", o)
			}
			if got := r.executor.offered("jobs", p.wid); got != 1 {
				t.Errorf("offer is %d, want 1", got)
			}
			p.expectNothing()
		}
	})
}

// DRAIN lists the other nodes, in a different order for each worker.
func TestDrain_Reconnect(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		r.cluster.edges = []string{"n2:9876", "n3:9876"}
		a, _ := r.startWorker(1)
		b, _ := r.startWorker(1)
		r.server.Drain(DrainReasonStop)
		got := []string{
			text(a.expect(overhop.TDrain, "0").Get("reconnect")),
			text(b.expect(overhop.TDrain, "0").Get("reconnect")),
		}
		slices.Sort(got)
		if want := []string{`["n2:9876","n3:9876"]`, `["n3:9876","n2:9876"]`}; !slices.Equal(got, want) {
			t.Errorf("reconnect lists are %v, want %v", got, want)
		}
		if got := r.cluster.edges[0]; got != "n2:9876" {
			t.Errorf("the cluster's list was changed, it begins with %s", got)
		}
	})
}

// A draining node offers nothing, whatever credits its workers grant.
func TestDrain(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p, _ := r.startWorker(3)
		q := r.startJob(p, 1, nil)
		p.ask(overhop.TAck, leaseFields(q), overhop.TOK)
		r.server.Drain(DrainReasonStop)
		p.expect(overhop.TDrain, "0")
		if got := r.executor.offered("jobs", p.wid); got != 0 {
			t.Errorf("offer is %d", got)
		}
		p.ask(overhop.TDone, leaseFieldsWith(q, fields{"credits": 1}), overhop.TOK)
		if got := r.executor.offered("jobs", p.wid); got != 0 {
			t.Errorf("offer after DONE is %d", got)
		}
	})
}

func TestServeEndInterrupts(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p, _ := r.startWorker(3)
		r.executor.setLease(time.Now().Add(time.Second))
		q := r.startJob(p, 1, nil)
		p.ask(overhop.TAck, leaseFields(q), overhop.TOK)
		time.Sleep(time.Second)
		r.stop()
		if o := r.executor.onlyOutcome(t); o.Status != job.Interrupted || !o.Started {
			t.Errorf("outcome is %+v", o)
		}
	})
}

func TestGoodbye(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p, _ := r.startWorker(3)
		r.startJob(p, 1, nil)
		p.ask(overhop.TGoodbye, fields{"drain": true}, overhop.TOK)
		if r.server.Start(assignment(p, 2), job.Spec{}) {
			t.Error("started at a draining worker")
		}

		p, _ = r.startWorker(3)
		r.startJob(p, 3, nil)
		q := r.startJob(p, 4, nil)
		p.ask(overhop.TAck, leaseFields(q), overhop.TOK)
		p.ask(overhop.TGoodbye, nil, overhop.TOK)
		p.expect(overhop.TBye, "0")
		got := r.executor.takeOutcomes()
		slices.SortFunc(got, func(a, b job.Outcome) int { return int(a.N) - int(b.N) })
		if len(got) != 2 || got[0].Started || !got[1].Started || got[0].Status != job.Interrupted || got[1].Status != job.Interrupted {
			t.Errorf("outcomes are %+v", got)
		}
	})
}

func TestUnsubscribe(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p, sid := r.startWorker(3)
		q := r.startJob(p, 1, nil)
		p.ask(overhop.TUnsubscribe, fields{"sid": sid}, overhop.TOK)
		if got := r.executor.offered("jobs", p.wid); got != 0 {
			t.Errorf("offer is %d", got)
		}
		p.ask(overhop.TDone, leaseFields(q), overhop.TOK)
		if o := r.executor.onlyOutcome(t); o.Status != job.Success {
			t.Errorf("outcome of the running job is %+v", o)
		}
	})
}

// A running job is shown with its last progress: always if its worker is
// connected to this node, and as reported by the node that has it otherwise.
func TestProgressIsShown(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p, _ := r.startWorker(3)
		q := r.startJob(p, 2, nil)
		view := job.View{ID: someJobID, Queue: "jobs", State: job.Active, Dispatches: 2, Created: time.Now(), Worker: "overhop/" + p.wid}
		shown := func() overhop.Raw {
			t.Helper()
			r.cluster.mu.Lock()
			r.cluster.jobs[someJobID] = view
			r.cluster.mu.Unlock()
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
		p.ask(overhop.TAck, leaseFields(q), overhop.TOK)
		if got := shown(); str(got.Get("lease_until")) == "" || len(got.Get("progress")) > 0 {
			t.Errorf("after ACK: %s", text(got))
		}
		p.ask(overhop.TProgress, leaseFieldsWith(q, fields{"percent": 40}), overhop.TOK)
		want("a number", `{"percent":40}`)
		p.ask(overhop.TProgress, leaseFieldsWith(q, fields{"percent": 50, "data": fields{"n": int64(1) << 62, "ü": []any{nil, "x"}}}), overhop.TOK)
		want("a map", `{"data":{"n":4611686018427387904,"ü":[null,"x"]},"percent":50}`)
		p.ask(overhop.TProgress, leaseFieldsWith(q, fields{"data": []byte{0, 255}}), overhop.TOK)
		want("binary", `{"data":"AP8="}`)

		percent := int64(7)
		view.Dispatches = 3 // which this node does not have
		if got := shown(); len(got.Get("lease_until")) > 0 || len(got.Get("progress")) > 0 {
			t.Errorf("of another dispatch: %s", text(got))
		}
		view.Progress = &job.Progress{Lease: time.Now(), Percent: &percent, Data: job.Value{Data: []byte(`[1]`)}}
		want("from another node", `{"data":[1],"percent":7}`)
	})
}

// A NACK is handled while the next job is sent over the same connection.
func TestStart_DuringNack(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p, _ := r.startWorker(1 << 20)
		quest := r.startJob(p, 1, nil)
		for n := uint32(2); n < 3000; n++ {
			next := assignment(p, n)
			go r.server.Start(next, job.Spec{})
			p.send(overhop.TNack, "n", leaseFields(quest))
			for range 2 {
				if e := p.next(); e.T == overhop.TQuest {
					quest = e.P
				}
			}
		}
	})
}
