package ledger

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster-dev/yardmaster/job"
)

// contractEvents are events and their form in the runtime contract.
var contractEvents = []struct {
	event Event
	json  string
}{
	{Event{Kind: AuthorityAcquired, A: "w1", B: "l1", Extra: &Extra{C: "2026-03-19T02:00:00Z"}},
		`{"event":"AuthorityAcquired","owner":"w1","lease_id":"l1","leased_until":"2026-03-19T02:00:00Z"}`},
	{Event{Kind: AuthorityRenewed, A: "w1", B: "l1", Extra: &Extra{C: "2026-03-19T02:00:00Z"}},
		`{"event":"AuthorityRenewed","owner":"w1","lease_id":"l1","leased_until":"2026-03-19T02:00:00Z"}`},
	{Event{Kind: DispatchQueued, A: "worker-2", Extra: &Extra{Request: "req-1"}},
		`{"event":"DispatchQueued","request_id":"req-1","target":"worker-2"}`},
	{Event{Kind: DispatchQueued, A: "worker-2", Extra: &Extra{Request: "req-1", Metadata: []byte(`{"a":1}`)}},
		`{"event":"DispatchQueued","request_id":"req-1","target":"worker-2","metadata":{"a":1}}`},
	{Event{Kind: DispatchNotified, A: "tmux", Extra: &Extra{Request: "req-1"}},
		`{"event":"DispatchNotified","request_id":"req-1","channel":"tmux"}`},
	{Event{Kind: DispatchDelivered, Extra: &Extra{Request: "req-1"}},
		`{"event":"DispatchDelivered","request_id":"req-1"}`},
	{Event{Kind: DispatchFailed, A: "timeout", Extra: &Extra{Request: "req-1"}},
		`{"event":"DispatchFailed","request_id":"req-1","reason":"timeout"}`},
	{Event{Kind: DispatchFailed, A: "a \"b\"\n<c> ü \xff", B: "mail", Job: job.ID{15: 1}, N: 3},
		`{"event":"DispatchFailed","request_id":"00000000-0000-0000-0000-000000000001#3","reason":"a \"b\"\n<c> ü \ufffd"}`},
	{Event{Kind: DispatchQueued, A: "py#send", B: "mail", Job: job.ID{15: 1}, N: 3},
		`{"event":"DispatchQueued","request_id":"00000000-0000-0000-0000-000000000001#3","target":"rrq/py"}`},
	{Event{Kind: ReplayRequested, Extra: &Extra{Cursor: new("cursor-1")}},
		`{"event":"ReplayRequested","cursor":"cursor-1"}`},
	{Event{Kind: ReplayRequested}, `{"event":"ReplayRequested","cursor":null}`},
	{Event{Kind: SnapshotCaptured}, `{"event":"SnapshotCaptured"}`},
	{Event{Kind: RunHeartbeat, A: "leader", B: "execute"},
		`{"event":"run.heartbeat","owner":"leader","phase":"execute"}`},
	{Event{Kind: RunBlockedOnUser, A: "leader", B: "needs-user-clarification"},
		`{"event":"run.blocked_on_user","owner":"leader","reason":"needs-user-clarification"}`},
	{Event{Kind: RunBlockedOnSystem, A: "leader", B: "sandbox-denied"},
		`{"event":"run.blocked_on_system","owner":"leader","reason":"sandbox-denied"}`},
	{Event{Kind: WorkerAssigned, A: "overhop/w1", B: "mail", Job: job.ID{15: 1}, N: 1},
		`{"event":"worker.assigned","worker":"overhop/w1","task_id":"mail:00000000-0000-0000-0000-000000000001"}`},
	{Event{Kind: WorkerStalled, A: "worker-2", B: "stdout-stale"},
		`{"event":"worker.stalled","worker":"worker-2","reason":"stdout-stale"}`},
	{Event{Kind: WorkerRecovered, A: "worker-2", B: "relaunch"},
		`{"event":"worker.recovered","worker":"worker-2","recovery":"relaunch"}`},
	{Event{Kind: AuthorityAcquired}, `{"event":"AuthorityAcquired","owner":"","lease_id":"","leased_until":""}`},
}

