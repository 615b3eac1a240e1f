package history

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Line is one expanded event, with the fields of all kinds of events.
type Line struct {
	Event    string          `json:"event"`
	Request  string          `json:"request_id"`
	Owner    string          `json:"owner"`
	LeaseID  string          `json:"lease_id"`
	Until    string          `json:"leased_until"`
	Target   string          `json:"target"`
	Channel  string          `json:"channel"`
	Reason   string          `json:"reason"`
	Phase    string          `json:"phase"`
	Worker   string          `json:"worker"`
	Task     string          `json:"task_id"`
	Recovery string          `json:"recovery"`
	Function string          `json:"function"`
	Error    string          `json:"error_type"`
	Cursor   *string         `json:"cursor"`
	Metadata json.RawMessage `json:"metadata"`
	Number   uint64          `json:"seq"`
	At       time.Time       `json:"at"`
	Queue    string          `json:"queue"` // of its job or act; may be empty in the line of a job
	Action   string          `json:"action"`
	Job      string          `json:"job"` // of an act
	Actor    string          `json:"actor"`
	Door     string          `json:"door"`

	JobID string `json:"-"` // of the job that the event is about; "" means none
	Text  []byte `json:"-"` // the line
}

// ParseLines returns the events of an expanded message in order.
func ParseLines(body []byte) ([]Line, error) {
	var lines []Line
	for text := range bytes.SplitSeq(body, []byte("\n")) {
		if len(text) == 0 {
			continue
		}
		l := Line{Text: text}
		if err := json.Unmarshal(text, &l); err != nil {
			return nil, fmt.Errorf("malformed event %.200q: %w", text, err)
		}
		l.findJob()
		lines = append(lines, l)
	}
	// A worker event without a queue is followed by an event of the same job.
	for i := range lines {
		if l := &lines[i]; l.Queue == "" && l.JobID != "" && i+1 < len(lines) && lines[i+1].JobID == l.JobID {
			lines[i].Queue = lines[i+1].Queue
		}
	}
	return lines, nil
}

// findJob sets the id of the job that the event is about, and its queue if the
// event names it.
func (l *Line) findJob() {
	if id, _, ok := job.ParseRequestID(l.Request); ok {
		l.JobID = id.String()
		if l.Queue == "" && !strings.Contains(l.Target, "/") {
			l.Queue = l.Target
		}
	}
	if queue, id, ok := strings.Cut(l.Task, ":"); ok {
		l.JobID, l.Queue = id, queue
	}
	if l.Job != "" {
		l.JobID = l.Job
	}
}

// Type returns the name of the event in the style of [TypeNames].
func (l *Line) Type() string { return TypeName(l.Event) }

// Filter selects events. Fields that are not set select all.
type Filter struct {
	Since time.Time
	Type  string // of the event, in any style
	Idle  bool   // without a Type: also what a yard without work reports all the time
	Queue string
	Job   string // id
}

// Matches reports whether the filter selects an event: it is not too old, of the type, job
// and queue that the filter names, and not hidden.
func (f *Filter) Matches(l *Line) bool {
	isTooOld := l.At.Before(f.Since.Truncate(time.Millisecond)) // events have times in milliseconds
	switch {
	case isTooOld:
		return false
	case f.Type != "" && plainName(l.Event) != plainName(f.Type):
		return false
	case f.Type == "" && !f.Idle && slices.Contains(idleEvents, l.Event):
		return false
	case f.Job != "" && l.JobID != f.Job:
		return false
	}
	return f.Queue == "" || (l.JobID != "" || l.Action != "") && l.Queue == f.Queue
}

// idleEvents are what a yard without work reports all the time.
var idleEvents = []string{ledger.RunHeartbeat.String(), ledger.AuthorityRenewed.String()}

// TypeNames holds the names of all events in one style, in lower case with hyphens.
var TypeNames = func() []string {
	names := append(ledger.EventNames(), ledger.OperatorActed.Label())
	for i, name := range names {
		names[i] = strings.NewReplacer(".", "-", "_", "-").Replace(name)
	}
	return names
}()

// TypeName returns the name in [TypeNames] of an event that is named in any style, or event
// itself if TypeNames does not have it, as for an event of a newer build.
func TypeName(event string) string {
	plain := plainName(event)
	if i := slices.IndexFunc(TypeNames, func(name string) bool { return plainName(name) == plain }); i >= 0 {
		return TypeNames[i]
	}
	return event
}

// plainName returns the name of an event in lower case without '-', '.' and '_', so that
// tags, labels and user input can be compared.
func plainName(event string) string {
	return strings.ToLower(strings.NewReplacer("-", "", ".", "", "_", "").Replace(event))
}
