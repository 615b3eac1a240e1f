package edge

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

func TestAckTooLate(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p, sid := r.startWorker(3)
		r.startJob(p, 1, nil)
		time.Sleep(5 * time.Second)
		p.expect(overhop.TCredits, "0")
		if o := r.executor.onlyOutcome(t); o.Status != job.Lost || o.Started {
			t.Errorf("outcome is %+v", o)
		}
		if got := r.executor.offered("jobs", p.wid); got != 0 {
			t.Errorf("offer of a stalled worker is %d", got)
		}
		p.ask(overhop.TCredit, fields{"sid": strings.ToUpper(sid), "credits": 2}, overhop.TOK)
		if got := r.executor.offered("jobs", p.wid); got != 2 {
			t.Errorf("offer after CREDIT is %d, want 2", got)
		}
	})
}

func TestLeaseExpires(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p, _ := r.startWorker(3)
		q := r.startJob(p, 1, nil)
		p.ask(overhop.TAck, leaseFields(q), overhop.TOK)
		time.Sleep(5900 * time.Millisecond)
		p.ask(overhop.TBeat, leaseFields(q), overhop.TOK)
		time.Sleep(5900 * time.Millisecond)
		if got := r.executor.takeOutcomes(); len(got) > 0 {
			t.Fatalf("while it lasts: %+v", got)
		}
		time.Sleep(100 * time.Millisecond)
		if o := r.executor.onlyOutcome(t); o.Status != job.Lost || !o.Started {
			t.Errorf("outcome is %+v", o)
		}
	})
}

func TestConnectionLost(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p, _ := r.startWorker(3)
		r.startJob(p, 1, nil)
		q := r.startJob(p, 2, nil)
		p.ask(overhop.TAck, leaseFields(q), overhop.TOK)
		p.nc.Close()
		if o := r.executor.onlyOutcome(t); o.Status != job.Lost || o.Started || o.N != 1 {
			t.Errorf("outcome of the unacknowledged is %+v", o)
		}
		if got := r.executor.offered("jobs", p.wid); got != 0 {
			t.Errorf("offer of a lost worker is %d", got)
		}
		if r.server.Start(assignment(p, 3), job.Spec{}) {
			t.Error("started at a lost worker")
		}
		time.Sleep(6 * time.Second)
		if o := r.executor.onlyOutcome(t); o.Status != job.Lost || !o.Started || o.N != 2 {
			t.Errorf("outcome of the acknowledged is %+v", o)
		}
	})
}

// The token stays valid over another connection.
func TestResume_SameNode(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p, _ := r.startWorker(3)
		q := r.startJob(p, 1, nil)
		p.ask(overhop.TAck, leaseFields(q), overhop.TOK)
		p.nc.Close()
		time.Sleep(5 * time.Second)
		again, _ := r.startWorker(1)
		again.ask(overhop.TBeat, leaseFields(q), overhop.TOK)
		time.Sleep(5 * time.Second)
		again.ask(overhop.TDone, leaseFieldsWith(q, fields{"credits": 2}), overhop.TOK)
		if o := r.executor.onlyOutcome(t); o.Status != job.Success {
			t.Errorf("outcome is %+v", o)
		}
		if got := r.executor.offered("jobs", again.wid); got != 3 {
			t.Errorf("offer is %d, want 3", got)
		}
	})
}

func TestResume_OtherNode(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p, _ := r.startWorker(3)
		r.cluster.resume = func(id job.ID, n uint32, worker string) (job.Assignment, error) {
			a := assignment(p, n)
			a.Timeout = 8 * time.Second
			return a, nil
		}
		tok := r.server.deliveries.tokens.mint(job.DispatchID{Job: someJobID, N: 7})
		h := fields{"jid": someJob, "tok": tok[:]}
		p.ask(overhop.TBeat, h, overhop.TOK)
		time.Sleep(5 * time.Second)
		p.ask(overhop.TBeat, h, overhop.TOK)
		time.Sleep(3 * time.Second)
		if got := str(p.expect(overhop.TRecall, "0").Get("reason")); got != "DEADLINE" {
			t.Errorf("RECALL is %s", got)
		}
		p.ask(overhop.TDone, h, overhop.TOK)
		if o := r.executor.onlyOutcome(t); o.Status != job.Success || o.N != 7 {
			t.Errorf("outcome is %+v", o)
		}
		tok = r.server.deliveries.tokens.mint(job.DispatchID{Job: someJobID, N: 8})
		p.ask(overhop.TDone, fields{"jid": someJob, "tok": tok[:]}, overhop.TOK)
		if o := r.executor.onlyOutcome(t); o.N != 8 || !o.Started {
			t.Errorf("outcome of a dispatch that was never here is %+v", o)
		}
	})
}