func TestEvent_JSON(t *testing.T) {
	seen := make(map[EventKind]bool)
	for _, c := range contractEvents {
		seen[c.event.Kind] = true
		got, err := c.event.MarshalJSON()
		if err != nil || string(got) != c.json {
			t.Errorf("got  %s, %v\nwant %s", got, err, c.json)
		}
		if !json.Valid(got) {
			t.Errorf("invalid JSON: %s", got)
		}
	}
	for k := AuthorityAcquired; k <= WorkerRecovered; k++ {
		if !seen[k] {
			t.Errorf("no example of %s", k)
		}
	}
}

func TestEvent_Line(t *testing.T) {
	at := time.Date(2026, 3, 19, 2, 0, 0, 123_999_999, time.FixedZone("", 3600))
	for _, c := range contractEvents {
		line := c.event.AppendLine([]byte("before\n"), 42, at)
		want := "before\n" + strings.TrimSuffix(c.json, "}") + `,"seq":42,"at":"2026-03-19T01:00:00.123Z"`
		switch {
		case c.event.N == 0:
		case c.event.Kind == DispatchFailed:
			want += `,"queue":"mail"`
		case c.event.Kind == DispatchQueued:
			want += `,"queue":"mail","function":"py#send"`
		}
		want += "}\n"
		if string(line) != want {
			t.Errorf("got  %s\nwant %s", line, want)
		}
		if bytes.Count(line, []byte("\n")) != 2 {
			t.Errorf("not one line: %q", line)
		}
	}
}

// TestEvent_SnapshotCaptured checks that the line of history has the whole snapshot as
// of its event, and the answer to the command none.
func TestEvent_SnapshotCaptured(t *testing.T) {
	l := New()
	capture := &CaptureSnapshot{Context: SnapshotContext{PendingEvents: 7, Deferred: true, Reasons: []string{"no disk"}}}
	l.Apply(stampAt(1, 0, 0), []Command{&AcquireAuthority{Owner: "w1", LeaseID: "l1", LeasedUntil: "x"}})
	results := l.Apply(stampAt(2, 0, l.Authority().Epoch), []Command{
		&QueueDispatch{RequestID: "r1", Target: "w"}, capture, &QueueDispatch{RequestID: "r2", Target: "w"},
	})
	if results[1].Err != nil {
		t.Fatal(results[1].Err)
	}
	event := results[1].Event
	if got := string(event.JSON()); got != `{"event":"SnapshotCaptured"}` {
		t.Errorf("the answer is %s", got)
	}
	var line struct{ Snapshot Snapshot }
	if err := json.Unmarshal(event.AppendLine(nil, 3, l.Now()), &line); err != nil {
		t.Fatal(err)
	}
	got := line.Snapshot
	if got.Backlog.Pending != 1 || *got.Authority.LeaseID != "l1" || got.Replay.PendingEvents != 7 {
		t.Errorf("the snapshot is %+v", got)
	}
	if want := []string{"replay has 7 pending events", "no disk"}; got.Readiness.Ready || !slices.Equal(got.Readiness.Reasons, want) {
		t.Errorf("its readiness is %+v, want the reasons %q", got.Readiness, want)
	}
}

