package api

import "time"

// MemberRequest is a request about the members of the yard.
type MemberRequest struct {
	Name  string `json:"name"`  // the member concerned
	With  string `json:"with"`  // cluster-replace: the new member's name; "" means the same
	Route string `json:"route"` // NATS route address of a new member, host:port; cluster-replace: "" means the old one's
	Raft  string `json:"raft"`  // Raft address of a new member, likewise
	To    string `json:"to"`    // cluster-transfer: the new authority; "" means any member
}

// Membership shows the members of the yard and the progress of a change.
type Membership struct {
	Revision uint64   `json:"revision"`          // of the membership
	Change   string   `json:"change"`            // pending change; "" means none
	Step     string   `json:"step"`              // its current step
	Outcome  string   `json:"outcome,omitempty"` // why the last change failed
	Skew     []string `json:"skew"`              // where Raft and JetStream differ from the membership
	Members  []Member `json:"members"`

	Uncounted string `json:"uncounted,omitempty"` // streams that the numbers of its members leave out, and why
}

// Member is a member as the authority sees it.
type Member struct {
	Name      string   `json:"name"`
	Directory string   `json:"directory"`
	State     string   `json:"state"` // present, joining, leaving
	Route     string   `json:"route"`
	Raft      string   `json:"raft"`
	Answers   bool     `json:"heard"`     // it answered within a second
	Voter     bool     `json:"voter"`     // in the Raft group
	Lag       uint64   `json:"lag"`       // entries by which its ledger is behind
	JetStream string   `json:"jetstream"` // current, behind, offline, absent; "unknown" without a leader
	Streams   int      `json:"streams"`   // replicas of streams on it
	Leads     int      `json:"leads"`     // number of streams that it leads
	Behind    []string `json:"behind"`    // streams whose replica on it is not current
	Version   string   `json:"version"`
	Running   int      `json:"running"`
	Declares  string   `json:"declares,omitempty"` // members in its configuration, if they differ
}

// Transfer names the member that received the authority.
type Transfer struct {
	From  string `json:"from"`
	To    string `json:"to"`
	Epoch uint64 `json:"epoch"`
}

// RetiredRequest is a request of earlier clients about the replica of one stream.
type RetiredRequest struct {
	Name   string `json:"name"`
	Stream string `json:"stream"`
}

// LedgerHash is the hash of one node's ledger. All nodes have the same hash at the
// same index, unless one has diverged.
type LedgerHash struct {
	Node  string `json:"node"`
	Index uint64 `json:"index"` // of the last entry in it
	Hash  string `json:"hash"`  // SHA-256, 64 hexadecimal digits
}

// Health reports whether one node works. The yard may be ready without it.
type Health struct {
	Node      string `json:"node"`
	Healthy   bool   `json:"healthy"`
	JetStream string `json:"jetstream"` // what is wrong with it; "" means nothing
	Raft      string `json:"raft"`      // leader, follower, candidate
	Leader    string `json:"leader"`    // of the Raft group, as this node knows it; "" means none
}

// Resumed reports that a drained node takes work again.
type Resumed struct {
	Node    string    `json:"node"`
	Drained time.Time `json:"drained_at"` // when the drain began
}
