package ledger

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/yardmaster-dev/yardmaster/job"
)

// TestLedger_Properties applies the same random entries to two replicas and encodes
// and decodes the second one at random points. Both must give the same results, be
// equal at the end, and satisfy the invariants after every entry.
func TestLedger_Properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := newGenerator()
		restored, seen, producer, limits, starts := New(), newEventChecker(), keyClaims{}, limitChecker{}, newStartChecker()
		var kept *Ledger // a copy, and what it was when it was taken
		var before []byte
		for range rapid.IntRange(1, 60).Draw(t, "entries") {
			cmds := g.entry(t)
			a, b := g.ledger.Apply(g.at, cmds), restored.Apply(g.at, cmds)
			if got, want := fmt.Sprint(formatResults(b)), fmt.Sprint(formatResults(a)); got != want {
				t.Fatalf("replicas answer differently:\n%s\n%s", want, got)
			}
			for _, err := range []error{checkInvariants(g.ledger), checkInvariants(restored), seen.observe(g.ledger), producer.ingest(g.ledger, cmds, a), producer.check(g.ledger), limits.check(g.ledger, cmds), starts.check(g.ledger, cmds, a)} {
				if err != nil {
					t.Fatalf("after entry %d: %v", g.at.Index, err)
				}
			}
			switch rapid.IntRange(0, 9).Draw(t, "then") {
			case 0:
				restored = roundTrip(t, restored)
			case 1:
				if kept != nil && !bytes.Equal(before, encoded(t, kept)) {
					t.Fatalf("a copy changed with its original")
				}
				kept = g.ledger.Copy()
				before = encoded(t, kept)
				if !bytes.Equal(before, encoded(t, g.ledger)) {
					t.Fatalf("a copy differs from its original")
				}
			case 2:
				g.refuseStale(t)
				restored.Apply(g.at, nil)
				if err := seen.observe(g.ledger); err != nil { // jobs may have expired, and the next entry may mark their events published
					t.Fatalf("after the refused entry %d: %v", g.at.Index, err)
				}
			case 3:
				checkLists(t, g.ledger)
			}
		}
		if kept != nil && !bytes.Equal(before, encoded(t, kept)) {
			t.Fatalf("a copy changed with its original")
		}
		if !bytes.Equal(encoded(t, g.ledger), encoded(t, restored)) {
			t.Fatalf("replicas differ")
		}
		if !bytes.Equal(encoded(t, restored), encoded(t, roundTrip(t, restored))) {
			t.Fatalf("encoding and decoding changes the ledger")
		}
	})
}

// formatResults formats results for comparison.
func formatResults(results []Result) []string {
	lines := make([]string, len(results))
	for i, r := range results {
		line := fmt.Sprint(r.Err, r.Ingested, r.Placed, r.Settled, r.State)
		if r.Event != nil {
			line += string(r.Event.append(nil, 0, time.Time{}))
		}
		lines[i] = line
	}
	return lines
}

func roundTrip(t failer, l *Ledger) *Ledger {
	back, err := Decode(bytes.NewReader(encoded(t, l)))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range l.jobs.records.all { // fields that are never encoded would be missing in both encodings
		want, _, _ := l.Find(r.id)
		got, _, ok := back.Find(r.id)
		if diff := cmp.Diff(want, got); !ok || diff != "" {
			t.Fatalf("decoded ledger differs: %s", diff)
		}
	}
	was, is := []CronView{}, []CronView{}
	l.Crons("", func(c CronView) bool { was = append(was, c); return true })
	back.Crons("", func(c CronView) bool { is = append(is, c); return true })
	if diff := cmp.Diff(was, is, cmpopts.EquateEmpty()); diff != "" { // a nil body equals an empty one
		t.Fatalf("decoded ledger differs: %s", diff)
	}
	return back
}

// generator draws log entries, most of whose commands can succeed.
type generator struct {
	ledger *Ledger
	at     Stamp
	jobs   int // number of ids drawn

	guarded *job.Job // the last record with guards
}

func newGenerator() *generator {
	return &generator{ledger: New(), at: Stamp{Term: 1, At: scriptStart}}
}