// TestEvent_LinesNameTheirQueue checks that a line of history names its queue, except
// for DispatchNotified, and that this adds less than a tenth to the lines of a job.
func TestEvent_LinesNameTheirQueue(t *testing.T) {
	const queue = "thumbnails"
	for _, c := range []struct{ function, channel string }{
		{"", "overhop/0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10"}, {"python#", "rrq/python/9001"},
	} {
		plain, bytesMore := 0, 0
		for _, e := range []Event{
			{Kind: DispatchQueued, A: c.function, B: queue}, {Kind: DispatchNotified, A: c.channel, B: queue},
			{Kind: WorkerAssigned, A: c.channel, B: queue}, {Kind: DispatchDelivered, B: queue},
		} {
			e.Job, e.N = job.ID{1, 2, 3}, 1
			line := string(e.AppendLine(nil, 123_456, time.Unix(1_800_000_000, 0)))
			if named := strings.Contains(line, queue); named == (e.Kind == DispatchNotified) {
				t.Errorf("queue in the line: %v: %s", named, line)
			}
			plain += len(line)
			if i := strings.Index(line, `,"queue":`); i > 0 {
				bytesMore += len(`,"queue":"` + queue + `"`)
			}
		}
		plain -= bytesMore
		t.Logf("%s: %d bytes per job, and %d for queues", c.channel, plain, bytesMore)
		if 10*bytesMore > plain {
			t.Errorf("%s: queues take %d bytes beside %d", c.channel, bytesMore, plain)
		}
	}
}

