package edge

import (
	"context"
	"errors"
	"net"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// stuck makes the end of a job wait for its commit, and a PING behind it that
// keeps later requests unread.
func stuck(r *harness, p *peer, q overhop.Raw) {
	r.executor.mu.Lock()
	r.executor.holdSettled = true
	r.executor.mu.Unlock()
	p.send(overhop.TDone, "d", leaseFields(q))
	p.send(overhop.TPing, "p", nil)
}

// A worker's messages are not received while its connection is not read: none
// of its jobs is lost then, and the time it had left continues when reading
// does.
func TestStopwatch_PausesLeases(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p, _ := r.startWorker(4)
		one, two, three := r.startJob(p, 1, nil), r.startJob(p, 2, nil), r.startJob(p, 3, nil)
		for _, q := range []overhop.Raw{one, two, three} {
			p.ask(overhop.TAck, leaseFields(q), overhop.TOK)
		}
		time.Sleep(4 * time.Second)
		r.startJob(p, 4, nil)
		stuck(r, p, one) // until 7 s, and the leases end at 6 s
		time.Sleep(2900 * time.Millisecond)
		if got := r.executor.takeOutcomes(); len(got) != 1 || got[0].N != 1 {
			t.Errorf("while nothing was read: outcomes %+v, want that of DONE", got)
		}
		go p.send(overhop.TBeat, "b", leaseFields(two)) // the pipe blocks until it is read
		time.Sleep(2 * time.Second)                     // 8.9 s: the leases have gone on for 1.9 s of their 2
		if got := r.executor.takeOutcomes(); len(got) > 0 {
			t.Errorf("before their time was over: %+v", got)
		}
		time.Sleep(100 * time.Millisecond)
		if o := r.executor.onlyOutcome(t); o.N != 3 || o.Status != job.Lost {
			t.Errorf("outcome of the job without a BEAT: %+v", o)
		}
		time.Sleep(2900 * time.Millisecond) // 11.9 s; the QUEST of 4 s may lie until 12 s
		if got := r.executor.takeOutcomes(); len(got) > 0 {
			t.Errorf("before its time for ACK was over: %+v", got)
		}
		time.Sleep(100 * time.Millisecond)
		if o := r.executor.onlyOutcome(t); o.N != 4 || o.Started {
			t.Errorf("outcome of what was not acknowledged: %+v", o)
		}
	})
}

// A deadline passes whether the connection is read or not.
func TestStopwatch_KeepsDeadlines(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p, _ := r.startWorker(2)
		one := r.startJob(p, 1, nil)
		two := r.startJob(p, 2, func(a *job.Assignment) { a.Timeout = time.Second })
		p.ask(overhop.TAck, leaseFields(one), overhop.TOK)
		p.ask(overhop.TAck, leaseFields(two), overhop.TOK)
		stuck(r, p, one)
		if o := r.executor.onlyOutcome(t); o.N != 1 {
			t.Fatalf("outcome is %+v", o)
		}
		time.Sleep(2900 * time.Millisecond)
		synctest.Wait()
		r.server.deliveries.mu.Lock()
		got := r.server.deliveries.dispatches[job.DispatchID{Job: someJobID, N: 2}].state
		r.server.deliveries.mu.Unlock()
		if got != recalling {
			t.Errorf("state is %d, want a recall", got)
		}
		time.Sleep(100 * time.Millisecond)
		if o := r.executor.onlyOutcome(t); o.N != 2 || o.Status != job.TimedOut {
			t.Errorf("outcome is %+v", o)
		}
	})
}

// All jobs of one BEAT share the time of one request, and a yard that does not
// answer is asked once.
func TestBeat_OneTimeoutForAllJobs(t *testing.T) {
	for _, slow := range []time.Duration{0, 2 * time.Second} {
		bubble(t, Config{}, func(r *harness) {
			p := r.register(true)
			calls := 0
			begun := time.Now()
			r.cluster.resume = func(id job.ID, n uint32, _ string) (job.Assignment, error) {
				calls++
				if slow == 0 {
					return job.Assignment{}, &job.UnavailableError{Reason: "no authority"}
				}
				time.Sleep(slow)
				return job.Assignment{Job: id, N: n, Queue: "jobs"}, nil
			}
			var jobs []any
			for range 20 {
				id := job.ID(uuid.New())
				tok := r.server.deliveries.tokens.mint(job.DispatchID{Job: id, N: 1})
				jobs = append(jobs, fields{"jid": jid("jobs", id), "tok": tok[:]})
			}
			p.send(overhop.TBeat, "9", fields{"jobs": jobs})
			time.Sleep(6 * time.Second)
			unavailable := 0
			answer := p.expect(overhop.TOK, "9").Get("jobs")
			for item := range answer.Items() {
				if str(item.Get("code")) == string(overhop.CodeUnavailable) {
					unavailable++
				}
			}
			wantCalls, wantAway := 1, 20
			if slow > 0 { // at 0, 2 and 4 s, and at 6 s the time is over
				wantCalls, wantAway = 3, 17
			}
			if calls != wantCalls || unavailable != wantAway {
				t.Errorf("after %s: asked %d times, %d UNAVAILABLE; want %d and %d", time.Since(begun), calls, unavailable, wantCalls, wantAway)
			}
		})
	}
}