var (
	someQueues   = rapid.SampledFrom([]string{"mail", "post", "a-b_c", "_system", "_own", "no good", ""})
	someRunning  = rapid.SampledFrom([]string{"", "send", "rust#send", "py#send", "#x"})
	someLevels   = rapid.SampledFrom([]uint8{0, 7, Level, Level, Level})
	someNodes    = rapid.SampledFrom([]string{"n1", "n2", "n3"})
	someRequests = rapid.SampledFrom([]string{"r1", "r2", "r3", "", "6f1d0c52-8e0b-5a3e-9c41-7a72646d7374#1"})
	somePauses   = rapid.SampledFrom([]time.Duration{0, 0, time.Millisecond, time.Second, 7 * time.Second, -time.Second, time.Hour, 25 * time.Hour})
)

// entry advances the stamp and draws up to four commands.
func (g *generator) entry(t *rapid.T) []Command {
	g.at.Index += uint64(rapid.IntRange(1, 3).Draw(t, "skip"))
	g.at.At = g.at.At.Add(somePauses.Draw(t, "pause"))
	if rapid.IntRange(0, 3).Draw(t, "clocks") == 0 {
		g.at.Offsets = Offsets{Elapsed: somePauses.Draw(t, "elapsed"), Wall: -somePauses.Draw(t, "wall")}
	}
	g.at.Epoch = g.ledger.Authority().Epoch
	if rapid.IntRange(0, 15).Draw(t, "election") == 0 {
		g.at.Term++
	}
	if rapid.IntRange(0, 15).Draw(t, "stale") == 0 {
		g.at.Epoch += rapid.SampledFrom([]uint64{1, 1 << 60, ^uint64(0)}).Draw(t, "off by")
	}
	if len(g.ledger.Lanes()) == 0 { // other commands need an authority and lanes
		g.at.Epoch = g.ledger.Authority().Epoch
		if g.at.Epoch == 0 && rapid.IntRange(0, 9).Draw(t, "caller") == 0 {
			return []Command{&AcquireAuthority{Owner: "n1", LeaseID: "x", LeasedUntil: g.at.At.Add(time.Second).Format(time.RFC3339)}}
		}
		if g.at.Epoch == 0 {
			return []Command{&Lead{Owner: "n1", Until: g.at.At.Add(10 * time.Second), Level: someLevels.Draw(t, "level")}}
		}
		return []Command{&Bootstrap{Secret: []byte{7}, Lanes: []string{"L0", "L1"}}}
	}
	if rapid.IntRange(0, 7).Draw(t, "full run") == 0 {
		return g.fullRun(t)
	}
	cmds := make([]Command, rapid.IntRange(0, 4).Draw(t, "commands"))
	for i := range cmds {
		cmds[i] = g.command(t)
	}
	return cmds
}

// fullRun returns an entry that places waiting jobs and settles them.
func (g *generator) fullRun(t *rapid.T) []Command {
	p, s := &Place{}, &Settle{}
	for _, q := range g.ledger.Queues() {
		g.ledger.WaitingJobs(WaitlistID{Queue: q.Name}, func(w WaitingJob) bool {
			p.Placements = append(p.Placements, Placement{Job: w.ID, N: w.N, Node: "n1", Incarnation: 1, Channel: "overhop/w1"})
			next := job.Next(rapid.IntRange(1, 4).Draw(t, "verdict"))
			s.Settlements = append(s.Settlements, Settlement{Job: w.ID, N: w.N, Next: next, Result: job.Value{Data: []byte("1")}, Reason: "r"})
			return len(p.Placements) < 6
		})
	}
	return []Command{p, s}
}

// command draws a command, and for some of those that an actor may ask for an actor.
func (g *generator) command(t *rapid.T) Command {
	c := g.anyCommand(t)
	if asked, ok := c.(Askable); ok && rapid.Bool().Draw(t, "asked for") {
		asked.SetActor(Actor{Name: someNodes.Draw(t, "actor"), Door: DoorNATS, Reason: rapid.SampledFrom([]string{"", "why"}).Draw(t, "reason")})
	}
	return c
}

