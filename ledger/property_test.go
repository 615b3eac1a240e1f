package ledger

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"yardmaster/job"
)

// TestLedger_Properties drives two replicas with the same random entries. The
// second one is restored from an encoding at random points and forgets
// nothing by it: both end with the same hash, answer the same, and keep what
// a ledger must keep after every entry.
func TestLedger_Properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		y := newYard()
		restored, seen, producer := New(), newWitness(), claims{}
		var kept *Ledger // a copy, and what it was when it was taken
		var before []byte
		for range rapid.IntRange(1, 60).Draw(t, "entries") {
			cmds := y.entry(t)
			a, b := y.ledger.Apply(y.at, cmds), restored.Apply(y.at, cmds)
			if got, want := fmt.Sprint(describe(b)), fmt.Sprint(describe(a)); got != want {
				t.Fatalf("replicas answer differently:\n%s\n%s", want, got)
			}
			for _, err := range []error{holds(y.ledger), holds(restored), seen.see(y.ledger), producer.hear(y.ledger, cmds, a), producer.see(y.ledger)} {
				if err != nil {
					t.Fatalf("after entry %d: %v", y.at.Index, err)
				}
			}
			switch rapid.IntRange(0, 9).Draw(t, "then") {
			case 0:
				restored = roundTrip(t, restored)
			case 1:
				if kept != nil && !bytes.Equal(before, encoded(t, kept)) {
					t.Fatalf("a copy changed while the original went on")
				}
				kept = y.ledger.Copy()
				before = encoded(t, kept)
				if !bytes.Equal(before, encoded(t, y.ledger)) {
					t.Fatalf("a copy is not the original")
				}
			case 2:
				y.refuseStale(t)
				restored.Apply(y.at, nil)
			}
		}
		if kept != nil && !bytes.Equal(before, encoded(t, kept)) {
			t.Fatalf("a copy changed while the original went on")
		}
		if !bytes.Equal(encoded(t, y.ledger), encoded(t, restored)) {
			t.Fatalf("replicas differ")
		}
		if !bytes.Equal(encoded(t, restored), encoded(t, roundTrip(t, restored))) {
			t.Fatalf("restoring changes the ledger")
		}
	})
}

// describe writes results so that they can be compared.
func describe(results []Result) []string {
	lines := make([]string, len(results))
	for i, r := range results {
		line := fmt.Sprint(r.Err, r.Folded, r.Placed, r.Ended, r.State)
		if r.Event != nil {
			line += string(r.Event.append(nil, 0, time.Time{}))
		}
		lines[i] = line
	}
	return lines
}

func roundTrip(t *rapid.T, l *Ledger) *Ledger {
	back, err := Decode(bytes.NewReader(encoded(t, l)))
	if err != nil {
		t.Fatal(err)
	}
	for id := range l.jobs.byID { // what no encoding holds is in none of them
		want, _, _ := l.Find(id)
		got, _, ok := back.Find(id)
		if diff := cmp.Diff(want, got); !ok || diff != "" {
			t.Fatalf("restored otherwise: %s", diff)
		}
	}
	was, is := []CronView{}, []CronView{}
	l.Crons("", func(c CronView) bool { was = append(was, c); return true })
	back.Crons("", func(c CronView) bool { is = append(is, c); return true })
	if diff := cmp.Diff(was, is, cmpopts.EquateEmpty()); diff != "" { // no body is an empty one
		t.Fatalf("restored otherwise: %s", diff)
	}
	return back
}

// yard invents entries that make sense often enough to get somewhere.
type yard struct {
	ledger *Ledger
	at     Stamp
	jobs   int // ids handed out

	guarded *job.Job // the last record with guards
}

func newYard() *yard {
	return &yard{ledger: New(), at: Stamp{Term: 1, At: scriptStart}}
}

var (
	someQueues   = rapid.SampledFrom([]string{"mail", "post", "a-b_c", "_system", "_own", "no good", ""})
	someRunning  = rapid.SampledFrom([]string{"", "send", "rust#send", "py#send", "#x"})
	someNodes    = rapid.SampledFrom([]string{"n1", "n2", "n3"})
	someRequests = rapid.SampledFrom([]string{"r1", "r2", "r3", "", "6f1d0c52-8e0b-5a3e-9c41-7a72646d7374#1"})
	somePauses   = rapid.SampledFrom([]time.Duration{0, 0, time.Millisecond, time.Second, 7 * time.Second, -time.Second, time.Hour, 25 * time.Hour})
)

