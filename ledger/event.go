package ledger

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// EventKind is the type of an event.
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

// OperatorActed is the event of an act that an actor asked for; the contract does
// not have it.
const OperatorActed = WorkerRecovered + 1

// The events beside acts that the contract does not have: changes of jobs that are about no
// dispatch. Earlier levels than 7 do not have them.
const (
	JobChanged    = OperatorActed + 1 + iota // one job
	JobsForgotten                            // jobs of a queue that the ledger has removed together
	JobDetails                               // what a job was enqueued with, or what has replaced that
)

// lastKind is the last of the kinds.
const lastKind = JobDetails

// eventForms holds, for each kind, the tag in JSON, the label in the contract's
// documents, and the names of the fields for the texts A, B and C.
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
	OperatorActed:      {"operator.acted", "operator.acted", []string{"action"}},
	JobChanged:         {"job.changed", "job.changed", nil},
	JobsForgotten:      {"jobs.forgotten", "jobs.forgotten", nil},
	JobDetails:         {"job.details", "job.details", nil},
}

func (k EventKind) String() string { return eventForms[k].tag }

// Label returns the event's name as written in the contract's documents.
func (k EventKind) Label() string { return eventForms[k].label }

// EventNames returns the labels of the contract's events.
func EventNames() []string {
	names := make([]string, 0, OperatorActed-1)
	for _, form := range eventForms[1:OperatorActed] {
		names = append(names, form.label)
	}
	return names
}

// Event is one event of the runtime contract, an act, or a change of jobs.
type Event struct {
	Kind  EventKind
	From  Whereabouts // of the job before: of DispatchQueued and JobChanged
	To    Whereabouts // of the job after: of DispatchFailed and JobChanged
	N     uint32      // number of a job's dispatch; 0: not about one
	Job   job.ID      // the job of the dispatch or the change, of an act, or that a worker has taken along
	A, B  string      // the kind's first two fields, in the contract's order; of an event about a job, B is the queue, and A of DispatchQueued and JobChanged the function, of JobDetails the key under which the job uses limits
	Extra *Extra      // further fields, which only some events have
}

// Whereabouts is where a job is, for the readers of events: its state, or outside of the ledger. 0 is
// that of events of earlier levels than 7, which do not have it.
type Whereabouts uint8

// Places outside of the ledger.
const (
	OutNew  = Whereabouts(job.New) + 1    // not accepted yet
	OutGone = Whereabouts(job.States) + 1 // removed
)

// InState returns where a job in a state is.
func InState(state job.State) Whereabouts { return Whereabouts(state) + 1 }

// State returns the job's state; ok is false if it is outside of the ledger, or not known.
func (p Whereabouts) State() (state job.State, ok bool) {
	if p <= OutNew || p >= OutGone {
		return job.New, false
	}
	return job.State(p - 1), true
}

// HasEnded reports whether the job is in a state in which it has ended.
func (p Whereabouts) HasEnded() bool {
	state, ok := p.State()
	return ok && state.Ended()
}

// String returns the state's name, or "gone".
func (p Whereabouts) String() string {
	switch {
	case p == 0:
		return ""
	case p >= OutGone:
		return "gone"
	}
	return job.State(p - 1).String()
}

// Extra holds fields that only some events have.
type Extra struct {
	Request  string          // id of an external dispatch
	C        string          // the kind's third field; of a job's DispatchFailed the type of the error; of JobDetails the labels, see [job.Labels.Encode], "": as they were
	Metadata json.RawMessage // of an external dispatch; of SnapshotCaptured the snapshot; of an act the settings after it; of JobsForgotten the numbers of jobs by state
	Cursor   *string         // of a replay request
	By       *Actor          // of an act
	Due      int64           // when the delayed job is due, in Unix nanoseconds; of DispatchFailed and JobChanged
	Accepted int64           // when the job was accepted, in Unix nanoseconds; of JobDetails
	Priority uint8           // of JobDetails
	Record   job.Position    // of JobDetails
	Result   uint64          // number of the job's result; of DispatchDelivered, 0: there is none
	Run      *Run            // of WorkerAssigned, and of the WorkerRecovered of a job
}