func (g *generator) anyCommand(t *rapid.T) Command {
	switch n := rapid.IntRange(0, 41).Draw(t, "command"); {
	case n < 6:
		return g.ingest(t)
	case n < 12:
		return g.place(t)
	case n < 18:
		return g.settle(t)
	case n < 20:
		last := g.ledger
		c := &MarkPublished{
			Events:      uint64(rapid.IntRange(0, int(last.LastEvent())+1).Draw(t, "events")),
			Results:     uint64(rapid.IntRange(0, int(last.LastResult())+1).Draw(t, "results")),
			DeadLetters: uint64(rapid.IntRange(0, int(last.LastDeadLetter())+1).Draw(t, "dead")),
		}
		if c.Results > 0 {
			c.Messages = []ResultMessage{{First: c.Results, Seq: g.at.Index}}
		}
		c.Events = min(c.Events, g.at.Index*2) // keep some unpublished
		return c
	case n < 24:
		return g.jobCommand(t)
	case n < 26:
		return g.queueCommand(t)
	case n < 27:
		return g.lease(t)
	case n < 28:
		return g.workerEvents(t)
	case n < 30:
		return g.cron(t)
	case n < 32:
		return g.member(t)
	case n < 36:
		return limitCommand(t)
	case n < 40:
		return g.operation(t)
	}
	return g.contract(t)
}

// id draws the id of a job, usually one that may be known.
func (g *generator) id(t *rapid.T) job.ID {
	n := rapid.IntRange(max(0, g.jobs-8), g.jobs).Draw(t, "job")
	return job.ID{15: byte(n), 14: byte(n >> 8)}
}

func (g *generator) ingest(t *rapid.T) Command {
	lane := rapid.IntRange(0, 1).Draw(t, "lane")
	from := g.ledger.Lanes()[lane].Cursor
	c := &Ingest{
		Lane: uint8(lane), Identity: fmt.Sprint("L", lane), From: from,
		CreateQueues: rapid.IntRange(0, 5).Draw(t, "known queues") > 0,
	}
	seq := from
	for range rapid.IntRange(0, 4).Draw(t, "records") {
		seq++
		queue := someQueues.Draw(t, "queue")
		if rapid.IntRange(0, 8).Draw(t, "bad") == 0 {
			c.Rejected = append(c.Rejected, Rejection{ID: g.id(t), Queue: queue, Seq: seq, Accepted: g.at.At, Reason: "bad"})
			continue
		}
		if rapid.IntRange(0, 4).Draw(t, "new") > 0 {
			g.jobs++
		}
		j := job.Job{
			ID: g.id(t), Queue: queue, Function: someRunning.Draw(t, "function"),
			Position: job.Position{Lane: c.Lane, Seq: seq},
			Accepted: g.at.At.Add(somePauses.Draw(t, "clock")), Priority: uint8(rapid.IntRange(0, 9).Draw(t, "priority")),
		}
		if rapid.IntRange(0, 3).Draw(t, "later") == 0 {
			j.RunAt = g.at.At.Add(somePauses.Draw(t, "run at"))
			j.MaxAttempts = 3
		}
		if rapid.IntRange(0, 3).Draw(t, "options") == 0 {
			j.Timeout, j.RetryInterval = max(somePauses.Draw(t, "timeout"), 0), max(somePauses.Draw(t, "interval"), 0)
			j.ResultTTL = max(somePauses.Draw(t, "result"), 0)
		}
		if rapid.IntRange(0, 3).Draw(t, "large") == 0 {
			j.BlobOwner = g.id(t)
		}
		if rapid.IntRange(0, 3).Draw(t, "expiring") == 0 {
			j.Expires = g.at.At.Add(somePauses.Draw(t, "expires"))
		}
		drawUses(t, &j)
		j.Labels = rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "labels")
		if j.Guards = drawGuards(t); j.Guards != nil {
			j = g.maybeDuplicate(t, j)
		}
		c.Jobs = append(c.Jobs, j)
	}
	c.To = seq
	if rapid.IntRange(0, 9).Draw(t, "wrong lane") == 0 {
		c.From, c.Identity = c.From+uint64(rapid.IntRange(0, 1).Draw(t, "from")), "L1"
		for i := range c.Jobs {
			c.Jobs[i].Guards = nil // their positions may belong to another Ingest
		}
	}
	return c
}

// dispatch draws a dispatch of a job, usually its current one.
func (g *generator) dispatch(t *rapid.T) (job.ID, uint32) {
	id := g.id(t)
	view, _, _ := g.ledger.Find(id)
	return id, view.Dispatches + uint32(rapid.SampledFrom([]int{0, 0, 0, 0, 0, 1, -1}).Draw(t, "n"))
}

