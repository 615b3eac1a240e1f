package contractcheck

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

var start = time.Date(2026, 3, 19, 1, 0, 0, 0, time.UTC)

// eventLines returns events as lines of history, numbered and a second apart.
func eventLines(events ...string) (lines []string) {
	for i, e := range events {
		at := start.Add(time.Duration(i) * time.Second).Format("2006-01-02T15:04:05.000Z")
		lines = append(lines, fmt.Sprintf(`%s,"seq":%d,"at":%q}`, strings.TrimSuffix(e, "}"), i+1, at))
	}
	return lines
}

func applyAll(b *Checker, lines []string) error {
	for _, line := range lines {
		if err := b.Apply([]byte(line)); err != nil {
			return err
		}
	}
	return nil
}

const (
	acquired  = `{"event":"AuthorityAcquired","owner":"w1","lease_id":"l1","leased_until":"x"}`
	renewed   = `{"event":"AuthorityRenewed","owner":"w1","lease_id":"l2","leased_until":"y"}`
	queued    = `{"event":"DispatchQueued","request_id":"r","target":"t"}`
	notified  = `{"event":"DispatchNotified","request_id":"r","channel":"c"}`
	delivered = `{"event":"DispatchDelivered","request_id":"r"}`
	failed    = `{"event":"DispatchFailed","request_id":"r","reason":""}`
)

func snapshot(owner, id, until string, counts ...int) []byte {
	lease := `{"owner":null,"lease_id":null,"leased_until":null}`
	if owner != "" {
		lease = fmt.Sprintf(`{"owner":%q,"lease_id":%q,"leased_until":%q}`, owner, id, until)
	}
	return fmt.Appendf(nil, `{"authority":%s,"backlog":{"pending":%d,"notified":%d,"delivered":%d,"failed":%d}}`,
		lease, counts[0], counts[1], counts[2], counts[3])
}

func TestChecker(t *testing.T) {
	b := New()
	if err := b.CheckSnapshot(snapshot("", "", "", 0, 0, 0, 0)); err != nil {
		t.Fatal(err)
	}
	another := strings.NewReplacer(`"r"`, `""`)
	all := eventLines(acquired, queued, renewed, notified, `{"event":"worker.assigned","worker":"w","task_id":"1"}`, delivered,
		another.Replace(queued), another.Replace(notified), another.Replace(failed),
		`{"event":"ReplayRequested","cursor":null}`, `{"event":"SnapshotCaptured"}`,
		`{"event":"run.heartbeat","owner":"w9","phase":"p"}`, `{"event":"run.blocked_on_user","owner":"w9","reason":"r"}`,
		`{"event":"run.blocked_on_system","owner":"w9","reason":"r"}`, `{"event":"worker.stalled","worker":"w","reason":"r"}`,
		`{"event":"worker.recovered","worker":"w","recovery":"r"}`)
	for i, want := range map[int][]byte{
		0: snapshot("w1", "l1", "x", 0, 0, 0, 0), 1: snapshot("w1", "l1", "x", 1, 0, 0, 0), 3: snapshot("w1", "l2", "y", 0, 1, 0, 0),
		8: snapshot("w1", "l2", "y", 0, 0, 1, 1), 15: snapshot("w1", "l2", "y", 0, 0, 1, 1),
	} {
		b := New()
		if err := applyAll(b, all[:i+1]); err != nil {
			t.Fatal(err)
		}
		if err := b.CheckSnapshot(want); err != nil {
			t.Error(err)
		}
		// Starting from a snapshot in the middle leads to the same final state.
		if b, err := FromSnapshot(want, uint64(i+1)); err != nil {
			t.Error(err)
		} else if err := applyAll(b, all[i+1:]); err != nil {
			t.Errorf("from event %d: %v", i+1, err)
		} else if err := b.CheckSnapshot(snapshot("w1", "l2", "y", 0, 0, 1, 1)); err != nil {
			t.Errorf("from event %d: %v", i+1, err)
		}
	}
}

// TestChecker_Refuses checks that violations of the contract are detected.
func TestChecker_Refuses(t *testing.T) {
	for name, lines := range map[string][]string{
		"a gap":                 {eventLines(acquired)[0], eventLines(acquired, acquired, acquired)[2]},
		"an event twice":        {eventLines(acquired)[0], eventLines(acquired)[0]},
		"no number":             {acquired},
		"time goes backwards":   {eventLines(acquired)[0], strings.Replace(eventLines(acquired, acquired)[1], "01:00:01", "00:59:59", 1)},
		"queued twice":          eventLines(queued, queued),
		"queued after an end":   eventLines(queued, notified, delivered, queued),
		"not queued":            eventLines(notified),
		"not notified":          eventLines(queued, delivered),
		"failed when pending":   eventLines(queued, failed),
		"notified twice":        eventLines(queued, notified, notified),
		"two ends":              eventLines(queued, notified, delivered, failed),
		"the same end twice":    eventLines(queued, notified, failed, failed),
		"renewed without owner": eventLines(renewed),
		"renewed by another":    eventLines(acquired, strings.Replace(renewed, "w1", "w2", 1)),
		"unknown event":         eventLines(`{"event":"DispatchLost","request_id":"r"}`),
		"label used as event":   eventLines(`{"event":"snapshot-captured"}`),
		"a field is missing":    eventLines(`{"event":"DispatchQueued","request_id":"r"}`),
		"a field is null":       eventLines(`{"event":"DispatchQueued","request_id":"r","target":null}`),
		"not JSON":              {"x"},
	} {
		if err := applyAll(New(), lines); err == nil {
			t.Errorf("%s: not detected", name)
		}
	}
	b := New()
	if err := applyAll(b, eventLines(acquired, queued)); err != nil {
		t.Fatal(err)
	}
	for _, wrong := range [][]byte{
		snapshot("", "", "", 1, 0, 0, 0), snapshot("w2", "l1", "x", 1, 0, 0, 0), snapshot("w1", "l2", "x", 1, 0, 0, 0),
		snapshot("w1", "l1", "y", 1, 0, 0, 0), snapshot("w1", "l1", "x", 0, 1, 0, 0), snapshot("w1", "l1", "x", 1, 0, 1, 0),
		snapshot("w1", "l1", "x", 1, 0, 0, 1), []byte(`{}`), []byte(`x`),
	} {
		if b.CheckSnapshot(wrong) == nil {
			t.Errorf("accepted the snapshot %s", wrong)
		}
	}
	// A base snapshot covers as many unnamed dispatches as it counts, and no more.
	b, err := FromSnapshot(snapshot("w1", "l1", "x", 0, 1, 0, 0), 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := applyAll(b, eventLines(delivered, strings.Replace(failed, `"r"`, `"s"`, 1))); err == nil || b.Number() != 1 {
		t.Errorf("a second end of the only dispatch was accepted: %v", err)
	}
}

// TestChecker_ReusedIDs checks that the id of a dispatch can be used again a day
// after the dispatch ended.
func TestChecker_ReusedIDs(t *testing.T) {
	b := New()
	lines := eventLines(queued, notified, delivered, queued)
	lines[3] = strings.Replace(lines[3], "2026-03-19T01:00:03", "2026-03-20T01:00:02", 1)
	if err := applyAll(b, lines); err != nil || b.State("r") != Pending {
		t.Fatal(err)
	}
	if err := b.CheckSnapshot(snapshot("", "", "", 1, 0, 1, 0)); err != nil {
		t.Error(err)
	}
}