// entry moves the stamp on and gives one to four commands.
func (y *yard) entry(t *rapid.T) []Command {
	y.at.Index += uint64(rapid.IntRange(1, 3).Draw(t, "skip"))
	y.at.At = y.at.At.Add(somePauses.Draw(t, "pause"))
	y.at.Epoch = y.ledger.Authority().Epoch
	if rapid.IntRange(0, 15).Draw(t, "election") == 0 {
		y.at.Term++
	}
	if rapid.IntRange(0, 15).Draw(t, "stale") == 0 {
		y.at.Epoch += rapid.SampledFrom([]uint64{1, 1 << 60, ^uint64(0)}).Draw(t, "off by")
	}
	if len(y.ledger.Lanes()) == 0 { // all else needs an authority and lanes
		y.at.Epoch = y.ledger.Authority().Epoch
		if y.at.Epoch == 0 && rapid.IntRange(0, 9).Draw(t, "caller") == 0 {
			return []Command{&AcquireAuthority{Owner: "n1", LeaseID: "x", LeasedUntil: y.at.At.Add(time.Second).Format(time.RFC3339)}}
		}
		if y.at.Epoch == 0 {
			return []Command{&Lead{Owner: "n1", Until: y.at.At.Add(10 * time.Second)}}
		}
		return []Command{&Found{Secret: []byte{7}, Lanes: []string{"L0", "L1"}}}
	}
	if rapid.IntRange(0, 7).Draw(t, "whole way") == 0 {
		return y.wholeWay(t)
	}
	cmds := make([]Command, rapid.IntRange(0, 4).Draw(t, "commands"))
	for i := range cmds {
		cmds[i] = y.command(t)
	}
	return cmds
}

// wholeWay places what waits and settles some of it in one entry, as a busy
// authority does.
func (y *yard) wholeWay(t *rapid.T) []Command {
	p, s := &Place{}, &Settle{}
	for _, q := range y.ledger.Queues() {
		y.ledger.Line(q.Name, ClassPlain, func(w Waiting) bool {
			p.Placements = append(p.Placements, Placement{Job: w.ID, N: w.N, Node: "n1", Incarnation: 1, Channel: "overhop/w1"})
			next := job.Next(rapid.IntRange(1, 4).Draw(t, "verdict"))
			s.Ends = append(s.Ends, End{Job: w.ID, N: w.N, Next: next, Result: job.Value{Data: []byte("1")}, Reason: "r"})
			return len(p.Placements) < 6
		})
	}
	return []Command{p, s}
}

func (y *yard) command(t *rapid.T) Command {
	switch n := rapid.IntRange(0, 33).Draw(t, "command"); {
	case n < 6:
		return y.fold(t)
	case n < 12:
		return y.place(t)
	case n < 18:
		return y.settle(t)
	case n < 20:
		last := y.ledger
		c := &Told{
			Events:  uint64(rapid.IntRange(0, int(last.LastEvent())+1).Draw(t, "events")),
			Results: uint64(rapid.IntRange(0, int(last.LastResult())+1).Draw(t, "results")),
			Dead:    uint64(rapid.IntRange(0, int(last.LastDead())+1).Draw(t, "dead")),
		}
		if c.Results > 0 {
			c.Messages = []ResultMessage{{First: c.Results, Seq: y.at.Index}}
		}
		c.Events = min(c.Events, y.at.Index*2) // leave some to see
		return c
	case n < 24:
		return y.jobCommand(t)
	case n < 26:
		return y.queueCommand(t)
	case n < 27:
		return y.lease(t)
	case n < 28:
		return y.notes(t)
	case n < 30:
		return y.cron(t)
	case n < 32:
		return y.member(t)
	}
	return y.contract(t)
}

// id names a job: mostly one that may be known.
func (y *yard) id(t *rapid.T) job.ID {
	n := rapid.IntRange(max(0, y.jobs-8), y.jobs).Draw(t, "job")
	return job.ID{15: byte(n), 14: byte(n >> 8)}
}