func (g *generator) place(t *rapid.T) Command {
	c := &Place{}
	for range rapid.IntRange(1, 4).Draw(t, "placements") {
		id, n := g.dispatch(t)
		node := someNodes.Draw(t, "node")
		c.Placements = append(c.Placements, Placement{Job: id, N: n, Node: node, Incarnation: 1, Channel: "overhop/w-" + node})
	}
	return c
}

func (g *generator) settle(t *rapid.T) Command {
	c := &Settle{}
	for range rapid.IntRange(1, 4).Draw(t, "ends") {
		id, n := g.dispatch(t)
		e := Settlement{Job: id, N: n, Next: job.Next(rapid.IntRange(1, 4).Draw(t, "next")), Reason: "reason"}
		switch e.Next {
		case job.NextDone:
			e.Result.Data = []byte(rapid.SampledFrom([]string{"", "null", `{"a":1}`}).Draw(t, "result"))
		case job.NextRetry, job.NextGiveBack:
			e.Loss = e.Next == job.NextGiveBack
			if rapid.Bool().Draw(t, "delayed") {
				e.At = g.at.At.Add(somePauses.Draw(t, "delay"))
			}
		case job.NextDead:
			e.Fault = &job.Fault{Message: "no", Details: []byte(`[1]`)}
		}
		if rapid.Bool().Draw(t, "by a node") {
			e.Node, e.Incarnation = someNodes.Draw(t, "by"), 1
		}
		c.Settlements = append(c.Settlements, e)
	}
	return c
}

func (g *generator) jobCommand(t *rapid.T) Command {
	switch id := g.id(t); rapid.IntRange(0, 5).Draw(t, "about a job") {
	case 0:
		return &CancelJob{Job: id, Reason: "asked", QueueGone: rapid.Bool().Draw(t, "queue gone")}
	case 4:
		return &CancelJob{Job: id, Reason: "cannot run", Type: job.FaultInvalid}
	case 5:
		c := &ChangeJob{Job: id, RunAt: g.at.At.Add(somePauses.Draw(t, "run at"))}
		if rapid.Bool().Draw(t, "prioritized") {
			c.Priority = new(uint8(rapid.IntRange(0, 9).Draw(t, "priority")))
		}
		return c
	case 1:
		return &RemoveJob{Job: id}
	case 2:
		return &RetryJob{Job: id}
	default:
		id, n := g.dispatch(t)
		return &MoveDispatch{Job: id, N: n, Node: someNodes.Draw(t, "to"), Incarnation: 2, Channel: "overhop/moved"}
	}
}

func (g *generator) queueCommand(t *rapid.T) Command {
	limit := uint32(rapid.IntRange(0, 2).Draw(t, "limit"))
	switch name := someQueues.Draw(t, "queue"); rapid.IntRange(0, 6).Draw(t, "about a queue") {
	case 0:
		return &RemoveQueue{Name: name}
	case 1:
		return &PauseQueue{Name: name, Paused: rapid.Bool().Draw(t, "paused"), OnlyIfIdle: rapid.Bool().Draw(t, "idle")}
	case 2:
		return &ChangeQueue{Name: name, Change: job.QueueChange{Limit: &limit}}
	case 3:
		return &ChangeQueue{Name: name, Change: job.QueueChange{Retention: drawRetention(t)}}
	case 4:
		return &SetRetention{Declared: rapid.Bool().Draw(t, "declared"), Settings: drawRetention(t)}
	default:
		return &AddQueue{ID: job.ID{1}, Name: name, Config: job.QueueConfig{Limit: limit}}
	}
}

func (g *generator) lease(t *rapid.T) Command {
	until := g.at.At.Add(10 * time.Second)
	if rapid.IntRange(0, 3).Draw(t, "mark") == 0 {
		lane := rapid.IntRange(0, 1).Draw(t, "lane")
		last := g.ledger.Lanes()[lane].Cursor + uint64(rapid.IntRange(0, 1).Draw(t, "later"))
		return &MarkIngested{Lanes: []LaneEnd{{Lane: uint8(lane), Last: last, At: g.at.At.Add(somePauses.Draw(t, "ago"))}}}
	}
	if rapid.IntRange(0, 9).Draw(t, "made") == 0 {
		return &Bootstrap{StreamsCreated: true, Lanes: []string{"L9"}}
	}
	if rapid.Bool().Draw(t, "renew") {
		return &Renew{Until: until}
	}
	return &Lead{Owner: someNodes.Draw(t, "leader"), Until: until, Level: someLevels.Draw(t, "level")}
}