// Run is what history has of an executor that runs a job, beside the channel, and of the attempt.
type Run struct {
	Node     string
	Function string
	Attempt  uint32
	Key      string // under which the job uses limits; "": none
	Limits   string // that the job names itself, as in its record; "": none
}

// Queue returns the queue of the job, or of the act, that the event is about, or "" if it is
// not about one. It is part of the subject on which the event is published
// live.
func (e *Event) Queue() string {
	if e.N == 0 && e.Kind < OperatorActed {
		return ""
	}
	return e.B
}

// IsLive reports whether subscribers of live events get the event. Those get what the contract
// names, and acts; what is only there to rebuild a state is in history alone: changes of jobs
// without a dispatch, and settings that the yard itself has made.
func (e *Event) IsLive() bool {
	switch e.Kind {
	case JobChanged, JobsForgotten, JobDetails:
		return false
	case OperatorActed:
		return e.Extra.By.Door != DoorLedger || len(e.Extra.Metadata) == 0
	}
	return true
}

// isAboutJob reports whether the event is about a job.
func (e *Event) isAboutJob() bool { return e.N > 0 || !e.Job.IsZero() }

// JSON returns the event in the contract's form.
func (e *Event) JSON() []byte { return e.append(nil, 0, time.Time{}) }

// MarshalJSON returns the event in the contract's form. Package json then
// escapes HTML characters in it.
func (e *Event) MarshalJSON() ([]byte, error) { return e.JSON(), nil }

// AppendLine appends the event as one line of history: the contract's form,
// followed by its number and time. Events about a job's dispatch that is queued
// for a runner or has ended also get the job's queue; DispatchNotified does
// not, because the next line is about the same job and has it. DispatchQueued
// gets the job's function and where the job was before, DispatchDelivered the number of the result,
// DispatchFailed the type of the error, and what became of the job, worker.assigned the attempt, and
// SnapshotCaptured the snapshot.
func (e *Event) AppendLine(b []byte, number uint64, at time.Time) []byte {
	return append(e.append(b, number, at), '\n')
}

// append appends the event to b as a JSON object with the contract's fields,
// without a line end. A number of 0 leaves out what only a line of history has:
// the number, the time and the queue.
func (e *Event) append(b []byte, number uint64, at time.Time) []byte {
	form := &eventForms[e.Kind]
	b = append(b, `{"event":"`...)
	b = append(append(b, form.tag...), '"')
	if e.Kind != WorkerAssigned {
		b = e.appendRequest(b)
	}
	b = e.appendFields(b, form.fields)
	switch e.Kind {
	case OperatorActed:
		b = e.appendAct(b)
	case JobChanged:
		b = e.appendChange(b)
	case JobsForgotten:
		b = AppendString(append(b, `,"queue":`...), e.B)
		b = append(append(b, `,"jobs":`...), e.Extra.Metadata...)
	case JobDetails:
		b = e.appendDetails(b)
	}
	if x := e.Extra; x != nil && len(x.Metadata) > 0 && e.Kind == DispatchQueued {
		b = append(append(b, `,"metadata":`...), x.Metadata...)
	}
	if e.Kind == ReplayRequested {
		b = append(b, `,"cursor":`...)
		if e.Extra == nil || e.Extra.Cursor == nil {
			b = append(b, "null"...)
		} else {
			b = AppendString(b, *e.Extra.Cursor)
		}
	}
	if number == 0 {
		return append(b, '}')
	}

	b = strconv.AppendUint(append(b, `,"seq":`...), number, 10)
	b = append(b, `,"at":"`...)
	b = append(at.UTC().AppendFormat(b, timeFormat), '"')
	if e.N > 0 {
		b = e.appendJob(b)
	}
	if x := e.Extra; x != nil && x.Run != nil {
		b = e.appendRun(b)
	}
	if e.Kind == SnapshotCaptured && e.Extra != nil {
		b = append(append(b, `,"snapshot":`...), e.Extra.Metadata...)
	}
	return append(b, '}')
}

