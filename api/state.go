package api

import (
	"encoding/json"
	"time"
)

// StateRequest asks for the state of the yard at a point of its history.
type StateRequest struct {
	At string `json:"at"` // number of an event, RFC 3339, time of today in UTC such as 14:03, or duration before now such as 1h; "" means now
}

// State is the state of the yard after an event, rebuilt from its history.
type State struct {
	Event     uint64           `json:"event"`     // number of the last event
	At        time.Time        `json:"at"`        // of the last event
	Imbalance int64            `json:"imbalance"` // jobs accepted minus those in all states and those removed: 0
	Jobs      map[string]int64 `json:"jobs"`      // in all queues, by state, without those that are 0
	State     json.RawMessage  `json:"state"`     // queues, limits, cron entries, running jobs, authority, members
}

// StateDiffRequest asks for what differs between the states at two points of history.
type StateDiffRequest struct {
	From string `json:"from"` // likewise
	To   string `json:"to"`   // likewise
}

// StateDiff is what differs between two states.
type StateDiff struct {
	From        StatePoint        `json:"from"`
	To          StatePoint        `json:"to"`
	Differences []StateDifference `json:"differences"` // by what differs
}

// StatePoint is a point of history.
type StatePoint struct {
	Event uint64    `json:"event"`
	At    time.Time `json:"at"`
}

// StateDifference is one respect in which two states differ.
type StateDifference struct {
	What string `json:"what"` // such as "queue mail waiting"
	From string `json:"from"` // "" if it was not there
	To   string `json:"to"`   // likewise
}
