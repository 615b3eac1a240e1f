package statedir

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/ledger"
)

// The views, which callers read. The original program defines their names and
// formats.
const (
	snapshotFile = "snapshot.json"
	eventsFile   = "events.json"
	dispatchFile = "dispatch.json"
	mailboxFile  = "mailbox.json"
)

// viewFiles lists the views with a check of the format of each.
var viewFiles = []struct {
	name  string
	shape func([]byte) error
}{
	{snapshotFile, object("schema_version", "authority", "backlog", "replay", "readiness")},
	{"authority.json", object("owner", "lease_id", "leased_until", "stale", "stale_reason")},
	{"backlog.json", object("pending", "notified", "delivered", "failed")},
	{"readiness.json", object("ready", "reasons")},
	{"replay.json", object("cursor", "pending_events", "last_replayed_event_id", "deferred_leader_notification")},
	{dispatchFile, shapeOf(readRecords[record])},
	{mailboxFile, shapeOf(readRecords[map[string]json.RawMessage])},
	{eventsFile, shapeOf(readEvents)},
}

// emptyMailbox is the initial mailbox.json. The contract has no commands that
// change it.
const emptyMailbox = "{\n  \"records\": []\n}\n"

// snapshot returns the snapshot of the contract at a time.
func (s *state) snapshot(at time.Time) (ledger.Snapshot, error) {
	l, err := s.ledger(at, nil)
	if err != nil {
		return ledger.Snapshot{}, err
	}
	return l.Snapshot(ledger.SnapshotContext{Now: at}), nil
}

// views returns the contents of all views except the mailbox, by file name.
func (s *state) views(at time.Time) (map[string][]byte, error) {
	snapshot, err := s.snapshot(at)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{
		eventsFile:   list("[", s.events, "]\n"),
		dispatchFile: list(`{"records":[`, s.dispatches.lines, "]}\n"),
	}
	for name, section := range map[string]any{
		snapshotFile: snapshot, "authority.json": snapshot.Authority, "backlog.json": snapshot.Backlog,
		"readiness.json": snapshot.Readiness, "replay.json": snapshot.Replay,
	} {
		text, err := marshal(section)
		if err != nil {
			return nil, fmt.Errorf("write %s: %w", name, err)
		}
		var b bytes.Buffer
		if err := json.Indent(&b, append(text, '\n'), "", "  "); err != nil {
			return nil, fmt.Errorf("write %s: %w", name, err)
		}
		files[name] = b.Bytes()
	}
	return files, nil
}

// list returns lines as a JSON array with one item per line, between head and
// tail.
func list(head string, lines [][]byte, tail string) []byte {
	if len(lines) == 0 {
		return []byte(head + tail)
	}
	return append(append([]byte(head+"\n"), bytes.Join(lines, []byte(",\n"))...), "\n"+tail...)
}

// object returns a check that a text is a JSON object with the given keys.
func object(keys ...string) func([]byte) error {
	return func(b []byte) error {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(b, &fields); err != nil {
			return err
		}
		for _, key := range keys {
			if _, ok := fields[key]; !ok {
				return fmt.Errorf("missing field `%s`", key)
			}
		}
		return nil
	}
}

// shapeOf returns a check that read decodes a text.
func shapeOf[T any](read func([]byte) (T, error)) func([]byte) error {
	return func(b []byte) error {
		_, err := read(b)
		return err
	}
}

// readEvents decodes an events.json and returns one compact line for each event.
func readEvents(b []byte) ([][]byte, error) {
	var raw []json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		return nil, err
	}
	if raw == nil {
		return nil, errors.New("it holds null instead of a list")
	}
	lines := make([][]byte, len(raw))
	for i, text := range raw {
		var tag struct {
			Event *string `json:"event"`
		}
		if err := json.Unmarshal(text, &tag); err != nil {
			return nil, fmt.Errorf("event %d: %w", i+1, err)
		}
		if tag.Event == nil {
			return nil, fmt.Errorf("event %d: missing field `event`", i+1)
		}
		var line bytes.Buffer
		if err := json.Compact(&line, text); err != nil {
			return nil, fmt.Errorf("event %d: %w", i+1, err)
		}
		lines[i] = line.Bytes()
	}
	return lines, nil
}

// readRecords decodes an object with a list of records: a dispatch.json or a
// mailbox.json.
func readRecords[T any](b []byte) ([]T, error) {
	var list struct {
		Records *[]T `json:"records"`
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, err
	}
	if list.Records == nil {
		return nil, errors.New("missing field `records`")
	}
	return *list.Records, nil
}
