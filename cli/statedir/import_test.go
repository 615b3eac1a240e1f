package statedir

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// originalDir returns a directory as the original program writes it: pending
// dispatches fail at once, one id is queued twice, there is mail, and dispatches
// that were compacted away are only counted in the snapshot.
func originalDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, eventsFile, `[
  {"event": "AuthorityAcquired", "owner": "w1", "lease_id": "l1", "leased_until": "2026-03-19T02:00:00Z"},
  {"event": "DispatchQueued", "request_id": "r1", "target": "anna", "metadata": null},
  {"event": "DispatchQueued", "request_id": "r1", "target": "anna", "metadata": null},
  {"event": "DispatchNotified", "request_id": "r1", "channel": "tmux"},
  {"event": "DispatchQueued", "request_id": "r2", "target": "ben", "metadata": {"a": 1}},
  {"event": "DispatchFailed", "request_id": "r2", "reason": "too late"},
  {"event": "DispatchDelivered", "request_id": "unknown"},
  {"event": "MailboxMessageCreated", "message_id": "m", "from_worker": "a", "to_worker": "b"},
  {"event": "ReplayRequested", "cursor": "c1"}
]`)
	write(t, dir, dispatchFile, `{"records": [
  {"request_id": "r1", "target": "anna", "status": "notified", "created_at": "2026-03-19T01:00:00.123Z",
   "notified_at": "2026-03-19T01:00:01.000Z", "delivered_at": null, "failed_at": null, "reason": "tmux", "metadata": null},
  {"request_id": "r2", "target": "ben", "status": "failed", "created_at": "2026-03-19T01:00:02.000Z",
   "notified_at": null, "delivered_at": null, "failed_at": "2026-03-19T01:00:03.000Z", "reason": "too late", "metadata": {"a": 1}}]}`)
	write(t, dir, snapshotFile, `{"schema_version": 1,
  "authority": {"owner": "w1", "lease_id": "l1", "leased_until": "2026-03-19T02:00:00Z", "stale": false, "stale_reason": null},
  "backlog": {"pending": 1, "notified": 1, "delivered": 40, "failed": 1},
  "replay": {"cursor": "c1", "pending_events": 0, "last_replayed_event_id": null, "deferred_leader_notification": false},
  "readiness": {"ready": true, "reasons": []}}`)
	write(t, dir, mailboxFile, `{"records": [{"message_id": "m", "from_worker": "a", "to_worker": "b", "body": "hello",
   "created_at": "2026-03-19T01:00:00.123Z", "notified_at": null, "delivered_at": null}]}`)
	write(t, dir, lockFile, "")
	return dir
}

func TestImport(t *testing.T) {
	dir := originalDir(t)
	before := files(t, dir)
	s := snapshotOf(t, dir)
	if *s.Authority.Owner != "w1" || s.Backlog.Notified != 1 || s.Backlog.Pending != 0 || s.Backlog.Delivered != 40 || s.Backlog.Failed != 1 ||
		*s.Replay.Cursor != "c1" || !s.Readiness.Ready {
		t.Errorf("snapshot: %+v", s)
	}
	if _, err := Exec(t.Context(), dir, []byte(failR2), false); err == nil || !strings.Contains(err.Error(), "failed -> failed") {
		t.Errorf("r2 again: %v", err)
	}
	want(t, "directory after reading", files(t, dir), before)

	want(t, "answer", do(t, dir, deliver), `{"event":"DispatchDelivered","request_id":"r1"}`)
	if got := tags(t, dir); len(got) != 10 || got[9] != "DispatchDelivered r1" || got[7] != "MailboxMessageCreated" {
		t.Errorf("events: %v", got)
	}
	want(t, "mailbox", messagesOf(t, dir), []message{{MessageID: "m", FromWorker: "a", ToWorker: "b", Body: "hello", CreatedAt: "2026-03-19T01:00:00.123Z"}})
	records := dispatchesOf(t, dir)
	if len(records) != 2 || records[0].CreatedAt != "2026-03-19T01:00:00.123Z" || *records[0].NotifiedAt != "2026-03-19T01:00:01.000Z" ||
		records[0].DeliveredAt == nil || *records[1].FailedAt != "2026-03-19T01:00:03.000Z" || string(records[1].Metadata) != `{"a":1}` {
		t.Errorf("dispatches: %+v", records)
	}
	if b := snapshotOf(t, dir).Backlog; b.Delivered != 41 {
		t.Errorf("backlog: %+v", b)
	}
}

// Without the state file the state is imported from the views, including
// dispatches whose events were compacted away.
func TestImport_Compacted(t *testing.T) {
	dir := t.TempDir()
	do(t, dir, acquire, queueR1, notify1, deliver, queueR2)
	if _, err := Exec(t.Context(), dir, []byte(capture), true); err != nil {
		t.Fatal(err)
	}
	before := dispatchesOf(t, dir)
	if err := os.Remove(filepath.Join(dir, stateFile)); err != nil {
		t.Fatal(err)
	}
	do(t, dir, queueR1, queueR2)
	after := dispatchesOf(t, dir)
	if b := snapshotOf(t, dir).Backlog; b.Pending != 1 || b.Notified != 0 || b.Delivered != 1 || b.Failed != 0 {
		t.Errorf("backlog: %+v", b)
	}
	byID := func(a, b record) int { return strings.Compare(a.RequestID, b.RequestID) }
	slices.SortFunc(after, byID)
	slices.SortFunc(before, byID)
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("dispatches:\n%s", diff)
	}
}

// Init keeps all files of a directory of the original program.
func TestImport_Init(t *testing.T) {
	dir := originalDir(t)
	before := files(t, dir)
	if err := Init(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{eventsFile, dispatchFile, snapshotFile, mailboxFile} {
		want(t, name+" kept", read(t, dir, name+".old"), before[name])
	}
}

// events.json alone is a state; other files without it are an error.
func TestImport_MissingFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, eventsFile, `[{"event":"DispatchQueued","request_id":"r1","target":"anna","metadata":null}]`)
	do(t, dir, notify1)
	if b := snapshotOf(t, dir).Backlog; b.Notified != 1 {
		t.Errorf("backlog: %+v", b)
	}
	for _, name := range []string{snapshotFile, dispatchFile} {
		dir, from := t.TempDir(), originalDir(t)
		write(t, dir, name, read(t, from, name))
		if _, err := Exec(t.Context(), dir, []byte(queueR1), false); err == nil || !strings.Contains(err.Error(), "events.json cannot be read: it is missing, but other files") {
			t.Errorf("%s alone: %v", name, err)
		}
	}
}
