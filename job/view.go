package job

import "time"

// View is everything that can be shown of a job: the ledger's facts, joined
// with its body and its result if they are still stored.
type View struct {
	ID            ID
	Queue         string
	State         State
	Function      string
	Spec          *Spec // nil if PayloadGone
	PayloadGone   bool  // the body's record has been reclaimed
	Created       time.Time
	RunAt         time.Time
	Started       time.Time // of the last attempt; zero: never started
	Ended         time.Time
	Priority      uint8
	MaxAttempts   uint32        // 0: the cluster's default
	RetryInterval time.Duration // 0: exponential backoff
	Timeout       time.Duration // 0: the cluster's default
	Attempts      uint32
	Dispatches    uint32
	Losses        uint32
	Node, Worker  string // of the current or last dispatch; Worker is a channel, see [Channel]
	Reason        string // why the last attempt failed
	Result        Value
	ResultTTL     time.Duration // 0: shown as long as it is stored
	ResultGone    bool          // there was a result, which is no longer stored or shown
	Fault         *Fault        // of the last attempt that failed, possibly cut; nil: none failed
	Position      Position
	Progress      *Progress // nil: the job is not running, or its node was not asked
}

// Progress is the last status that the worker of a running dispatch reported.
// Only the node that runs the dispatch has it.
type Progress struct {
	Lease   time.Time `json:"lease"`             // until when the worker may run it without another sign of life
	Percent *int64    `json:"percent,omitempty"` // 0 to 100; nil: not reported
	Data    Value     `json:"data,omitzero"`     // what the worker reported with it
}