// appendJob appends what a line of history about a job's dispatch has beside the
// contract's fields: its queue, its function and the type of its error.
func (e *Event) appendJob(b []byte) []byte {
	queuedForRunner := e.Kind == DispatchQueued && e.target() != e.B
	if queuedForRunner || e.Kind == DispatchDelivered || e.Kind == DispatchFailed {
		b = AppendString(append(b, `,"queue":`...), e.B)
	}
	if e.Kind == DispatchQueued && e.A != "" {
		b = AppendString(append(b, `,"function":`...), e.A)
	}
	if e.Kind == DispatchFailed && e.Extra != nil && e.Extra.C != "" {
		b = AppendString(append(b, `,"error_type":`...), e.Extra.C)
	}
	if e.Kind == DispatchDelivered && e.Extra != nil && e.Extra.Result > 0 {
		b = strconv.AppendUint(append(b, `,"result":`...), e.Extra.Result, 10)
	}
	return e.appendPlaces(b)
}

// appendPlaces appends where the job was before and is after the event, and when it is due.
func (e *Event) appendPlaces(b []byte) []byte {
	if e.From != 0 {
		b = append(append(append(b, `,"from":"`...), e.From.String()...), '"')
	}
	if e.To != 0 {
		b = append(append(append(b, `,"to":"`...), e.To.String()...), '"')
	}
	if e.Extra != nil && e.Extra.Due != 0 {
		b = append(b, `,"due":"`...)
		b = append(time.Unix(0, e.Extra.Due).UTC().AppendFormat(b, timeFormat), '"')
	}
	return b
}

// appendChange appends the fields of a JobChanged.
func (e *Event) appendChange(b []byte) []byte {
	b = append(e.Job.Append(append(b, `,"job":"`...)), '"')
	b = AppendString(append(b, `,"queue":`...), e.B)
	if e.A != "" {
		b = AppendString(append(b, `,"function":`...), e.A)
	}
	return e.appendPlaces(b)
}

// appendDetails appends the fields of a JobDetails.
func (e *Event) appendDetails(b []byte) []byte {
	b = append(e.Job.Append(append(b, `,"job":"`...)), '"')
	b = AppendString(append(b, `,"queue":`...), e.B)
	b = append(b, `,"accepted":"`...)
	b = append(time.Unix(0, e.Extra.Accepted).UTC().AppendFormat(b, AcceptedFormat), '"')
	b = strconv.AppendUint(append(b, `,"priority":`...), uint64(e.Extra.Priority), 10)
	b = strconv.AppendUint(append(b, `,"lane":`...), uint64(e.Extra.Record.Lane), 10)
	b = strconv.AppendUint(append(b, `,"lane_seq":`...), e.Extra.Record.Seq, 10)
	if e.Extra.Record.Index > 0 {
		b = strconv.AppendUint(append(b, `,"index":`...), uint64(e.Extra.Record.Index), 10)
	}
	if e.A != "" {
		b = AppendString(append(b, `,"key":`...), e.A)
	}
	if e.Extra.C != "" {
		b = AppendLabels(append(b, `,"labels":`...), e.Extra.C)
	}
	return b
}

// AcceptedFormat is the format of the time in the line of a JobDetails, with all nanoseconds: they are a
// part of the job's place in lists.
const AcceptedFormat = "2006-01-02T15:04:05.000000000Z"

