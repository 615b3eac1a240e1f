package query

import (
	"strings"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Field is what a term compares.
type Field uint8

// The fields of a query. FieldAny is that of a word without a field.
const (
	FieldAny      Field = iota // id, key, limit key or a word of the error's message
	FieldID                    // the job's UUID
	FieldKey                   // the key with which it was enqueued, or its limit key
	FieldLimitKey              // the key under which it uses limits
	FieldQueue
	FieldFunction
	FieldState
	FieldTag
	FieldMeta   // an entry of its metadata, named by [Term.Name]
	FieldParams // an indexed value of its params, likewise
	FieldLabel  // either of the two, likewise
	FieldError  // type or code of the error, in either case
	FieldText   // words of the error's message, in either case
	FieldNode
	FieldWorker
	FieldPriority
	FieldAttempts
	FieldDispatches
	FieldCreated
	FieldStarted
	FieldEnded
	FieldSince // the job was created, started or ended since then
	FieldTook  // from start to end
	fieldSort  // the order of the results; never in a Term
)

// kind is how the values of a field are written.
type kind uint8

const (
	textKind kind = iota
	stateKind
	numberKind
	timeKind
	durationKind
)

// fields has the name, the kind and the description of each field.
var fields = [...]struct {
	name string
	kind kind
	help string
}{
	FieldAny:        {"", textKind, ""},
	FieldID:         {"id", textKind, "UUID of the job"},
	FieldKey:        {"key", textKind, "key with which it was enqueued, or limit key"},
	FieldLimitKey:   {"limit_key", textKind, "key under which it uses limits"},
	FieldQueue:      {"queue", textKind, "queue"},
	FieldFunction:   {"function", textKind, "function"},
	FieldState:      {"state", stateKind, "state"},
	FieldTag:        {"tag", textKind, "tag"},
	FieldMeta:       {"meta", textKind, "metadata: meta.NAME"},
	FieldParams:     {"params", textKind, "indexed params: params.PATH"},
	FieldLabel:      {"", textKind, ""},
	FieldError:      {"error", textKind, "type or code of the error"},
	FieldText:       {"text", textKind, "words of the error's message"},
	FieldNode:       {"node", textKind, "node of the last dispatch"},
	FieldWorker:     {"worker", textKind, "worker of the last dispatch"},
	FieldPriority:   {"priority", numberKind, "priority, 0 to 9"},
	FieldAttempts:   {"attempts", numberKind, "number of attempts"},
	FieldDispatches: {"dispatches", numberKind, "number of dispatches"},
	FieldCreated:    {"created", timeKind, "when it was accepted"},
	FieldStarted:    {"started", timeKind, "when its last attempt started"},
	FieldEnded:      {"ended", timeKind, "when it ended"},
	FieldSince:      {"since", timeKind, "created, started or ended since"},
	FieldTook:       {"took", durationKind, "time from start to end"},
	fieldSort:       {"sort", textKind, "order: created, ended, -created or -ended"},
}

func (f Field) String() string { return fields[f].name }

// named reports whether the field's terms have a name.
func (f Field) named() bool { return f == FieldMeta || f == FieldParams || f == FieldLabel }

// fieldByName returns the field with a name, in either case. FieldMeta and FieldParams have
// none by themselves.
func fieldByName(name string) (Field, bool) {
	for f := FieldID; f <= fieldSort; f++ {
		if !f.named() && strings.EqualFold(name, fields[f].name) {
			return f, true
		}
	}
	return 0, false
}

// states are the states that a query can name. A new job is not in the index.
var states = []job.State{job.Waiting, job.Delayed, job.Active, job.Completed, job.Failed, job.Cancelled, job.Expired}

func stateNames() []string {
	var names []string
	for _, s := range states {
		names = append(names, s.String())
	}
	return names
}
