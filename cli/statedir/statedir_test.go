package statedir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/yardmaster-dev/yardmaster/ledger"
)

const (
	acquire = `{"command":"AcquireAuthority","owner":"w1","lease_id":"l1","leased_until":"2026-03-19T02:00:00Z"}`
	queueR1 = `{"command":"QueueDispatch","request_id":"r1","target":"anna","metadata":{"b":"<&>","a":[1,{}]}}`
	notify1 = `{"command":"MarkNotified","request_id":"r1","channel":"tmux"}`
	deliver = `{"command":"MarkDelivered","request_id":"r1"}`
	queueR2 = `{"command":"QueueDispatch","request_id":"r2","target":"ben"}`
	failR2  = `{"command":"MarkFailed","request_id":"r2","reason":"too late"}`
	capture = `{"command":"CaptureSnapshot"}`
)

// do executes commands that must succeed, and returns the last event.
func do(t *testing.T, dir string, commands ...string) (answer string) {
	t.Helper()
	for _, c := range commands {
		b, err := Exec(t.Context(), dir, []byte(c), false)
		if err != nil {
			t.Fatalf("%s: %v", c, err)
		}
		answer = string(b)
	}
	return answer
}

func snapshotOf(t *testing.T, dir string) ledger.Snapshot {
	t.Helper()
	s, err := Snapshot(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// files returns the contents of the files in a directory, by name.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]string)
	for _, e := range entries {
		all[e.Name()] = read(t, dir, e.Name())
	}
	return all
}

// tags returns the name and the request id of each event in events.json.
func tags(t *testing.T, dir string) (names []string) {
	t.Helper()
	var events []struct {
		Event     string `json:"event"`
		RequestID string `json:"request_id"`
	}
	if err := json.Unmarshal([]byte(read(t, dir, eventsFile)), &events); err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		names = append(names, strings.TrimSuffix(e.Event+" "+e.RequestID, " "))
	}
	return names
}

func dispatchesOf(t *testing.T, dir string) []record {
	t.Helper()
	records, err := readRecords[record]([]byte(read(t, dir, dispatchFile)))
	if err != nil {
		t.Fatal(err)
	}
	return records
}