// workerEvents draws events of a node's workers, some of them repeated.
func (g *generator) workerEvents(t *rapid.T) Command {
	node := someNodes.Draw(t, "node")
	c := &RecordWorkerEvents{Node: node, Incarnation: 1}
	cursor, _ := g.ledger.stalls.received.Get(node)
	c.First = cursor.last + uint64(rapid.SampledFrom([]int{1, 1, 1, 2, 0}).Draw(t, "first"))
	for range rapid.IntRange(1, 4).Draw(t, "events") {
		n := job.WorkerEvent{Worker: "overhop/" + rapid.SampledFrom([]string{"w-", "v-"}).Draw(t, "worker") + node, Stalled: rapid.Bool().Draw(t, "stalled")}
		if !n.Stalled {
			n.Detail = rapid.SampledFrom([]string{job.RecoveredCredit, job.RecoveredResumed}).Draw(t, "recovery")
		}
		c.Events = append(c.Events, n)
	}
	return c
}

func (g *generator) contract(t *rapid.T) Command {
	request := someRequests.Draw(t, "request")
	switch rapid.IntRange(0, 7).Draw(t, "contract") {
	case 0:
		return &AcquireAuthority{Owner: someNodes.Draw(t, "owner"), LeaseID: "x", LeasedUntil: g.at.At.Add(time.Second).Format(time.RFC3339)}
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
		return g.replay(t, request)
	}
	if rapid.Bool().Draw(t, "act") {
		return &RecordAct{Action: "dlq.remove", Job: g.id(t), Queue: someQueues.Draw(t, "queue"), Target: "7"}
	}
	return &Observe{Observations: []Observation{{RunHeartbeat, "n1", "execute"}}}
}

// replay draws a request for a replay, or the progress of one.
func (g *generator) replay(t *rapid.T, text string) Command {
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
	number := g.ledger.Replay().Number - uint64(rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "number"))
	return &AdvanceReplay{
		Number: number, Lanes: []ReplayProgress{{uint8(lane), seq}}, Last: g.id(t),
		Damage: []ReplayDamage{{uint8(lane), seq, seq + 1, DamageMissing}},
	}
}

// refuseStale applies every kind of command under an epoch that is not the current
// one, and checks that it is refused without a change.
func (g *generator) refuseStale(t *rapid.T) {
	g.ledger.Apply(g.at, nil) // apply what depends on time alone
	for kind := range commandTypes {
		if kind == KindLead {
			continue
		}
		empty, _ := NewCommand(kind)
		before := encoded(t, g.ledger)
		stamp := g.at
		stamp.Epoch = g.ledger.Authority().Epoch + rapid.SampledFrom([]uint64{1, ^uint64(0)}).Draw(t, "epoch")
		if r := g.ledger.Apply(stamp, []Command{empty}); r[0].Err == nil {
			t.Fatalf("command %d of another epoch was accepted", kind)
		}
		if !bytes.Equal(before, encoded(t, g.ledger)) {
			t.Fatalf("refused command %d changed the ledger", kind)
		}
	}
}

// drawRetention draws changes of retention settings, most of which are valid.
func drawRetention(t *rapid.T) (changes []job.RetentionSetting) {
	for range rapid.IntRange(1, 3).Draw(t, "settings") {
		key := rapid.SampledFrom([]job.RetentionKey{
			{Kept: job.KeptFinished, Bound: job.BoundAge}, {Kept: job.KeptFinished, Bound: job.BoundCount}, {Kept: job.KeptFailed, Bound: job.BoundAge}, {Kept: job.KeptEvents, Bound: job.BoundCount},
		}).Draw(t, "setting")
		value := int64(rapid.IntRange(0, 3).Draw(t, "count"))
		if key.Bound == job.BoundAge {
			value = int64(rapid.SampledFrom([]time.Duration{0, time.Second, time.Minute, time.Hour, 30 * time.Hour}).Draw(t, "age"))
		}
		changes = append(changes, job.RetentionSetting{Key: key, Value: value})
	}
	return changes
}
