package ledger

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"

	"yardmaster/job"
)

// EventKind names an event.
type EventKind uint8

// The fourteen events of the runtime contract.
const (
	AuthorityAcquired EventKind = iota + 1
	AuthorityRenewed
	DispatchQueued
	DispatchNotified
	DispatchDelivered
	DispatchFailed
	ReplayRequested
	SnapshotCaptured
	RunHeartbeat
	RunBlockedOnUser
	RunBlockedOnSystem
	WorkerAssigned
	WorkerStalled
	WorkerRecovered
)

// eventForms: the tag in JSON, the label in documents, and the names of the
// fields that an event's texts A, B and C stand in.
var eventForms = [...]struct {
	tag, label string
	fields     []string
}{
	AuthorityAcquired:  {"AuthorityAcquired", "authority-acquired", []string{"owner", "lease_id", "leased_until"}},
	AuthorityRenewed:   {"AuthorityRenewed", "authority-renewed", []string{"owner", "lease_id", "leased_until"}},
	DispatchQueued:     {"DispatchQueued", "dispatch-queued", []string{"target"}},
	DispatchNotified:   {"DispatchNotified", "dispatch-notified", []string{"channel"}},
	DispatchDelivered:  {"DispatchDelivered", "dispatch-delivered", nil},
	DispatchFailed:     {"DispatchFailed", "dispatch-failed", []string{"reason"}},
	ReplayRequested:    {"ReplayRequested", "replay-requested", nil},
	SnapshotCaptured:   {"SnapshotCaptured", "snapshot-captured", nil},
	RunHeartbeat:       {"run.heartbeat", "run.heartbeat", []string{"owner", "phase"}},
	RunBlockedOnUser:   {"run.blocked_on_user", "run.blocked_on_user", []string{"owner", "reason"}},
	RunBlockedOnSystem: {"run.blocked_on_system", "run.blocked_on_system", []string{"owner", "reason"}},
	WorkerAssigned:     {"worker.assigned", "worker.assigned", []string{"worker", "task_id"}},
	WorkerStalled:      {"worker.stalled", "worker.stalled", []string{"worker", "reason"}},
	WorkerRecovered:    {"worker.recovered", "worker.recovered", []string{"worker", "recovery"}},
}

func (k EventKind) String() string { return eventForms[k].tag }

// Label is the event's name as the contract's documents write it.
func (k EventKind) Label() string { return eventForms[k].label }

// EventNames lists the events as the contract's documents label them.
func EventNames() []string {
	names := make([]string, 0, len(eventForms)-1)
	for _, form := range eventForms[1:] {
		names = append(names, form.label)
	}
	return names
}

// Event is something that has happened. Its JSON is the contract's.
type Event struct {
	Kind  EventKind
	N     uint32 // of a job's dispatch; 0: not about one
	Job   job.ID // of a job's dispatch or assignment
	A, B  string // the kind's first fields, in the contract's order; B of a job's event is its queue
	Extra *Extra // what few events have
}

// Extra holds the rarer fields of an event.
type Extra struct {
	Request  string          // an own dispatch's id
	C        string          // the kind's third field
	Metadata json.RawMessage // of an own dispatch
	Cursor   *string         // of a replay request
}

// Queue is the queue of the job that the event is about, "" if it is about
// none: the subject of the live feed.
func (e *Event) Queue() string {
	if e.N == 0 {
		return ""
	}
	return e.B
}

// RequestID is the dispatch the event is about, "" if none.
func (e *Event) RequestID() string {
	if e.Extra != nil && e.Extra.Request != "" {
		return e.Extra.Request
	}
	if e.N == 0 {
		return ""
	}
	return job.RequestID(e.Job, e.N)
}

// JSON is the contract's form.
func (e *Event) JSON() []byte { return e.append(nil, 0, time.Time{}) }

// MarshalJSON gives the same as a part of something larger; package json escapes
// HTML's characters there.
func (e *Event) MarshalJSON() ([]byte, error) { return e.JSON(), nil }

// AppendLine adds the event as one line of history: the contract's form with
// its number and time behind it, and then the queue of a job's dispatch that is
// queued for a runner or ends. DispatchNotified goes without: the next line is
// about the same job and names its queue.
func (e *Event) AppendLine(b []byte, number uint64, at time.Time) []byte {
	return append(e.append(b, number, at), '\n')
}

func (e *Event) append(b []byte, number uint64, at time.Time) []byte {
	form := &eventForms[e.Kind]
	b = append(append(append(b, `{"event":"`...), form.tag...), '"')
	if e.Kind != WorkerAssigned {
		b = e.appendRequest(b)
	}
	b = e.appendFields(b, form.fields)
	if x := e.Extra; x != nil && len(x.Metadata) > 0 {
		b = append(append(b, `,"metadata":`...), x.Metadata...)
	}
	if e.Kind == ReplayRequested {
		b = append(b, `,"cursor":`...)
		if e.Extra == nil || e.Extra.Cursor == nil {
			b = append(b, "null"...)
		} else {
			b = appendString(b, *e.Extra.Cursor)
		}
	}
	if number > 0 {
		b = strconv.AppendUint(append(b, `,"seq":`...), number, 10)
		b = append(b, `,"at":"`...)
		b = append(at.UTC().AppendFormat(b, "2006-01-02T15:04:05.000Z"), '"')
		if e.N > 0 && (e.Kind == DispatchQueued && e.A != e.B || e.Kind == DispatchDelivered || e.Kind == DispatchFailed) {
			b = appendString(append(b, `,"queue":`...), e.B)
		}
	}
	return append(b, '}')
}

func (e *Event) appendRequest(b []byte) []byte {
	if e.Extra != nil && e.Extra.Request != "" {
		return appendString(append(b, `,"request_id":`...), e.Extra.Request)
	}
	if e.N == 0 {
		if e.Kind >= DispatchQueued && e.Kind <= DispatchFailed { // an own dispatch may have the id ""
			b = append(b, `,"request_id":""`...)
		}
		return b
	}
	b = append(b, `,"request_id":"`...)
	b = e.Job.Append(b)
	return append(strconv.AppendUint(append(b, '#'), uint64(e.N), 10), '"')
}

func (e *Event) appendFields(b []byte, names []string) []byte {
	for i, name := range names {
		b = append(append(append(b, `,"`...), name...), `":`...)
		switch {
		case e.Kind == WorkerAssigned && i == 1: // task_id is Overhop's job id
			b = append(append(append(b, '"'), e.B...), ':')
			b = append(e.Job.Append(b), '"')
		case i == 0:
			b = appendString(b, e.A)
		case i == 1:
			b = appendString(b, e.B)
		case e.Extra != nil:
			b = appendString(b, e.Extra.C)
		default:
			b = append(b, `""`...)
		}
	}
	return b
}

func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c > 0x7e || c == '"' || c == '\\' {
			return appendQuoted(b, s)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

// appendQuoted is for the rare text that needs escapes. HTML's characters need
// none: history is read by programs and by people, not by browsers.
func appendQuoted(b []byte, s string) []byte {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		panic("ledger: a string cannot be written as JSON: " + err.Error())
	}
	return append(b, bytes.TrimSuffix(buf.Bytes(), []byte("\n"))...)
}