func want[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// The views show the effect of the commands.
func TestViews(t *testing.T) {
	dir := t.TempDir()
	answer := do(t, dir, acquire, queueR1, notify1, deliver, queueR2, failR2)
	want(t, "answer", answer, `{"event":"DispatchFailed","request_id":"r2","reason":"too late"}`)
	want(t, "events", tags(t, dir), []string{"AuthorityAcquired", "DispatchQueued r1", "DispatchNotified r1",
		"DispatchDelivered r1", "DispatchQueued r2", "DispatchNotified r2", "DispatchFailed r2"})
	want(t, "backlog", read(t, dir, "backlog.json"), "{\n  \"pending\": 0,\n  \"notified\": 0,\n  \"delivered\": 1,\n  \"failed\": 1\n}\n")
	want(t, "authority", read(t, dir, "authority.json"),
		"{\n  \"owner\": \"w1\",\n  \"lease_id\": \"l1\",\n  \"leased_until\": \"2026-03-19T02:00:00Z\",\n  \"stale\": false,\n  \"stale_reason\": null\n}\n")
	want(t, "readiness", read(t, dir, "readiness.json"), "{\n  \"ready\": true,\n  \"reasons\": []\n}\n")
	want(t, "mailbox", read(t, dir, mailboxFile), `{"records":[]}`+"\n")

	records := dispatchesOf(t, dir)
	if len(records) != 2 {
		t.Fatalf("%d dispatches", len(records))
	}
	r1, r2 := records[0], records[1]
	if r1.Status != delivered || r1.NotifiedAt == nil || r1.DeliveredAt == nil || r1.FailedAt != nil || *r1.Reason != "tmux" ||
		string(r1.Metadata) != `{"b":"<&>","a":[1,{}]}` {
		t.Errorf("r1: %+v", r1)
	}
	if r2.Status != failed || r2.NotifiedAt == nil || r2.DeliveredAt != nil || r2.FailedAt == nil || *r2.Reason != "too late" || string(r2.Metadata) != "null" {
		t.Errorf("r2: %+v", r2)
	}
	do(t, dir, capture)
	want(t, "dispatches after another command", dispatchesOf(t, dir), records)
}

// A refused or repeated command changes no file.
func TestErrors(t *testing.T) {
	dir := t.TempDir()
	do(t, dir, acquire, queueR1)
	before := files(t, dir)
	for _, tt := range []struct{ command, want string }{
		{`{"command":"AcquireAuthority","owner":"w2","lease_id":"l","leased_until":""}`, "authority error: lease already held by w1"},
		{`{"command":"RenewAuthority","owner":"w2","lease_id":"l","leased_until":""}`, "authority error: owner mismatch: lease held by w1"},
		{deliver, "dispatch error: invalid transition for r1: pending -> delivered"},
		{failR2, "dispatch error: dispatch record not found: r2"},
		{`{"command":"QueueDispatch","request_id":"r1","target":"ben"}`, "dispatch error: duplicate request id with other content: r1"},
		{`{"command":"QueueDispatch","request_id":"` + strings.Repeat("x", 129) + `","target":"ben"}`, "dispatch error: request_id has 129 bytes; at most 128"},
		{`{"command":"MarkMailboxNotified","message_id":"m"}`, "mailbox error: mailbox record not found: m"},
		{`{"command":"MarkMailboxNotified"}`, "invalid JSON: missing field `message_id`"},
		{`{"command":"CreateMailboxMessage","message_id":"m","from_worker":"a","to_worker":"b","body":1}`, "invalid JSON: body must be a string"},
		{`{"command":"CreateMailboxMessage","message_id":"` + strings.Repeat("x", 129) + `","from_worker":"a","to_worker":"b","body":""}`, "129 bytes; at most 128"},
		{`{"command":"MarkMailbox"}`, "invalid JSON: unknown variant `MarkMailbox`, expected one of AcquireAuthority, RenewAuthority, QueueDispatch, MarkNotified, " +
			"MarkDelivered, MarkFailed, RequestReplay, CaptureSnapshot, CreateMailboxMessage, MarkMailboxNotified, MarkMailboxDelivered"},
		{`{"command":"MarkDelivered"}`, "invalid JSON: missing field `request_id`"},
		{queueR1, ""},
	} {
		_, err := Exec(t.Context(), dir, []byte(tt.command), true)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v; want %q", tt.command, err, tt.want)
		}
		want(t, tt.command, files(t, dir), before)
	}
}