// TestEvent_LinesNameFunctionAndError checks that the history of a job has its function
// and the type of an error, also after the ledger was encoded, and that the
// contract's form of the events has neither.
func TestEvent_LinesNameFunctionAndError(t *testing.T) {
	l, stamp := ledgerWithAuthority(t)
	ingest, place, settle := ingestBatch(0, 1, "")
	ingest.Jobs[0].Function = "send"
	s := &settle.Settlements[0]
	s.Next, s.Reason, s.Fault = job.NextDead, "error: no route", &job.Fault{Message: "no route", Type: "SMTPError"}
	for _, r := range l.Apply(stamp, []Command{ingest, place, settle}) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	l, err := Decode(bytes.NewReader(encoded(t, l.Copy())))
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	l.EventsAfter(0, func(number uint64, at time.Time, e *Event) bool {
		if form := string(e.JSON()); e.Kind < OperatorActed && strings.Contains(form, "function") || strings.Contains(form, "error_type") {
			t.Errorf("the contract has no such field: %s", form)
		}
		if e.Kind == DispatchQueued || e.Kind == DispatchFailed {
			_, more, _ := strings.Cut(string(e.AppendLine(nil, number, at)), `,"at":`)
			lines = append(lines, e.Kind.String()+more[strings.Index(more, ","):])
		}
		return true
	})
	want := []string{"DispatchQueued,\"function\":\"send\",\"from\":\"new\"}\n", "DispatchFailed,\"queue\":\"mail\",\"error_type\":\"SMTPError\",\"to\":\"failed\"}\n"}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNames(t *testing.T) {
	wantEvents := []string{
		"authority-acquired", "authority-renewed", "dispatch-queued", "dispatch-notified", "dispatch-delivered",
		"dispatch-failed", "replay-requested", "snapshot-captured", "run.heartbeat", "run.blocked_on_user",
		"run.blocked_on_system", "worker.assigned", "worker.stalled", "worker.recovered",
	}
	if diff := cmp.Diff(wantEvents, EventNames()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	wantCommands := []string{
		"acquire-authority", "renew-authority", "queue-dispatch", "mark-notified",
		"mark-delivered", "mark-failed", "request-replay", "capture-snapshot",
	}
	if diff := cmp.Diff(wantCommands, CommandNames); diff != "" {
		t.Errorf("commands (-want +got):\n%s", diff)
	}
}

// TestCommand_Kinds checks the kind numbers, which are in the log and must never
// change.
func TestCommand_Kinds(t *testing.T) {
	want := map[Kind]Command{
		1: &Lead{}, 2: &Renew{}, 3: &Bootstrap{}, 4: &Ingest{}, 5: &Place{}, 6: &Settle{}, 7: &MarkPublished{}, 8: &AddQueue{},
		9: &RemoveQueue{}, 10: &PauseQueue{}, 11: &CancelJob{}, 12: &RemoveJob{}, 13: &RetryJob{}, 14: &MoveDispatch{},
		15: &Observe{}, 20: &RecordWorkerEvents{}, 21: &RecordAct{}, 24: &SetCron{}, 25: &RemoveCron{}, 26: &PauseCron{}, 27: &TickCrons{}, 28: &AdvanceReplay{},
		29: &SetMembers{}, 30: &ChangeMembers{}, 31: &AdvanceMember{}, 34: &CheckConsistency{},
		32: &Hold{}, 33: &Restore{}, 42: &ChangeQueue{}, 43: &MarkIngested{}, 44: &ChangeJob{}, 45: &SetRetention{}, 46: &ReleaseBodies{},
		65: &AcquireAuthority{}, 66: &RenewAuthority{}, 67: &QueueDispatch{}, 68: &MarkNotified{},
		40: &Reclaim{}, 41: &Relocate{}, 60: &SetSchema{}, 61: &RemoveSchema{}, 62: &SetLimit{}, 63: &RemoveLimit{}, 64: &PauseLimit{},
		80: &StartOperation{}, 81: &ChangeOperation{}, 82: &StepOperation{},
		69: &MarkDelivered{}, 70: &MarkFailed{}, 71: &RequestReplay{}, 72: &CaptureSnapshot{},
	}
	for kind, c := range want {
		if c.Kind() != kind {
			t.Errorf("%T has number %d, not %d", c, c.Kind(), kind)
		}
		if made, ok := NewCommand(kind); !ok || cmp.Diff(made, c) != "" {
			t.Errorf("NewCommand(%d) returns %T", kind, made)
		}
	}
	if _, ok := NewCommand(16); ok || len(commandTypes) != len(want) {
		t.Errorf("%d commands, want %d", len(commandTypes), len(want))
	}
}

// TestParseCommand_Refusals checks that errors are readable and short enough for a
// message header.
func TestParseCommand_Refusals(t *testing.T) {
	for text, want := range map[string]string{
		`[{"command":"CaptureSnapshot"}]`: "invalid JSON: got a value of type array; a command must be an object",
		`7`:                               "invalid JSON: got a value of type number; a command must be an object",
		`null`:                            "invalid JSON: missing field `command`",
		"{\"command\":\"MarkDelivered\",\"request_id\":\"\xff\"}": "invalid JSON: it holds bytes that are not UTF-8",
		`{"command":"` + strings.Repeat("Ü", 500_000) + `"}`: "invalid JSON: unknown variant `" + strings.Repeat("Ü", 32) + "…`, expected one of AcquireAuthority, RenewAuthority, " +
			"QueueDispatch, MarkNotified, MarkDelivered, MarkFailed, RequestReplay, CaptureSnapshot",
	} {
		if _, err := ParseCommand([]byte(text)); err == nil || err.Error() != want {
			t.Errorf("%.60s: %v", text, err)
		}
	}
}

func FuzzParseCommand(f *testing.F) {
	for _, seed := range []string{
		`{"command":"AcquireAuthority","owner":"w1","lease_id":"l1","leased_until":"2026-03-19T02:00:00Z"}`,
		`{"command":"QueueDispatch","request_id":"req-1","target":"worker-2","metadata":{"a":[1,"\n"]}}`,
		`{"command":"MarkNotified","request_id":"req-1","channel":"tmux"}`,
		`{"command":"MarkDelivered","request_id":"req-1"}`,
		`{"command":"MarkFailed","request_id":"req-1","reason":"timeout"}`,
		`{"command":"RequestReplay","cursor":"cursor-1"}`, `{"command":"CaptureSnapshot"}`, `null`, `[]`, `{`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := ParseCommand(text)
		if err != nil {
			if c != nil || !strings.HasPrefix(err.Error(), "invalid JSON: ") {
				t.Errorf("command %v with error %v", c, err)
			}
			return
		}
		l := New()
		r := l.Apply(stampAt(1, 0, 0), []Command{c})[0]
		if r.Event == nil {
			return
		}
		line := r.Event.AppendLine(nil, 1, l.Now())
		if bytes.Count(line, []byte("\n")) != 1 || !json.Valid(line) {
			t.Errorf("%s yields %q", text, line)
		}
	})
}
