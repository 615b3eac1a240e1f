package recount

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

var start = time.Date(2026, 3, 19, 1, 0, 0, 0, time.UTC)

// told numbers events, a second apart.
func told(events ...string) (lines []string) {
	for i, e := range events {
		at := start.Add(time.Duration(i) * time.Second).Format("2006-01-02T15:04:05.000Z")
		lines = append(lines, fmt.Sprintf(`%s,"seq":%d,"at":%q}`, strings.TrimSuffix(e, "}"), i+1, at))
	}
	return lines
}

func read(b *Book, lines []string) error {
	for _, line := range lines {
		if err := b.Line([]byte(line)); err != nil {
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

func TestBook(t *testing.T) {
	b := New()
	if err := b.Agrees(snapshot("", "", "", 0, 0, 0, 0)); err != nil {
		t.Fatal(err)
	}
	another := strings.NewReplacer(`"r"`, `""`)
	all := told(acquired, queued, renewed, notified, `{"event":"worker.assigned","worker":"w","task_id":"1"}`, delivered,
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
		if err := read(b, all[:i+1]); err != nil {
			t.Fatal(err)
		}
		if err := b.Agrees(want); err != nil {
			t.Error(err)
		}
		// Whatever is counted from a snapshot in the middle comes to the same.
		if b, err := From(want, uint64(i+1)); err != nil {
			t.Error(err)
		} else if err := read(b, all[i+1:]); err != nil {
			t.Errorf("from event %d: %v", i+1, err)
		} else if err := b.Agrees(snapshot("w1", "l2", "y", 0, 0, 1, 1)); err != nil {
			t.Errorf("from event %d: %v", i+1, err)
		}
	}
}

// TestBook_Refuses makes sure that the count notices what must not be.
func TestBook_Refuses(t *testing.T) {
	for name, lines := range map[string][]string{
		"a gap":               {told(acquired)[0], told(acquired, acquired, acquired)[2]},
		"an event twice":      {told(acquired)[0], told(acquired)[0]},
		"no number":           {acquired},
		"time goes back":      {told(acquired)[0], strings.Replace(told(acquired, acquired)[1], "01:00:01", "00:59:59", 1)},
		"queued twice":        told(queued, queued),
		"queued after an end": told(queued, notified, delivered, queued),
		"not queued":          told(notified),
		"not notified":        told(queued, delivered),
		"failed when pending": told(queued, failed),
		"notified twice":      told(queued, notified, notified),
		"two ends":            told(queued, notified, delivered, failed),
		"the same end twice":  told(queued, notified, failed, failed),
		"renewed by nobody":   told(renewed),
		"renewed by another":  told(acquired, strings.Replace(renewed, "w1", "w2", 1)),
		"no such event":       told(`{"event":"DispatchLost","request_id":"r"}`),
		"a label for a tag":   told(`{"event":"snapshot-captured"}`),
		"a field is missing":  told(`{"event":"DispatchQueued","request_id":"r"}`),
		"a field is null":     told(`{"event":"DispatchQueued","request_id":"r","target":null}`),
		"no JSON":             {"x"},
	} {
		if err := read(New(), lines); err == nil {
			t.Errorf("%s: not noticed", name)
		}
	}
	b := New()
	if err := read(b, told(acquired, queued)); err != nil {
		t.Fatal(err)
	}
	for _, wrong := range [][]byte{
		snapshot("", "", "", 1, 0, 0, 0), snapshot("w2", "l1", "x", 1, 0, 0, 0), snapshot("w1", "l2", "x", 1, 0, 0, 0),
		snapshot("w1", "l1", "y", 1, 0, 0, 0), snapshot("w1", "l1", "x", 0, 1, 0, 0), snapshot("w1", "l1", "x", 1, 0, 1, 0),
		snapshot("w1", "l1", "x", 1, 0, 0, 1), []byte(`{}`), []byte(`x`),
	} {
		if b.Agrees(wrong) == nil {
			t.Errorf("agrees with %s", wrong)
		}
	}
	// A base has room for what it counts, and no more.
	b, err := From(snapshot("w1", "l1", "x", 0, 1, 0, 0), 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := read(b, told(delivered, strings.Replace(failed, `"r"`, `"s"`, 1))); err == nil || b.Number() != 1 {
		t.Errorf("two ends of one dispatch are taken: %v", err)
	}
}

// TestBook_IDsComeAgain: a day after its end an id may name something new.
func TestBook_IDsComeAgain(t *testing.T) {
	b := New()
	lines := told(queued, notified, delivered, queued)
	lines[3] = strings.Replace(lines[3], "2026-03-19T01:00:03", "2026-03-20T01:00:02", 1)
	if err := read(b, lines); err != nil || b.State("r") != Pending {
		t.Fatal(err)
	}
	if err := b.Agrees(snapshot("", "", "", 1, 0, 1, 0)); err != nil {
		t.Error(err)
	}
}
