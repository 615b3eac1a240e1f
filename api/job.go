package api

import (
	"encoding/json"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// JobRequest names a job.
type JobRequest struct {
	ID    string `json:"id"`    // a UUID, "<queue>:<UUID>", "<queue>:<key>" or a key
	Queue string `json:"queue"` // of a job that is named by its key; "" means the only queue with such a job

	// TimeoutMS is how long job-wait waits, at most 10 min; 0 means 30 s.
	TimeoutMS int64 `json:"timeout_ms"`
	// Reason is why a job is cancelled, for its history; "" means none.
	Reason string `json:"reason"`
}

// Job is a job with its state. A field that is omitted is unknown or does not apply.
type Job struct {
	ID             job.ID            `json:"id"`
	JID            string            `json:"jid"`           // "<queue>:<id>"
	Key            string            `json:"key,omitempty"` // with which it was enqueued; omitted if it was a UUID, which is the id, and if the record of the job is gone
	Queue          string            `json:"queue"`
	State          string            `json:"state"` // new, waiting, delayed, active, completed, failed, cancelled or expired
	Function       string            `json:"function,omitempty"`
	Params         json.RawMessage   `json:"params,omitempty"`
	ParamsStart    string            `json:"params_start,omitempty"` // job-list only: the beginning of params that are too large to show
	Payload        []byte            `json:"payload_msgpack,omitempty"`
	PayloadGone    bool              `json:"payload_gone,omitempty"`
	PayloadUnread  string            `json:"payload_unread,omitempty"` // job-list only: why the record with key and params could not be read at present
	PayloadBytes   int               `json:"payload_bytes,omitempty"`  // size of params or a payload that are too large to show: read them with job-params; 0 means that they are not
	Created        time.Time         `json:"created_at"`
	RunAt          time.Time         `json:"run_at"`
	Started        *time.Time        `json:"started_at,omitempty"`
	Ended          *time.Time        `json:"ended_at,omitempty"`
	Priority       uint8             `json:"priority"` // 0 to 9; 9 starts first
	Attempts       uint32            `json:"attempts"`
	MaxAttempts    uint32            `json:"max_attempts,omitempty"` // of the job, else of its queue; 0 means the yard's default
	Dispatches     uint32            `json:"dispatches"`
	Losses         uint32            `json:"losses,omitempty"`            // dispatches whose executor was lost
	TimeoutMS      int64             `json:"timeout_ms,omitempty"`        // of an attempt, by the job or else by its queue; 0 means the yard's default
	RetryInterval  int64             `json:"retry_interval_ms,omitempty"` // 0 means increasing
	RetryOnTimeout *bool             `json:"retry_on_timeout,omitempty"`  // nil means as its queue has it
	Expires        *time.Time        `json:"expires_at,omitempty"`        // it ends as expired if it has not started by then
	LimitKey       string            `json:"limit_key,omitempty"`         // under which it uses limits
	Limits         map[string]string `json:"limits,omitempty"`            // that it names itself, each with a key; "" stands for LimitKey
	Tags           []string          `json:"tags,omitempty"`              // omitted if PayloadGone
	Meta           map[string]string `json:"meta,omitempty"`              // likewise
	Indexed        map[string]string `json:"indexed,omitempty"`           // the params by which the job is found; of job-find, and of jobs that only the index has
	Node           string            `json:"node,omitempty"`
	Worker         string            `json:"worker,omitempty"`
	Reason         string            `json:"reason,omitempty"`          // why the job or its last attempt failed
	Cancellation   *job.Cancellation `json:"cancellation,omitempty"`    // of a cancelled job, and of an active one that is being stopped
	Because        string            `json:"waiting_because,omitempty"` // job-show only: why it does not start
	Error          *job.Fault        `json:"error,omitempty"`
	Result         json.RawMessage   `json:"result,omitempty"`
	ResultMsgpack  []byte            `json:"result_msgpack,omitempty"`
	ResultBytes    int64             `json:"result_bytes,omitempty"`  // its size, also if it is too large to show: then read it with job-result
	ResultGone     string            `json:"result_gone,omitempty"`   // result_expired, result_evicted or result_dropped: why there is no result any more
	ResultReason   string            `json:"result_reason,omitempty"` // why a result was dropped
	ResultTTL      int64             `json:"result_ttl_ms,omitempty"` // 0 means as long as the job
	Trace          map[string]string `json:"trace_context,omitempty"`
	Lease          *time.Time        `json:"lease_until,omitempty"` // of the Overhop worker that runs it
	Progress       *Progress         `json:"progress,omitempty"`    // the latest report
	Lane           uint8             `json:"lane"`                  // with the job's record; 255: the record is in YARD_RELOCATED
	Seq            uint64            `json:"seq"`                   // of the message with the job's record in its stream
	Index          uint8             `json:"index,omitempty"`       // of the record in the message
	DeadLetter     uint64            `json:"dead_letter,omitempty"` // number of the dead letter of a failed job
	LetterGone     bool              `json:"letter_gone,omitempty"` // job-show only: the dead letter was evicted or removed
	Forgotten      bool              `json:"forgotten,omitempty"`   // job-show and job-list only: the ledger does not have the job any more, so that it cannot be changed
}

// Progress is a worker's report about a job that it runs.
type Progress struct {
	Percent     *int64          `json:"percent,omitempty"`
	Data        json.RawMessage `json:"data,omitempty"`
	DataMsgpack []byte          `json:"data_msgpack,omitempty"`
}

// JobFindRequest selects jobs by a query, and a page of them.
type JobFindRequest struct {
	Query  string `json:"q"`      // such as "queue:mail state:failed since:1h"; "" means all jobs
	Sort   string `json:"sort"`   // created, ended, -created or -ended; "" means as the query has it, else -created
	Limit  int    `json:"limit"`  // jobs of a page, 1 to 1000; 0 means 50
	Cursor string `json:"cursor"` // Next of the previous page; "" means the first page
}

// FoundJobs is a page of the jobs that a query finds, as the index of the node that answers has them:
// without params, results and settings.
type FoundJobs struct {
	Jobs []Job `json:"jobs"`
	// Next is Cursor of the request for the next page, "" on the last page. A page that has one
	// may have fewer jobs than the limit, even none.
	Next  string      `json:"next,omitempty"`
	Query string      `json:"query"` // in its canonical form, without relative times
	Index IndexStatus `json:"index"`
	// Advice has a text for each label in the query that no job has, on the first page.
	Advice []string `json:"advice,omitempty"`
}

// IndexStatus is the state of a node's index of jobs.
type IndexStatus struct {
	AsOf     uint64    `json:"as_of"`      // index of the last log entry that it has
	AsOfTime time.Time `json:"as_of_time"` // of that entry
	Lag      uint64    `json:"lag"`        // log entries that the node has applied since then
	Ended    int       `json:"ended"`      // jobs that have ended
	Bytes    int64     `json:"bytes"`      // of its files
	Ahead    uint64    `json:"ahead"`      // log entries that it has and that the node's ledger has not applied again since it has started: jobs that have not ended may be missing
	Scanning bool      `json:"scanning"`   // it is being rebuilt: jobs may be missing
	Scanned  int       `json:"scanned"`    // with Scanning: jobs of the ledger that it has read
	Rebuilt  float64   `json:"rebuilt"`    // how much it has read of the history that it needs for jobs which the ledger has forgotten, 0 to 1; below 1 such jobs may be missing
	Files    int       `json:"files"`
	Failures int       `json:"failures"`           // since the node has started
	Unusable string    `json:"unusable,omitempty"` // why it takes no changes
}

// JobListRequest selects jobs, and a page of them.
type JobListRequest struct {
	Queues   []string `json:"queues"`   // empty means all
	States   []string `json:"states"`   // waiting, delayed, active, completed, failed, cancelled or expired; empty means all
	Function string   `json:"function"` // "" means any
	Order    string   `json:"order"`    // by time of acceptance, then id: newest or oldest first; "" means newest
	Limit    int      `json:"limit"`    // jobs of a page, 1 to 1000; 0 means 50
	After    string   `json:"after"`    // Next of the previous page; "" means the first page
	Brief    bool     `json:"brief"`    // omit keys and params, which are read from each job's record
}

// Values of Order in a [JobListRequest].
const (
	OrderNewest = "newest"
	OrderOldest = "oldest"
)

// JobList is a page of jobs. Params and payloads above MaxListedBytes are left out. A job
// keeps its place in the order for life, so that no job is listed twice, and none is missed
// because another one has changed its state.
type JobList struct {
	Jobs []Job `json:"jobs"`
	// Next is After of the request for the next page, "" on the last page. A page that has
	// one may have fewer jobs than the limit, even none.
	Next   string         `json:"next,omitempty"`
	Totals map[string]int `json:"totals"` // number of jobs of the selected queues by state, whatever the other filters
	// KeptMS is set if the ledger keeps failed, cancelled and expired jobs for less than a day after their
	// end: in the totals are those that it has.
	KeptMS int64 `json:"kept_ms,omitempty"`
	// Lacking is set while jobs may be missing that the ledger does not have: where they may be.
	Lacking string `json:"lacking,omitempty"`
}

// MaxListedBytes is the size of the largest params and payload that a [JobList] has.
const MaxListedBytes = 256

// JobChanged reports a job's new state.
type JobChanged struct {
	ID    job.ID `json:"id"`
	State string `json:"state"`
}

// JobSettings are the settings of a waiting or delayed job that can be changed. Those
// that are nil stay as they are.
type JobSettings struct {
	Priority *int64     `json:"priority"` // 0 to 9; 9 starts first
	RunAt    *time.Time `json:"run_at"`   // not before; a time that has passed means now; excludes DelayMS
	DelayMS  *int64     `json:"delay_ms"` // not before this time from now; 0 means now
}

// JobChange names a job, and the settings of it that change.
type JobChange struct {
	ID    string `json:"id"`    // as in [JobRequest]
	Queue string `json:"queue"` // likewise
	JobSettings
}

// JobRemoved reports that a job was removed.
type JobRemoved struct {
	ID      job.ID `json:"id"`
	Removed bool   `json:"removed"` // always true
}

// ContentRequest asks for a part of a job's result or params.
type ContentRequest struct {
	ID     string `json:"id"`     // as in [JobRequest]
	Queue  string `json:"queue"`  // likewise
	Offset int64  `json:"offset"` // of the part's first byte
	Limit  int64  `json:"limit"`  // of the part's size in bytes; 0 means MaxContentPart, which is also the most
}

// MaxContentPart is the size of the largest part of a result or params in one reply.
const MaxContentPart = 512 << 10

// Content is a part of a job's result or params. The parts of all replies together are
// the whole if their Version is the same.
type Content struct {
	ID       job.ID `json:"id"`
	Encoding string `json:"encoding"` // of the whole: json or msgpack
	Size     int64  `json:"size"`     // of the whole, in bytes
	Version  string `json:"version"`  // of the whole; it differs if the content differs
	Offset   int64  `json:"offset"`
	Data     []byte `json:"data"` // empty beyond the end
}

// JobErrorsRequest asks for the errors of a job's attempts.
type JobErrorsRequest struct {
	ID    string `json:"id"`    // as in [JobRequest]
	Queue string `json:"queue"` // likewise
	Limit int    `json:"limit"` // at most 1000; 0 means 100
}

// JobErrors holds the errors of the attempts of a job that failed with details, such as a traceback, or
// with a long message, newest first. The middle of a text that is too long is replaced by a line such as
// "... 12345 bytes omitted ...".
type JobErrors struct {
	ID     job.ID             `json:"id"`
	Errors []job.AttemptError `json:"errors"`
	More   bool               `json:"more"` // there are earlier ones
}

// LogRequest asks for the last lines of a job's log.
type LogRequest struct {
	ID    string `json:"id"`    // as in [JobRequest]
	Queue string `json:"queue"` // likewise
	Lines int    `json:"lines"` // at most 1000; 0 means 1000
}

// LogReply holds the last lines of a job's log, oldest first.
type LogReply struct {
	ID    job.ID            `json:"id"`
	Lines []json.RawMessage `json:"lines"` // each a [job.LogLine]
	More  bool              `json:"more"`  // there are older lines
	Next  uint64            `json:"next"`  // sequence in the stream YARD_LOGS of the lines after these
}

// ReplayRequest names a job that has ended, and what to change in its copy.
type ReplayRequest struct {
	ID     string          `json:"id"`              // as in [JobRequest]
	Queue  string          `json:"queue"`           // likewise
	To     string          `json:"to"`              // another queue, which must exist; "" means the same
	NewID  string          `json:"new_id"`          // key of the new job; "" means a new id
	Params json.RawMessage `json:"params,omitzero"` // replace the job's own; nil means the same
}

// ReplayReply names the new job.
type ReplayReply struct {
	EnqueueReply
	ReplayOf job.ID `json:"replay_of"`
}
