package job

import (
	"encoding/json"
	"time"
)

// LogLine is one line of a dispatch's log, as it is kept and shown. It has
// either a text or a record.
type LogLine struct {
	Job     ID              `json:"job"`
	N       uint32          `json:"dispatch"`
	Attempt uint32          `json:"attempt,omitempty"` // 0: not known
	At      time.Time       `json:"at"`
	Level   string          `json:"level"`
	Stream  string          `json:"stream"` // "stdout", "stderr" or "log"
	Node    string          `json:"node"`   // set by the node that keeps it
	Worker  string          `json:"worker"`
	Text    string          `json:"text,omitempty"`
	Record  json.RawMessage `json:"record,omitempty"`  // a JSON object
	Cut     bool            `json:"cut,omitempty"`     // the rest of the line was too long
	Dropped int             `json:"dropped,omitempty"` // so many lines are missing here; then there is no text
}

// Streams of a log line.
const (
	LogStdout = "stdout" // of a runner
	LogStderr = "stderr"
	LogWire   = "log" // what a worker sent by LOG
)
