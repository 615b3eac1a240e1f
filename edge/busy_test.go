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

	"yardmaster/edge/overhop"
	"yardmaster/job"
)

// stuck has the end of one job hang, and a PING behind it that keeps all that
// follows unread.
func stuck(r *rig, p *peer, q overhop.Raw) {
	r.hands.mu.Lock()
	r.hands.keep = true
	r.hands.mu.Unlock()
	p.send(overhop.TDone, "d", held(q))
	p.send(overhop.TPing, "p", nil)
}

// A worker cannot be heard while its connection is not read: none of its jobs is
// lost then, and what time it had left it has when reading goes on.
func TestBusy_LeasesStandStill(t *testing.T) {
	cfg := Config{}
	cfg.Delivery.SettleWait = 3500 * time.Millisecond
	bubble(t, cfg, func(r *rig) {
		p, _ := r.worker(4)
		one, two, three := r.quest(p, 1, nil), r.quest(p, 2, nil), r.quest(p, 3, nil)
		for _, q := range []overhop.Raw{one, two, three} {
			p.ask(overhop.TAck, held(q), overhop.TOK)
		}
		time.Sleep(4 * time.Second)
		r.quest(p, 4, nil)
		stuck(r, p, one) // until 7.5 s, and the leases end at 6 s
		time.Sleep(3400 * time.Millisecond)
		if got := r.hands.outcomes(); len(got) != 1 || got[0].N != 1 {
			t.Errorf("while nothing was read: outcomes %+v, want that of DONE", got)
		}
		go p.send(overhop.TBeat, "b", held(two)) // the pipe takes it when it is read
		time.Sleep(2 * time.Second)              // 9.4 s: the leases have gone on for 1.9 s of their 2
		if got := r.hands.outcomes(); len(got) > 0 {
			t.Errorf("before their time was over: %+v", got)
		}
		time.Sleep(100 * time.Millisecond)
		if o := r.hands.one(t); o.N != 3 || o.Status != job.Lost {
			t.Errorf("outcome of the job nobody beat for: %+v", o)
		}
		time.Sleep(2900 * time.Millisecond) // 12.4 s; the QUEST of 4 s may lie until 12.5 s
		if got := r.hands.outcomes(); len(got) > 0 {
			t.Errorf("before its time for ACK was over: %+v", got)
		}
		time.Sleep(100 * time.Millisecond)
		if o := r.hands.one(t); o.N != 4 || o.Started {
			t.Errorf("outcome of what was not acknowledged: %+v", o)
		}
	})
}

// A deadline passes whether somebody reads or not.
func TestBusy_DeadlinesDoNotStandStill(t *testing.T) {
	bubble(t, Config{}, func(r *rig) {
		p, _ := r.worker(2)
		one := r.quest(p, 1, nil)
		two := r.quest(p, 2, func(a *job.Assignment) { a.Timeout = time.Second })
		p.ask(overhop.TAck, held(one), overhop.TOK)
		p.ask(overhop.TAck, held(two), overhop.TOK)
		stuck(r, p, one)
		if o := r.hands.one(t); o.N != 1 {
			t.Fatalf("outcome is %+v", o)
		}
		time.Sleep(2900 * time.Millisecond)
		synctest.Wait()
		r.server.mu.Lock()
		got := r.server.dispatches[ref{theJob, 2}].state
		r.server.mu.Unlock()
		if got != recalling {
			t.Errorf("state is %d, want a recall", got)
		}
		time.Sleep(100 * time.Millisecond)
		if o := r.hands.one(t); o.N != 2 || o.Status != job.TimedOut {
			t.Errorf("outcome is %+v", o)
		}
	})
}

