package job

import "time"

// View is all that can be shown of a job: the ledger's facts, joined with its
// body and its result where they are still to be had.
type View struct {
	ID            ID
	Queue         string
	State         State
	Function      string
	Spec          *Spec // nil with PayloadGone
	PayloadGone   bool  // the body's record has been reclaimed
	Created       time.Time
	RunAt         time.Time
	Started       time.Time // of the last attempt; zero: never
	Ended         time.Time
	Priority      uint8
	MaxAttempts   uint32        // 0: the yard's default
	RetryInterval time.Duration // 0: backoff
	Timeout       time.Duration // 0: the yard's default
	Attempts      uint32
	Dispatches    uint32
	Losses        uint32
	Node, Worker  string // of the current or last dispatch; Worker is a channel
	Reason        string // why the last attempt failed
	Result        Value
	ResultTTL     time.Duration // 0: it is shown while the yard keeps it
	ResultGone    bool          // there was a result that is no longer shown
	Fault         *Fault        // of the last attempt that failed, without code and details; nil: none has
	Position      Position
	Running       *Running // nil: nobody runs it, or its node has not been asked
}

// Running is what the node of a running dispatch knows of it, and nobody else:
// the worker's last word.
type Running struct {
	Lease   time.Time `json:"lease"`             // until when the worker holds it without a further sign of life
	Percent *int64    `json:"percent,omitempty"` // done, 0 to 100; nil: it has not said
	Data    Value     `json:"data,omitzero"`     // what it said beside that
}
