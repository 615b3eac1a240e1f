package job

import (
	"encoding/json"
	"time"
)

// LogLine is one line of a dispatch's log, as stored and shown. It has either
// Text or Record.
type LogLine struct {
	Job       ID              `json:"job"`
	N         uint32          `json:"dispatch"`
	Attempt   uint32          `json:"attempt,omitempty"` // 0: not known
	At        time.Time       `json:"at"`
	Level     string          `json:"level"`
	Stream    string          `json:"stream"` // "stdout", "stderr" or "log"
	Node      string          `json:"node"`   // set by the node that stores it
	Worker    string          `json:"worker"`
	Text      string          `json:"text,omitempty"`
	Record    json.RawMessage `json:"record,omitempty"`  // a JSON object
	Truncated bool            `json:"cut,omitempty"`     // the line was longer than the limit
	Dropped   int             `json:"dropped,omitempty"` // number of lines missing at this point; if not 0, there is no text
}

// Values of LogLine.Stream.
const (
	LogStdout = "stdout" // output of a runner
	LogStderr = "stderr"
	LogWire   = "log" // what a worker sent with LOG
)