// All jobs of one BEAT have the time of one request, and a yard that does not
// answer is asked once.
func TestBeat_OneBudget(t *testing.T) {
	for _, slow := range []time.Duration{0, 2 * time.Second} {
		bubble(t, Config{}, func(r *rig) {
			p := r.register(true)
			calls := 0
			begun := time.Now()
			r.yard.resume = func(id job.ID, n uint32, _ string) (job.Assignment, error) {
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
				tok := r.server.tokens.of(ref{id, 1})
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

// A connection whose client has hung up is known for that, even if what it sent
// is not read yet.
func TestHungUp(t *testing.T) {
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
	if hungUpSocket(ours) {
		t.Error("it is there, and taken for gone")
	}
	client.Close()
	for !hungUpSocket(ours) { // the test's own time bounds it
		if err := t.Context().Err(); err != nil {
			t.Fatal(err)
		}
	}

	// Its BEAT for another node's dispatch asks nobody, and what is here stays in
	// the hands of who has it.
	r := newRig(t, Config{})
	defer func() { r.stop(); <-r.served }()
	c := r.server.newConn(t.Context(), ours)
	c.wid = "gone"
	asked := false
	r.yard.resume = func(job.ID, uint32, string) (job.Assignment, error) {
		asked = true
		return job.Assignment{}, nil
	}
	if !r.server.tokens.known() {
		t.Fatal("the secret is not known")
	}
	tok := r.server.tokens.of(ref{theJob, 1})
	var away *job.UnavailableError
	if _, err := c.hold(context.Background(), overhop.Held{JID: []byte(someJob), Token: tok[:]}); !errors.As(err, &away) || asked {
		t.Errorf("asked %t, error %v", asked, err)
	}
	other := r.server.newConn(t.Context(), client)
	d := &dispatch{ref: ref{theJob, 1}, worker: other, place: -1}
	r.server.mu.Lock()
	r.server.attachLocked(d, c)
	r.server.mu.Unlock()
	if d.worker != other {
		t.Error("a dispatch went to a connection that has gone")
	}
}

// Of one dispatch's log a thousand lines are taken.
func TestLog_Limit(t *testing.T) {
	bubble(t, Config{}, func(r *rig) {
		p, _ := r.worker(2)
		q := r.quest(p, 1, nil)
		p.ask(overhop.TAck, held(q), overhop.TOK)
		lines := make([]string, 250)
		for i := range lines {
			lines[i] = "line"
		}
		for _, send := range []struct{ lines, want int }{{250, 250}, {250, 250}, {250, 250}, {249, 249}, {250, 1}, {250, 0}} {
			ok := p.ask(overhop.TLog, heldAnd(q, fields{"lines": lines[:send.lines]}), overhop.TOK)
			if got := num(ok.Get("accepted")); got != int64(send.want) {
				t.Errorf("accepted %d of %d, want %d", got, send.lines, send.want)
			}
		}
		other := r.quest(p, 2, nil)
		p.ask(overhop.TAck, held(other), overhop.TOK)
		if got := num(p.ask(overhop.TLog, heldAnd(other, fields{"lines": lines}), overhop.TOK).Get("accepted")); got != 250 {
			t.Errorf("of another dispatch %d were accepted", got)
		}
		if got := len(r.hands.lines); got != 1250 {
			t.Errorf("%d lines were handed over, want 1250", got)
		}
	})
}

// What a worker logs is a line of its job's log: with its own time and level if
// it gives them, and cut to what is taken.
func TestLog_Lines(t *testing.T) {
	bubble(t, Config{}, func(r *rig) {
		p, _ := r.worker(1)
		q := r.quest(p, 1, nil)
		p.ask(overhop.TAck, held(q), overhop.TOK)
		p.ask(overhop.TLog, heldAnd(q, fields{"lines": []any{
			"plain", fields{"msg": "dressed", "level": "WARN", "at": "2026-01-02T03:04:05+01:00"},
			fields{"msg": strings.Repeat("é", maxLine), "at": "yesterday"},
		}}), overhop.TOK)
		got := r.hands.lines
		if len(got) != 3 {
			t.Fatalf("lines are %+v", got)
		}
		now := time.Now().UTC()
		for i, want := range []job.LogLine{
			{At: now, Level: "info", Text: "plain"},
			{At: time.Date(2026, 1, 2, 2, 4, 5, 0, time.UTC), Level: "warn", Text: "dressed"},
			{At: now, Level: "info", Text: strings.Repeat("é", maxLine/2), Cut: true},
		} {
			want.Job, want.N, want.Attempt, want.Stream, want.Worker = got[0].Job, 1, 1, job.LogWire, p.wid
			if !reflect.DeepEqual(got[i], want) {
				t.Errorf("line %d is %+v, want %+v", i, got[i], want)
			}
		}
	})
}

// The writer may have written everything before the one that found no room says
// so: the worker must get jobs again.
func TestStuffed_LateWord(t *testing.T) {
	bubble(t, Config{}, func(r *rig) {
		p, _ := r.worker(3)
		r.server.mu.Lock()
		c := r.server.workers[p.wid]
		r.server.mu.Unlock()
		c.out.mu.Lock()
		c.out.stuffed.Store(true) // as a push that found no room does
		c.out.mu.Unlock()
		r.server.noteStuffed(c)
		if got := r.hands.room("jobs", p.wid); got != 0 {
			t.Errorf("room is %d while too much waits", got)
		}
		p.ask(overhop.TPing, nil, overhop.TPong) // something is written
		if got := r.hands.room("jobs", p.wid); got != 3 {
			t.Errorf("room is %d after all is written, want 3", got)
		}
		r.server.noteStuffed(c) // the late word
		if got := r.hands.room("jobs", p.wid); got != 3 {
			t.Errorf("room is %d after the late word, want 3", got)
		}
	})
}