func (y *yard) fold(t *rapid.T) Command {
	lane := rapid.IntRange(0, 1).Draw(t, "lane")
	from := y.ledger.Lanes()[lane].Cursor
	c := &Fold{
		Lane: uint8(lane), Identity: fmt.Sprint("L", lane), From: from,
		CreateQueues: rapid.IntRange(0, 5).Draw(t, "known queues") > 0,
	}
	seq := from
	for range rapid.IntRange(0, 4).Draw(t, "records") {
		seq++
		queue := someQueues.Draw(t, "queue")
		if rapid.IntRange(0, 8).Draw(t, "bad") == 0 {
			c.Rejected = append(c.Rejected, Rejection{ID: y.id(t), Queue: queue, Seq: seq, Accepted: y.at.At, Reason: "bad"})
			continue
		}
		if rapid.IntRange(0, 4).Draw(t, "new") > 0 {
			y.jobs++
		}
		j := job.Job{
			ID: y.id(t), Queue: queue, Function: someRunning.Draw(t, "function"),
			Position: job.Position{Lane: c.Lane, Seq: seq},
			Accepted: y.at.At.Add(somePauses.Draw(t, "clock")), Priority: uint8(rapid.IntRange(0, 9).Draw(t, "priority")),
		}
		if rapid.IntRange(0, 3).Draw(t, "later") == 0 {
			j.RunAt = y.at.At.Add(somePauses.Draw(t, "run at"))
			j.MaxAttempts = 3
		}
		if rapid.IntRange(0, 3).Draw(t, "says more") == 0 {
			j.Timeout, j.RetryInterval = max(somePauses.Draw(t, "timeout"), 0), max(somePauses.Draw(t, "interval"), 0)
			j.ResultTTL = max(somePauses.Draw(t, "result"), 0)
		}
		if j.Guards = someGuards(t); j.Guards != nil {
			j = y.perhapsCopy(t, j)
		}
		c.Jobs = append(c.Jobs, j)
	}
	c.To = seq
	if rapid.IntRange(0, 9).Draw(t, "wrong lane") == 0 {
		c.From, c.Identity = c.From+uint64(rapid.IntRange(0, 1).Draw(t, "from")), "L1"
		for i := range c.Jobs {
			c.Jobs[i].Guards = nil // its places may be another fold's
		}
	}
	return c
}

// dispatch names one of a job: mostly its current one.
func (y *yard) dispatch(t *rapid.T) (job.ID, uint32) {
	id := y.id(t)
	view, _, _ := y.ledger.Find(id)
	return id, view.Dispatches + uint32(rapid.SampledFrom([]int{0, 0, 0, 0, 0, 1, -1}).Draw(t, "n"))
}

func (y *yard) place(t *rapid.T) Command {
	c := &Place{}
	for range rapid.IntRange(1, 4).Draw(t, "placements") {
		id, n := y.dispatch(t)
		node := someNodes.Draw(t, "node")
		c.Placements = append(c.Placements, Placement{Job: id, N: n, Node: node, Incarnation: 1, Channel: "overhop/w-" + node})
	}
	return c
}

func (y *yard) settle(t *rapid.T) Command {
	c := &Settle{}
	for range rapid.IntRange(1, 4).Draw(t, "ends") {
		id, n := y.dispatch(t)
		e := End{Job: id, N: n, Next: job.Next(rapid.IntRange(1, 4).Draw(t, "next")), Reason: "why"}
		switch e.Next {
		case job.Done:
			e.Result.Data = []byte(rapid.SampledFrom([]string{"", "null", `{"a":1}`}).Draw(t, "result"))
		case job.Again, job.Back:
			e.Loss = e.Next == job.Back
			if rapid.Bool().Draw(t, "delayed") {
				e.At = y.at.At.Add(somePauses.Draw(t, "delay"))
			}
		case job.Dead:
			e.Fault = &job.Fault{Message: "no", Details: []byte(`[1]`)}
		}
		if rapid.Bool().Draw(t, "by somebody") {
			e.Node, e.Incarnation = someNodes.Draw(t, "by"), 1
		}
		c.Ends = append(c.Ends, e)
	}
	return c
}

func (y *yard) jobCommand(t *rapid.T) Command {
	switch id := y.id(t); rapid.IntRange(0, 3).Draw(t, "about a job") {
	case 0:
		return &CancelJob{Job: id, Reason: "asked", QueueGone: rapid.Bool().Draw(t, "queue gone")}
	case 1:
		return &RemoveJob{Job: id}
	case 2:
		return &RetryJob{Job: id}
	default:
		id, n := y.dispatch(t)
		return &MoveDispatch{Job: id, N: n, Node: someNodes.Draw(t, "to"), Incarnation: 2, Channel: "overhop/moved"}
	}
}

func (y *yard) queueCommand(t *rapid.T) Command {
	switch name := someQueues.Draw(t, "queue"); rapid.IntRange(0, 3).Draw(t, "about a queue") {
	case 0:
		return &RemoveQueue{Name: name}
	case 1:
		return &PauseQueue{Name: name, Paused: rapid.Bool().Draw(t, "paused"), Idle: rapid.Bool().Draw(t, "idle")}
	default:
		return &AddQueue{ID: job.ID{1}, Name: name, Config: job.QueueConfig{Limit: uint32(rapid.IntRange(0, 2).Draw(t, "limit"))}}
	}
}