// A dispatch that moves here from another node is adopted by the agent and
// keeps its deadline, each time it moves.
func TestResume_AdoptedWithItsDeadline(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p, _ := r.startWorker(3)
		began := time.Now().Add(-5 * time.Second)
		r.cluster.resume = func(id job.ID, n uint32, worker string) (job.Assignment, error) {
			a := assignment(p, n)
			a.Timeout, a.Started = 10*time.Second, began
			return a, nil
		}
		tok := r.server.deliveries.tokens.mint(job.DispatchID{Job: someJobID, N: 7})
		h := fields{"jid": someJob, "tok": tok[:]}
		r.executor.refuseAdopt = true
		p.expectErr(overhop.TBeat, h, overhop.CodeUnavailable)
		if len(r.server.deliveries.dispatches) != 0 {
			t.Errorf("%d dispatches are kept that the node may not run", len(r.server.deliveries.dispatches))
		}
		r.executor.refuseAdopt = false
		for range 2 {
			ok := p.ask(overhop.TBeat, h, overhop.TOK)
			want := text(overhop.AppendTime(nil, began.Add(10*time.Second)))
			if got := text(ok.Get("deadline")); got != want {
				t.Errorf("deadline is %s, want %s", got, want)
			}
			if n := len(r.executor.adopted); n != 1 || r.executor.adopted[0].N != 7 {
				t.Errorf("adopted %+v", r.executor.adopted)
			}
			r.executor.adopted = nil
			r.server.Stop(job.Recall{Job: someJobID, N: 7, Reason: job.RecallSuperseded}) // and it comes back
			p.expect(overhop.TRecall, "0")
		}
		p.ask(overhop.TBeat, h, overhop.TOK)
		time.Sleep(5 * time.Second)
		if got := str(p.expect(overhop.TRecall, "0").Get("reason")); got != "DEADLINE" {
			t.Errorf("RECALL is %s", got)
		}
		time.Sleep(2 * time.Second)
		if o := r.executor.onlyOutcome(t); o.Status != job.TimedOut || o.N != 7 {
			t.Errorf("outcome is %+v", o)
		}
	})
}

func TestDeadline(t *testing.T) {
	for _, answers := range []bool{false, true} {
		bubble(t, Config{}, func(r *harness) {
			p, _ := r.startWorker(3)
			q := r.startJob(p, 1, func(a *job.Assignment) { a.Timeout = 1500 * time.Millisecond })
			p.ask(overhop.TAck, leaseFields(q), overhop.TOK)
			time.Sleep(1500 * time.Millisecond)
			p.expect(overhop.TRecall, "0")
			want := "Job timed out after 1.5s."
			if answers {
				p.ask(overhop.TFail, leaseFieldsWith(q, fields{"error": fields{"message": "stopped", "type": "cancelled"}}), overhop.TOK)
				want = "stopped"
			} else {
				time.Sleep(2 * time.Second)
			}
			if o := r.executor.onlyOutcome(t); o.Status != job.TimedOut || !o.Started || o.Fault.Message != want {
				t.Errorf("outcome is %+v %+v", o, o.Fault)
			}
		})
	}
}

// A job whose deadline passes before its ACK never started.
func TestDeadlineBeforeAck(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p, _ := r.startWorker(3)
		r.startJob(p, 1, func(a *job.Assignment) { a.Timeout = time.Second })
		time.Sleep(time.Second)
		p.expect(overhop.TCredits, "0")
		if o := r.executor.onlyOutcome(t); o.Status != job.Lost || o.Started {
			t.Errorf("outcome is %+v", o)
		}
	})
}

// Every reason for a recall leads to one outcome. What the worker receives is
// tested by the scripts in testdata.
func TestStop(t *testing.T) {
	for reason, status := range map[job.RecallReason]job.Status{
		job.RecallCancelled: job.RunCancelled, job.RecallQueueGone: job.RunCancelled, job.RecallDeadline: job.TimedOut,
		job.RecallShutdown: job.Interrupted, job.RecallLease: job.Lost, job.RecallSuperseded: 0,
	} {
		for _, acked := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, acknowledged %t", reason, acked), func(t *testing.T) {
				bubble(t, Config{}, func(r *harness) {
					p, _ := r.startWorker(3)
					q := r.startJob(p, 1, nil)
					if acked {
						p.ask(overhop.TAck, leaseFields(q), overhop.TOK)
					}
					r.server.Stop(job.Recall{Job: someJobID, N: 1, Reason: reason})
					r.server.Stop(job.Recall{Job: job.ID{9}, N: 9, Reason: reason}) // unknown
					time.Sleep(2 * time.Second)
					got := r.executor.takeOutcomes()
					if status == 0 && len(got) == 0 {
						return
					}
					if len(got) != 1 || got[0].Status != status || got[0].Started != acked || !got[0].ByNode {
						t.Errorf("outcomes %+v, want status %s", got, status)
					}
				})
			})
		}
	}
}
