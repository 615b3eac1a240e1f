package cli

import (
	"encoding/json"
	"time"
)

// The types below are the replies of the API, with the fields that the tables
// show. They are independent of the types that a node encodes, so that the
// command line works with a node of another version.

type statusReply struct {
	Node    string `json:"node"`
	Version string `json:"version"`
	Mode    string `json:"mode"`
	Uptime  int64  `json:"uptime_seconds"`
	HTTP    string `json:"http"`
	Members []struct {
		Name    string `json:"name"`
		Address string `json:"address"`
		Voter   bool   `json:"voter"`
		Leader  bool   `json:"leader"`
		State   string `json:"state"`
		Version string `json:"version"`
		TLS     bool   `json:"tls"`
		Refused string `json:"refused"`
	} `json:"members"`
	Raft struct {
		State   string `json:"state"`
		Leader  string `json:"leader"`
		Term    uint64 `json:"term"`
		Applied uint64 `json:"applied"`
		Last    uint64 `json:"last"`
	} `json:"raft"`
	Authority struct {
		Owner       string    `json:"owner"`
		Epoch       uint64    `json:"epoch"`
		LeasedUntil time.Time `json:"leased_until"`
		Expired     bool      `json:"expired"`
	} `json:"authority"`
	Lanes []struct {
		Lane   int    `json:"lane"`
		Stream string `json:"stream"`
		Leader string `json:"leader"`
		First  uint64 `json:"first"`
		Last   uint64 `json:"last"`
		Cursor uint64 `json:"cursor"`
		Lag    uint64 `json:"lag"`
	} `json:"lanes"`
	Backlog struct {
		Pending   uint64 `json:"pending"`
		Notified  uint64 `json:"notified"`
		Delivered uint64 `json:"delivered"`
		Failed    uint64 `json:"failed"`
	} `json:"backlog"`
	HeldKeys      int               `json:"held_keys"`
	OutboxBytes   int64             `json:"outbox_bytes"`
	StaleOutcomes uint64            `json:"stale_outcomes"`
	Nodes         []nodeStatusReply `json:"nodes"`
	Pools         []struct {
		Runner   string `json:"runner"`
		Size     int    `json:"size"`
		Up       int    `json:"up"`
		Slots    int    `json:"slots"`
		InFlight int    `json:"in_flight"`
		Reason   string `json:"reason"`
	} `json:"pools"`
	Workers struct {
		Connections   int `json:"connections"`
		Registered    int `json:"registered"`
		Subscriptions int `json:"subscriptions"`
	} `json:"workers"`
	Readiness struct {
		Ready       bool     `json:"ready"`
		Accepting   bool     `json:"accepting"`
		Dispatching bool     `json:"dispatching"`
		Reasons     []string `json:"reasons"`
		Warnings    []string `json:"warnings"`
	} `json:"readiness"`
}

// nodeStatusReply is the last status of a member that the authority received.
type nodeStatusReply struct {
	Name      string `json:"name"`
	BeatAgoMS int64  `json:"beat_ago_ms"`
	Available int    `json:"room"`
	Running   int    `json:"running"`
}

type jobReply struct {
	ID            string            `json:"id"`
	JID           string            `json:"jid"`
	Queue         string            `json:"queue"`
	State         string            `json:"state"`
	Function      string            `json:"function"`
	Params        json.RawMessage   `json:"params"`
	Payload       []byte            `json:"payload_msgpack"`
	PayloadGone   bool              `json:"payload_gone"`
	Created       *time.Time        `json:"created_at"`
	RunAt         *time.Time        `json:"run_at"`
	Started       *time.Time        `json:"started_at"`
	Ended         *time.Time        `json:"ended_at"`
	Priority      int               `json:"priority"`
	Attempts      uint32            `json:"attempts"`
	MaxAttempts   uint32            `json:"max_attempts"`
	Dispatches    uint32            `json:"dispatches"`
	Losses        uint32            `json:"losses"`
	TimeoutMS     int64             `json:"timeout_ms"`
	RetryInterval int64             `json:"retry_interval_ms"`
	Node          string            `json:"node"`
	Worker        string            `json:"worker"`
	Reason        string            `json:"reason"`
	Because       string            `json:"waiting_because"`
	Error         json.RawMessage   `json:"error"`
	Result        json.RawMessage   `json:"result"`
	ResultMsgpack []byte            `json:"result_msgpack"`
	ResultGone    bool              `json:"result_gone"`
	ResultTTLMS   int64             `json:"result_ttl_ms"`
	Trace         map[string]string `json:"trace_context"`
	Lease         *time.Time        `json:"lease_until"`
	Progress      *progressReply    `json:"progress"`
	Lane          int               `json:"lane"`
	Seq           uint64            `json:"seq"`
}

type progressReply struct {
	Percent     *int64          `json:"percent"`
	Data        json.RawMessage `json:"data"`
	DataMsgpack []byte          `json:"data_msgpack"`
}

type jobsReply struct {
	Jobs []jobReply `json:"jobs"`
}

type queueReply struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	State     string `json:"state"`
	Limit     uint32 `json:"concurrency_limit"`
	Overrides bool   `json:"allow_job_overrides"`
	Counts    struct {
		Waiting   uint64 `json:"waiting"`
		Delayed   uint64 `json:"delayed"`
		Active    uint64 `json:"active"`
		Completed uint64 `json:"completed"`
		Failed    uint64 `json:"failed"`
	} `json:"counts"`
}

type queuesReply struct {
	Queues []queueReply `json:"queues"`
}

type enqueueReply struct {
	ID        string `json:"id"`
	Queue     string `json:"queue"`
	Duplicate bool   `json:"duplicate"`
	Debounced bool   `json:"debounced"`
}

// stateReply is the state of a job after a change.
type stateReply struct {
	ID    string `json:"id"`
	State string `json:"state"`
}

// removedReply identifies a removed job.
type removedReply struct {
	ID string `json:"id"`
}

// deadLetterReply is one dead letter. Record is set if the job's record is not
// JSON; otherwise Job is.
type deadLetterReply struct {
	Letter   uint64          `json:"letter"`
	ID       string          `json:"id"`
	Queue    string          `json:"queue"`
	Function string          `json:"function"`
	Reason   string          `json:"reason"`
	Attempts uint32          `json:"attempts"`
	Accepted *time.Time      `json:"accepted_at"`
	Failed   *time.Time      `json:"failed_at"`
	State    string          `json:"state"`
	Job      json.RawMessage `json:"job"`
	Record   []byte          `json:"record"`
	Error    *struct {
		Message string          `json:"message"`
		Type    string          `json:"type"`
		Code    string          `json:"code"`
		Details json.RawMessage `json:"details"`
	} `json:"error"`
}

// deadLetterResult is the result of a change of one dead letter.
type deadLetterResult struct {
	Letter uint64 `json:"letter"`
	ID     string `json:"id"`
	Result string `json:"result"`
	Job    string `json:"job"`
	Queue  string `json:"queue"`
	Note   string `json:"note"`
	Error  string `json:"error"`
}

type statsReply struct {
	Count     int        `json:"count"`
	Oldest    *time.Time `json:"oldest,omitempty"`
	Newest    *time.Time `json:"newest,omitempty"`
	Queues    nameCounts `json:"queues"`
	Functions nameCounts `json:"functions"`
	Errors    nameCounts `json:"errors"`
}
