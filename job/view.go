package job

import "time"

// View is everything that can be shown of a job: the ledger's facts, joined
// with its body and its result if they are still stored.
type View struct {
	ID             ID
	Key            string // with which its producer enqueued it; "": none, a UUID, or not known because PayloadGone or Unread
	Queue          string
	State          State
	Function       string
	Spec           *Spec  // nil if PayloadGone
	Forgotten      bool   // the ledger does not have it any more
	PayloadGone    bool   // the body's record has been reclaimed
	Unread         string // why the body's record cannot be read at present; "": it was, it is gone, or it was not asked for
	Created        time.Time
	RunAt          time.Time
	Started        time.Time // of the last attempt; zero: never started
	Ended          time.Time
	Priority       uint8
	MaxAttempts    uint32        // of the job, else of its queue; 0: the cluster's default
	RetryInterval  time.Duration // 0: exponential backoff
	Timeout        time.Duration // of the job, else of its queue; 0: the cluster's default
	RetryOnTimeout *bool         // nil: as its queue has it
	Attempts       uint32
	Dispatches     uint32
	Losses         uint32
	Node, Worker   string        // of the current or last dispatch; Worker is a channel, see [Channel]
	Reason         string        // why the last attempt failed
	Cancellation   *Cancellation // nil: no caller has cancelled the job
	Result         Value
	ResultTTL      time.Duration // 0: shown as long as it is stored
	ResultSize     int64         // bytes, also of a result that is gone; 0: there is none
	LetterGone     bool          // it failed, and its dead letter was evicted or removed
	ResultGone     ResultGone    // why the result cannot be shown; "": it can, or there is none
	ResultReason   string        // with [ResultDropped]: why
	Fault          *Fault        // of the last attempt that failed, possibly cut; nil: none failed
	Position       Position
	DeadLetter     uint64    // number of the dead letter of a failed job; 0: there is none
	Progress       *Progress // nil: the job is not running, or its node was not asked
	LimitKey       string
	Limits         []LimitUse // that the job names itself
	Expires        time.Time  // zero: it does not expire
	Labels         *Labels    // as the index has them; nil: they were not read from there
}

// Cancellation is who cancelled a job, how, why and when. The name is "" if the system
// itself cancelled it.
type Cancellation struct {
	Actor  string    `json:"actor,omitempty"`
	Door   string    `json:"door,omitempty"` // the interface that the actor used, such as http
	Reason string    `json:"reason,omitempty"`
	At     time.Time `json:"at"` // when the job was cancelled; an active job ends later
}

// ResultGone is why a job's result is not there although the job had one.
type ResultGone string

// Values of ResultGone.
const (
	ResultExpired ResultGone = "expired" // its result TTL has passed
	ResultEvicted ResultGone = "evicted" // the streams of results keep only the newest ones
	ResultDropped ResultGone = "dropped" // it could not be stored
)

// Progress is the last status that the worker of a running dispatch reported.
// Only the node that runs the dispatch has it.
type Progress struct {
	Lease   time.Time `json:"lease"`             // until when the worker may run it without another sign of life
	Percent *int64    `json:"percent,omitempty"` // 0 to 100; nil: not reported
	Data    Value     `json:"data,omitzero"`     // what the worker reported with it
}

// ValuePart is a part of a job's result or params.
type ValuePart struct {
	Data    []byte
	Size    int64  // of the whole value, in bytes
	Msgpack bool   // else JSON
	Version string // differs if the value differs
}
