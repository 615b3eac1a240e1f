package ledger

import "github.com/yardmaster-dev/yardmaster/job"

// Actor is who asked for a command, and how. An Actor without a
// door is the system itself, for which events have [DoorLedger].
type Actor struct {
	Name   string // the user, the node and worker, or the remote address
	Door   Door
	Reason string // as the actor gave it; may be ""
}

// Door is the interface through which an actor reached the cluster.
type Door string

// The doors.
const (
	DoorNATS    Door = "nats"
	DoorHTTP    Door = "http"
	DoorOverhop Door = "overhop"
	DoorCLI     Door = "cli" // over NATS, by the command line
	DoorConsole Door = "console"
	DoorLedger  Door = "ledger" // the system itself, by a rule that someone has set
)

// system is the name of the actor that is the system itself.
const system = "yard"

// byRule returns the actor of what the ledger does by a rule that someone has set, such as the
// expiry of a job.
func byRule(reason string) Actor { return Actor{Name: system, Door: DoorLedger, Reason: reason} }

// Asked is the part of a command that an actor may ask for. Such a command, once
// carried out, leaves an event [OperatorActed] if By has a door. It is the last
// field of a command, so that the system's own commands stay small.
type Asked struct{ By Actor }

// Askable is a command that records who asked for it.
type Askable interface {
	Command
	Actor() Actor
	SetActor(Actor)
}

// Actor returns who asked for the command.
func (a *Asked) Actor() Actor { return a.By }

// SetActor sets who asked for the command.
func (a *Asked) SetActor(by Actor) { a.By = by }

// RecordAct records an act that is no command of the ledger, such as a drain: it
// changes no state.
type RecordAct struct {
	Action string // such as "node.drain", as in the subject of the request
	Job    job.ID // zero: not about one
	Queue  string
	Target string // what else it is about, such as a node
	Asked
}

func (c *RecordAct) apply(l *Ledger) Result {
	l.act(c.By, c.Action, Event{Job: c.Job, B: c.Queue}, c.Target, nil)
	return Result{}
}

// act emits the event of an act. about has the job and, as B, the queue that the act is about,
// target what else, and settings, which may be nil, those that the act has left there as JSON.
// What the system itself did to a job is in the other events of the job, and levels before 7 have no
// events of what else it did.
func (o *outbox) act(by Actor, action string, about Event, target string, settings any) {
	if by.Door == "" && (o.level == 0 || !about.Job.IsZero()) {
		return
	}
	if by.Door == "" {
		by.Name, by.Door = system, DoorLedger
	}
	by.Name, by.Reason = job.CutText(by.Name, MaxText), job.CutText(by.Reason, MaxKeptReason)
	about.Kind, about.A, about.Extra = OperatorActed, action, &Extra{C: target, By: &by}
	if settings != nil && o.level > 0 {
		about.Extra.Metadata = settingsJSON(settings)
	}
	o.emit(about)
}

// actOnJob is act for a job.
func (o *outbox) actOnJob(by Actor, action string, stored *storedJob) {
	o.act(by, action, Event{Job: stored.id, B: stored.queue.name}, "", nil)
}

// appendAct appends the fields of an act to b: what it is about, and the actor.
func (e *Event) appendAct(b []byte) []byte {
	if !e.Job.IsZero() {
		b = append(e.Job.Append(append(b, `,"job":"`...)), '"')
	}
	for _, field := range [...]struct{ name, value string }{
		{"queue", e.B}, {"target", e.Extra.C}, {"actor", e.Extra.By.Name}, {"door", string(e.Extra.By.Door)}, {"reason", e.Extra.By.Reason},
	} {
		if field.value != "" {
			b = append(append(append(b, `,"`...), field.name...), `":`...)
			b = AppendString(b, field.value)
		}
	}
	if len(e.Extra.Metadata) > 0 {
		b = append(append(b, `,"settings":`...), e.Extra.Metadata...)
	}
	return b
}