func (y *yard) lease(t *rapid.T) Command {
	until := y.at.At.Add(10 * time.Second)
	if rapid.IntRange(0, 9).Draw(t, "made") == 0 {
		return &Found{Made: true, Lanes: []string{"L9"}}
	}
	if rapid.Bool().Draw(t, "renew") {
		return &Renew{Until: until}
	}
	return &Lead{Owner: someNodes.Draw(t, "leader"), Until: until}
}

// notes are a node's, of workers of its own, now and then said again.
func (y *yard) notes(t *rapid.T) Command {
	node := someNodes.Draw(t, "node")
	c := &NoteWorkers{Node: node, Incarnation: 1}
	h, _ := y.ledger.stalls.heard.Get(node)
	c.First = h.last + uint64(rapid.SampledFrom([]int{1, 1, 1, 2, 0}).Draw(t, "first"))
	for range rapid.IntRange(1, 4).Draw(t, "notes") {
		n := job.Note{Worker: "overhop/" + rapid.SampledFrom([]string{"w-", "v-"}).Draw(t, "worker") + node, Stalled: rapid.Bool().Draw(t, "stalled")}
		if !n.Stalled {
			n.Detail = rapid.SampledFrom([]string{job.RecoveredCredit, job.RecoveredResumed}).Draw(t, "recovery")
		}
		c.Notes = append(c.Notes, n)
	}
	return c
}

func (y *yard) contract(t *rapid.T) Command {
	request := someRequests.Draw(t, "request")
	switch rapid.IntRange(0, 7).Draw(t, "contract") {
	case 0:
		return &AcquireAuthority{Owner: someNodes.Draw(t, "owner"), LeaseID: "x", LeasedUntil: y.at.At.Add(time.Second).Format(time.RFC3339)}
	case 1:
		return &RenewAuthority{Owner: someNodes.Draw(t, "owner"), LeaseID: "y", LeasedUntil: "never"}
	case 2:
		return &QueueDispatch{RequestID: request, Target: someNodes.Draw(t, "target"), Metadata: []byte(`{"a":1}`)}
	case 3:
		return &MarkNotified{RequestID: request, Channel: "c"}
	case 4:
		return &MarkDelivered{RequestID: request}
	case 5:
		return &MarkFailed{RequestID: request, Reason: "f"}
	case 6:
		return y.replay(t, request)
	}
	return &Observe{Observations: []Observation{{RunHeartbeat, "n1", "execute"}}}
}

// replay asks for one, or tells how far some replay has come.
func (y *yard) replay(t *rapid.T, text string) Command {
	lane, seq := rapid.IntRange(0, 2).Draw(t, "lane"), uint64(rapid.IntRange(0, 12).Draw(t, "seq"))
	switch rapid.IntRange(0, 4).Draw(t, "replay") {
	case 0:
		return &RequestReplay{Cursor: &text}
	case 1:
		return &RequestReplay{}
	case 2:
		cursor := fmt.Sprintf("%d@%d", lane, seq)
		return &RequestReplay{Cursor: &cursor}
	}
	number := y.ledger.Replay().Number - uint64(rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "number"))
	return &Reread{
		Number: number, Lanes: []RereadLane{{uint8(lane), seq}}, Last: y.id(t),
		Damage: []ReplayDamage{{uint8(lane), seq, seq + 1, DamageMissing}},
	}
}

// refuseStale applies an entry of every kind of command under epochs that are
// not the present one, and looks that nothing at all comes of it.
func (y *yard) refuseStale(t *rapid.T) {
	y.ledger.Apply(y.at, nil) // whatever time alone brings
	for kind, empty := range commands {
		if kind == KindLead {
			continue
		}
		before := encoded(t, y.ledger)
		stamp := y.at
		stamp.Epoch = y.ledger.Authority().Epoch + rapid.SampledFrom([]uint64{1, ^uint64(0)}).Draw(t, "epoch")
		if r := y.ledger.Apply(stamp, []Command{empty()}); r[0].Err == nil {
			t.Fatalf("command %d of another epoch was taken", kind)
		}
		if !bytes.Equal(before, encoded(t, y.ledger)) {
			t.Fatalf("refused command %d changed the ledger", kind)
		}
	}
}