// AppendLabels appends labels, as [job.Labels.Encode] returns them, as a JSON object.
func AppendLabels(b []byte, text string) []byte {
	l, _ := job.ParseLabels(text) // malformed ones are none
	b = append(b, '{')
	next := func(name string) {
		if b[len(b)-1] != '{' {
			b = append(b, ',')
		}
		b = append(AppendString(b, name), ':')
	}
	if l.Key != "" {
		next("key")
		b = AppendString(b, l.Key)
	}
	if len(l.Tags) > 0 {
		next("tags")
		for i, tag := range l.Tags {
			b = AppendString(append(b, "[,"[min(i, 1)]), tag)
		}
		b = append(b, ']')
	}
	for _, list := range [...]struct {
		name   string
		labels []job.Label
	}{{"meta", l.Meta}, {"params", l.Params}} {
		if len(list.labels) == 0 {
			continue
		}
		next(list.name)
		b = append(b, '{')
		for _, label := range list.labels {
			next(label.Name)
			b = AppendString(b, label.Value)
		}
		b = append(b, '}')
	}
	return append(b, '}')
}

// appendRun appends what a line of history has about the executor of a job.
func (e *Event) appendRun(b []byte) []byte {
	if e.N == 0 {
		b = append(e.Job.Append(append(b, `,"job":"`...)), '"')
	}
	run := e.Extra.Run
	b = AppendString(append(b, `,"node":`...), run.Node)
	if run.Attempt > 0 {
		b = strconv.AppendUint(append(b, `,"attempt":`...), uint64(run.Attempt), 10)
	}
	for _, field := range [...]struct{ name, value string }{{"function", run.Function}, {"key", run.Key}, {"limits", run.Limits}} {
		if field.value != "" {
			b = append(append(append(b, `,"`...), field.name...), `":`...)
			b = AppendString(b, field.value)
		}
	}
	return b
}

// target returns the field target of a DispatchQueued: for a job its runner, if its
// function names one, or else its queue.
func (e *Event) target() string {
	if e.N == 0 {
		return e.A
	}
	if runner, _ := job.SplitFunction(e.A); runner != "" {
		return job.Channel(job.RRQ, runner)
	}
	return e.B
}

// appendRequest appends the field request_id if the event is about a dispatch:
// "<job>#<n>" for a job's dispatch, else the id that its caller chose, which may
// be "".
func (e *Event) appendRequest(b []byte) []byte {
	const field = `,"request_id":`
	if e.N > 0 {
		b = e.Job.Append(append(b, field+`"`...))
		b = strconv.AppendUint(append(b, '#'), uint64(e.N), 10)
		return append(b, '"')
	}
	if e.Extra != nil && e.Extra.Request != "" {
		return AppendString(append(b, field...), e.Extra.Request)
	}
	if e.Kind >= DispatchQueued && e.Kind <= DispatchFailed {
		return append(b, field+`""`...)
	}
	return b
}

// appendFields appends the kind's own fields, whose names are given: the texts
// A, B and C in this order. The second field of WorkerAssigned, task_id, is
// Overhop's job id "<queue>:<job>".
func (e *Event) appendFields(b []byte, names []string) []byte {
	for i, name := range names {
		b = append(b, `,"`...)
		b = append(append(b, name...), `":`...)
		switch {
		case e.Kind == WorkerAssigned && i == 1:
			b = append(append(b, '"'), e.B...)
			b = append(e.Job.Append(append(b, ':')), '"')
		case e.Kind == DispatchQueued:
			b = AppendString(b, e.target())
		case i == 0:
			b = AppendString(b, e.A)
		case i == 1:
			b = AppendString(b, e.B)
		case e.Extra != nil:
			b = AppendString(b, e.Extra.C)
		default:
			b = append(b, `""`...)
		}
	}
	return b
}

// AppendString appends s as a JSON string.
func AppendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c > 0x7e || c == '"' || c == '\\' {
			return appendQuoted(b, s)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

// appendQuoted is the slow path of AppendString for a text that needs escapes.
// HTML characters are not escaped, because history is not read by browsers.
func appendQuoted(b []byte, s string) []byte {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		panic("ledger: a string cannot be written as JSON: " + err.Error())
	}
	return append(b, bytes.TrimSuffix(buf.Bytes(), []byte("\n"))...)
}
