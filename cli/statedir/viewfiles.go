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

// viewFiles lists the views. check returns an error unless a content has the format
// of the view.
var viewFiles = []struct {
	name  string
	check func(content []byte) error
}{
	{snapshotFile, checkObject("schema_version", "authority", "backlog", "replay", "readiness")},
	{"authority.json", checkObject("owner", "lease_id", "leased_until", "stale", "stale_reason")},
	{"backlog.json", checkObject("pending", "notified", "delivered", "failed")},
	{"readiness.json", checkObject("ready", "reasons")},
	{"replay.json", checkObject("cursor", "pending_events", "last_replayed_event_id", "deferred_leader_notification")},
	{dispatchFile, checkWith(readRecords[record])},
	{mailboxFile, checkWith(readRecords[message])},
	{eventsFile, checkWith(readEvents)},
}

// snapshot returns the snapshot of the contract as of now.
func (s *state) snapshot(now time.Time) (ledger.Snapshot, error) {
	l, err := s.ledger(now, nil)
	if err != nil {
		return ledger.Snapshot{}, err
	}
	return l.Snapshot(ledger.SnapshotContext{Now: now}), nil
}

// views returns the contents of all views, by file name, as of now.
func (s *state) views(now time.Time) (map[string][]byte, error) {
	snapshot, err := s.snapshot(now)
	if err != nil {
		return nil, err
	}
	messages, err := s.messageLines()
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", mailboxFile, err)
	}
	files := map[string][]byte{
		eventsFile:   joinLines("[", s.events, "]\n"),
		dispatchFile: joinLines(`{"records":[`, s.dispatches.lines, "]}\n"),
		mailboxFile:  joinLines(`{"records":[`, messages, "]}\n"),
	}
	for name, section := range map[string]any{
		snapshotFile: snapshot, "authority.json": snapshot.Authority, "backlog.json": snapshot.Backlog,
		"readiness.json": snapshot.Readiness, "replay.json": snapshot.Replay,
	} {
		text, err := marshal(section)
		if err != nil {
			return nil, fmt.Errorf("write %s: %w", name, err)
		}
		var indented bytes.Buffer
		if err := json.Indent(&indented, append(text, '\n'), "", "  "); err != nil {
			return nil, fmt.Errorf("write %s: %w", name, err)
		}
		files[name] = indented.Bytes()
	}
	return files, nil
}

// joinLines returns a JSON text with one item per line: head, the items separated
// by commas, and tail.
func joinLines(head string, items [][]byte, tail string) []byte {
	if len(items) == 0 {
		return []byte(head + tail)
	}
	return append(append([]byte(head+"\n"), bytes.Join(items, []byte(",\n"))...), "\n"+tail...)
}

// checkObject returns a check that a content is a JSON object with the given keys.
func checkObject(keys ...string) func([]byte) error {
	return func(content []byte) error {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(content, &fields); err != nil {
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

// checkWith returns a check that a content can be decoded by decode.
func checkWith[T any](decode func([]byte) (T, error)) func([]byte) error {
	return func(content []byte) error {
		_, err := decode(content)
		return err
	}
}

// readEvents decodes the content of an events.json: a list of objects, each with the
// name of its event. It returns one compact line of JSON for each event.
func readEvents(file []byte) ([][]byte, error) {
	var events []json.RawMessage
	if err := json.Unmarshal(file, &events); err != nil {
		return nil, err
	}
	if events == nil {
		return nil, errors.New("it holds null instead of a list")
	}
	lines := make([][]byte, len(events))
	for i, text := range events {
		var named struct {
			Event *string `json:"event"`
		}
		if err := json.Unmarshal(text, &named); err != nil {
			return nil, fmt.Errorf("event %d: %w", i+1, err)
		}
		if named.Event == nil {
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
func readRecords[T any](file []byte) ([]T, error) {
	var object struct {
		Records *[]T `json:"records"`
	}
	if err := json.Unmarshal(file, &object); err != nil {
		return nil, err
	}
	if object.Records == nil {
		return nil, errors.New("missing field `records`")
	}
	return *object.Records, nil
}