// Request ids that JSON may encode in several ways are found.
func TestRequestIDs(t *testing.T) {
	dir := t.TempDir()
	for _, id := range []string{"", "a b", `"`, `\`, "é", "<", "/", "\u2028", "\x00", "r", "r1"} {
		name, err := json.Marshal(id)
		if err != nil {
			t.Fatal(err)
		}
		do(t, dir, fmt.Sprintf(`{"command":"QueueDispatch","request_id":%s,"target":"x"}`, name),
			fmt.Sprintf(`{"command":"MarkNotified","request_id":%s,"channel":"x"}`, name))
	}
	if got := snapshotOf(t, dir).Backlog; got.Notified != 11 || got.Pending != 0 {
		t.Errorf("%+v", got)
	}
}

// Commands on a directory, each of which loads the state, give the same results
// as on one ledger in memory.
func TestAgainstOneLedger(t *testing.T) {
	for seed := range uint64(6) {
		dice := rand.New(rand.NewPCG(seed, 5))
		dir, one := t.TempDir(), ledger.New()
		for n := range 40 {
			id, owner := dice.IntN(6), dice.IntN(3)
			command := []string{
				fmt.Sprintf(`{"command":"QueueDispatch","request_id":"r%d","target":"t"}`, id),
				fmt.Sprintf(`{"command":"MarkNotified","request_id":"r%d","channel":"c"}`, id),
				fmt.Sprintf(`{"command":"MarkDelivered","request_id":"r%d"}`, id),
				fmt.Sprintf(`{"command":"MarkFailed","request_id":"r%d","reason":"no"}`, id),
				fmt.Sprintf(`{"command":"AcquireAuthority","owner":"w%d","lease_id":"l","leased_until":"later"}`, owner),
				fmt.Sprintf(`{"command":"RenewAuthority","owner":"w%d","lease_id":"m","leased_until":"later"}`, owner),
				fmt.Sprintf(`{"command":"RequestReplay","cursor":"c%d"}`, id), capture,
			}[dice.IntN(8)]
			c, err := ledger.ParseCommand([]byte(command))
			if err != nil {
				t.Fatal(err)
			}
			at := ledger.Stamp{Index: uint64(n + 1), At: time.Now(), Epoch: one.Authority().Epoch}
			result := one.Apply(at, []ledger.Command{c})[0]
			answer, err := Exec(t.Context(), dir, []byte(command), dice.IntN(4) == 0)
			if fmt.Sprint(err) != fmt.Sprint(result.Err) {
				t.Fatalf("seed %d, %s: error %v, from the ledger %v", seed, command, err, result.Err)
			}
			if err == nil {
				want(t, command, string(answer), string(eventLine(result.Event)))
			}
		}
		want(t, fmt.Sprint("seed ", seed), snapshotOf(t, dir), one.Snapshot(ledger.SnapshotContext{Now: time.Now()}))
	}
}

// A lease that ends in the future expires then, and another owner can acquire it;
// one that ended in the past when it was acquired does not expire.
func TestLease_Expires(t *testing.T) {
	dir := t.TempDir()
	at := func(now time.Time, command string) error {
		d, err := open(t.Context(), dir, unix.LOCK_EX)
		if err != nil {
			t.Fatal(err)
		}
		defer d.close()
		d.now = now
		apply, err := parse([]byte(command))
		if err != nil {
			t.Fatal(err)
		}
		_, err = d.exec(apply, false)
		return err
	}
	now := time.Now().Add(-time.Hour)
	until := now.Add(time.Minute).UTC().Format(time.RFC3339)
	if err := at(now, `{"command":"AcquireAuthority","owner":"w1","lease_id":"l1","leased_until":"`+until+`"}`); err != nil {
		t.Fatal(err)
	}
	other := `{"command":"AcquireAuthority","owner":"w2","lease_id":"l2","leased_until":"2026-03-19T02:00:00Z"}`
	if err := at(now.Add(30*time.Second), other); err == nil {
		t.Error("the lease was taken before it expired")
	}
	stale := snapshotOf(t, dir)
	if !stale.Authority.Stale || *stale.Authority.StaleReason != "lease expired" || stale.Readiness.Ready {
		t.Errorf("an hour later: %+v", stale)
	}
	if err := at(now.Add(2*time.Minute), other); err != nil {
		t.Errorf("acquiring an expired lease: %v", err)
	}
	if s := snapshotOf(t, dir); s.Authority.Stale || !s.Readiness.Ready {
		t.Errorf("a lease that ended before it was acquired: %+v", s)
	}
}

// Compaction drops events that no longer matter; the counts stay, and ended
// dispatches stay for a day.
func TestCompact(t *testing.T) {
	dir := t.TempDir()
	do(t, dir, capture, acquire, queueR1, notify1, deliver, queueR2, capture,
		`{"command":"RenewAuthority","owner":"w1","lease_id":"l2","leased_until":"later"}`)
	if _, err := Exec(t.Context(), dir, []byte(capture), true); err != nil {
		t.Fatal(err)
	}
	want(t, "events", tags(t, dir), []string{"AuthorityAcquired", "DispatchQueued r2", "AuthorityRenewed", "SnapshotCaptured"})
	if b := snapshotOf(t, dir).Backlog; b.Delivered != 1 || b.Pending != 1 {
		t.Errorf("backlog: %+v", b)
	}
	if _, err := Exec(t.Context(), dir, []byte(deliver), false); err == nil || !strings.Contains(err.Error(), "delivered -> delivered") {
		t.Errorf("r1 is not found: %v", err)
	}
	s, _, err := decodeState([]byte(read(t, dir, stateFile)))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.compact(time.Now().Add(25 * time.Hour)); err != nil {
		t.Fatal(err)
	}
	if n := len(s.dispatches.lines); n != 1 || s.Delivered != 1 {
		t.Errorf("a day later: %d dispatches, %d delivered", n, s.Delivered)
	}
}

// A command waits for the lock until its context ends.
func TestLock(t *testing.T) {
	dir := t.TempDir()
	do(t, dir, queueR1)
	d, err := open(t.Context(), dir, unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := Exec(ctx, dir, []byte(queueR2), false); err == nil || !strings.Contains(err.Error(), "engine.lock is locked by another process") {
		t.Errorf("while the directory is locked: %v", err)
	}
	done := make(chan error)
	go func() {
		_, err := Exec(t.Context(), dir, []byte(queueR2), false)
		done <- err
	}()
	d.close()
	if err := <-done; err != nil {
		t.Errorf("after the lock was released: %v", err)
	}
}

func TestNoDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	if _, err := Exec(t.Context(), dir, []byte("{"), false); !errors.Is(err, ledger.ErrInvalidJSON) {
		t.Errorf("an invalid command: %v", err)
	}
	if _, err := Snapshot(t.Context(), dir); !errors.Is(err, errNoDir) {
		t.Errorf("snapshot: %v", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Snapshot(t.Context(), dir); !errors.Is(err, errNoState) {
		t.Errorf("snapshot of an empty directory: %v", err)
	}
	do(t, dir, queueR1)
	do(t, filepath.Join(dir, "missing", "too"), queueR1)
}

// Init resets the state, keeps the previous files and leaves foreign files alone.
func TestInit_Again(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	if err := Init(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	do(t, dir, acquire, queueR1)
	write(t, dir, "notes.json", "mine")
	do(t, dir, queueR2, message1)
	state, events := read(t, dir, stateFile), read(t, dir, eventsFile)
	for range 2 { // the second replaces nothing
		if err := Init(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
		want(t, "state kept", read(t, dir, stateFile+".old"), state)
		want(t, "events kept", read(t, dir, eventsFile+".old"), events)
		want(t, "mailbox", read(t, dir, mailboxFile), `{"records":[]}`+"\n")
		want(t, "foreign file", read(t, dir, "notes.json"), "mine")
		want(t, "events", read(t, dir, eventsFile), "[]\n")
	}
	if s := snapshotOf(t, dir); s.Backlog.Pending != 0 || s.Authority.Owner != nil {
		t.Errorf("after init: %+v", s)
	}
}

// A command that cannot write all files leaves none of them behind.
func TestExec_DiskFull(t *testing.T) {
	dir := t.TempDir()
	do(t, dir, queueR1)
	before := files(t, dir)
	blocked := filepath.Join(dir, ".backlog.json.new")
	if err := os.MkdirAll(filepath.Join(blocked, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Exec(t.Context(), dir, []byte(queueR2), false); err == nil || !strings.HasPrefix(err.Error(), "io error: ") {
		t.Errorf("error %v, want an io error", err)
	}
	if err := os.RemoveAll(blocked); err != nil {
		t.Fatal(err)
	}
	want(t, "directory", files(t, dir), before)
	do(t, dir, queueR2)
}