// A connection whose client has closed it is detected as such, even if its
// input is not read yet.
func TestPeerClosed(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	client, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ours, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	if _, err := client.Write([]byte("unread")); err != nil {
		t.Fatal(err)
	}
	if peerClosed(ours) {
		t.Error("an open connection is reported as closed")
	}
	client.Close()
	for !peerClosed(ours) { // bounded by the test's timeout
		if err := t.Context().Err(); err != nil {
			t.Fatal(err)
		}
	}

	// Its BEAT for another node's dispatch is not forwarded, and a dispatch of
	// this node stays with its worker.
	r := newHarness(t, Config{})
	defer func() { r.stop(); <-r.served }()
	w := &r.server.newConn(t.Context(), ours).worker
	w.id = "gone"
	asked := false
	r.cluster.resume = func(job.ID, uint32, string) (job.Assignment, error) {
		asked = true
		return job.Assignment{}, nil
	}
	if !r.server.deliveries.tokens.known() {
		t.Fatal("the secret is not known")
	}
	tok := r.server.deliveries.tokens.mint(job.DispatchID{Job: someJobID, N: 1})
	var away *job.UnavailableError
	if _, err := w.lockDispatch(context.Background(), overhop.LeaseRef{JID: []byte(someJob), Token: tok[:]}); !errors.As(err, &away) || asked {
		t.Errorf("asked %t, error %v", asked, err)
	}
	other := &r.server.newConn(t.Context(), client).worker
	d := &dispatch{DispatchID: job.DispatchID{Job: someJobID, N: 1}, worker: other}
	r.server.deliveries.mu.Lock()
	d.attachLocked(w)
	r.server.deliveries.mu.Unlock()
	if d.worker != other {
		t.Error("a dispatch was attached to a closed connection")
	}
}

// At most a thousand lines of one dispatch's log are accepted.
func TestLog_Limit(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p, _ := r.startWorker(2)
		q := r.startJob(p, 1, nil)
		p.ask(overhop.TAck, leaseFields(q), overhop.TOK)
		lines := make([]string, 250)
		for i := range lines {
			lines[i] = "line"
		}
		for _, send := range []struct{ lines, want int }{{250, 250}, {250, 250}, {250, 250}, {249, 249}, {250, 1}, {250, 0}} {
			ok := p.ask(overhop.TLog, leaseFieldsWith(q, fields{"lines": lines[:send.lines]}), overhop.TOK)
			if got := num(ok.Get("accepted")); got != int64(send.want) {
				t.Errorf("accepted %d of %d, want %d", got, send.lines, send.want)
			}
		}
		other := r.startJob(p, 2, nil)
		p.ask(overhop.TAck, leaseFields(other), overhop.TOK)
		if got := num(p.ask(overhop.TLog, leaseFieldsWith(other, fields{"lines": lines}), overhop.TOK).Get("accepted")); got != 250 {
			t.Errorf("of another dispatch %d were accepted", got)
		}
		if got := len(r.executor.lines); got != 1250 {
			t.Errorf("%d lines were handed over, want 1250", got)
		}
	})
}

// A line that a worker logs goes to the job's log, with its own time and level
// if given, and truncated to the limits.
func TestLog_Lines(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p, _ := r.startWorker(1)
		q := r.startJob(p, 1, nil)
		p.ask(overhop.TAck, leaseFields(q), overhop.TOK)
		p.ask(overhop.TLog, leaseFieldsWith(q, fields{"lines": []any{
			"plain", fields{"msg": "dressed", "level": "WARN", "at": "2026-01-02T03:04:05+01:00"},
			fields{"msg": strings.Repeat("é", maxLine), "at": "yesterday"},
		}}), overhop.TOK)
		got := r.executor.lines
		if len(got) != 3 {
			t.Fatalf("lines are %+v", got)
		}
		now := time.Now().UTC()
		for i, want := range []job.LogLine{
			{At: now, Level: "info", Text: "plain"},
			{At: time.Date(2026, 1, 2, 2, 4, 5, 0, time.UTC), Level: "warn", Text: "dressed"},
			{At: now, Level: "info", Text: strings.Repeat("é", maxLine/2), Truncated: true},
		} {
			want.Job, want.N, want.Attempt, want.Stream, want.Worker = got[0].Job, 1, 1, job.LogWire, p.wid
			if !reflect.DeepEqual(got[i], want) {
				t.Errorf("line %d is %+v, want %+v", i, got[i], want)
			}
		}
	})
}

// The outbox may have been written before the push that found it congested
// calls congestionChanged: the worker must still get jobs again.
func TestCongestion_LateNotice(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p, _ := r.startWorker(3)
		r.server.deliveries.mu.Lock()
		w := r.server.deliveries.workers[p.wid]
		r.server.deliveries.mu.Unlock()
		w.conn.out.mu.Lock()
		w.conn.out.congested.Store(true) // like a push that exceeds its limit
		w.conn.out.mu.Unlock()
		w.congestionChanged()
		if got := r.executor.offered("jobs", p.wid); got != 0 {
			t.Errorf("offer is %d while too much waits", got)
		}
		p.ask(overhop.TPing, nil, overhop.TPong) // something is written
		if got := r.executor.offered("jobs", p.wid); got != 3 {
			t.Errorf("offer is %d after all is written, want 3", got)
		}
		w.congestionChanged() // a late call
		if got := r.executor.offered("jobs", p.wid); got != 3 {
			t.Errorf("offer is %d after a late call, want 3", got)
		}
	})
}
