package api

import (
	"encoding/json"
	"time"

	"github.com/yardmaster-dev/yardmaster/ledger"
)

// SchemaRequest names the schema of a queue's function.
type SchemaRequest struct {
	Queue string `json:"queue"`
	// Function is "" for jobs without a function, and "*" for all functions of the queue that
	// have no schema of their own.
	Function string `json:"function"`
}

// SchemaChange describes the schema of a queue's function.
type SchemaChange struct {
	SchemaRequest
	Schema json.RawMessage `json:"schema"` // a JSON Schema of draft 2020-12
	Warn   bool            `json:"warn"`   // accept jobs that do not match, and count them
}

// SchemaListRequest asks for the schemas of one queue or of all.
type SchemaListRequest struct {
	Queue string `json:"queue"` // "" means all queues
}

// Schema is the schema of the payloads of a queue's function.
type Schema struct {
	QueueSchema
	Queue   string          `json:"queue"`
	Schema  json.RawMessage `json:"schema,omitempty"`  // not in lists
	Missing []string        `json:"missing,omitempty"` // members that have not answered, so that the counts lack theirs
}

// QueueSchema is a schema without its text.
type QueueSchema struct {
	Function string    `json:"function"` // as in [SchemaRequest]
	Version  uint64    `json:"version"`  // grows with every change
	Warn     bool      `json:"warn"`     // jobs that do not match are accepted, and counted
	Changed  time.Time `json:"changed"`
	Bytes    int       `json:"bytes"`
	SchemaCounts
}

// SchemaCounts are how many payloads did not match a version of a schema, at the nodes since
// they have started.
type SchemaCounts struct {
	Refused  uint64           `json:"refused"`        // at the doors
	Rejected uint64           `json:"rejected"`       // after they were stored: dead letters
	Warned   uint64           `json:"warned"`         // accepted
	Last     *SchemaViolation `json:"last,omitempty"` // nil means none
}

// SchemaViolation is why a payload does not match a schema.
type SchemaViolation struct {
	At     time.Time `json:"at"`
	Path   string    `json:"path"` // JSON Pointer to a value in the payload; "" means the whole
	Reason string    `json:"reason"`
}

// SchemaList has schemas by queue and function.
type SchemaList struct {
	Schemas []Schema `json:"schemas"`
	Missing []string `json:"missing,omitempty"` // members that have not answered, so that the counts lack theirs
}

// QueueSchemaOf returns a schema of the ledger as the API shows it.
func QueueSchemaOf(s *ledger.Schema, counts SchemaCounts) QueueSchema {
	return QueueSchema{
		Function: s.Function, Version: s.Version, Warn: s.Warn, Changed: s.Changed, Bytes: len(s.Text), SchemaCounts: counts,
	}
}

// SchemaRemoved reports that a schema was removed.
type SchemaRemoved struct {
	SchemaRequest
	Removed bool `json:"removed"` // always true
}
