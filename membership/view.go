package membership

import (
	"context"

	"yardmaster/ledger"
)

// View is who belongs to the yard, and how a change goes on.
type View struct {
	Revision uint64     `json:"revision"`          // of the roll
	Change   string     `json:"change"`            // under way; "": none
	Step     string     `json:"step"`              // what it waits for
	Outcome  string     `json:"outcome,omitempty"` // why the last one came to nothing
	Skew     []string   `json:"skew"`              // where Raft, JetStream and the roll differ
	Members  []Standing `json:"members"`
}

// Standing is how a member stands.
type Standing struct {
	Name      string   `json:"name"`
	Directory string   `json:"directory"`
	State     string   `json:"state"` // present, joining, leaving
	Route     string   `json:"route"`
	Raft      string   `json:"raft"`
	Heard     bool     `json:"heard"`     // it answers
	Voter     bool     `json:"voter"`     // in the Raft group
	Lag       uint64   `json:"lag"`       // entries that its ledger lacks
	JetStream string   `json:"jetstream"` // current, behind, offline, absent; "unknown" without a leader
	Streams   int      `json:"streams"`   // copies of streams that lie on it
	Leads     int      `json:"leads"`     // of them, those that it leads
	Behind    []string `json:"behind"`    // streams whose copy on it is not current
	Version   string   `json:"version"`
	Running   int      `json:"running"`
	Declares  string   `json:"declares,omitempty"` // members by its configuration, where that differs
}

// View looks at all members at once; what does not answer within a second is
// shown as not heard.
func (k *Keeper) View(ctx context.Context) View {
	roll := k.yard.Roll()
	k.mu.Lock()
	v := View{Revision: roll.Revision, Change: roll.Under(), Step: k.step, Outcome: k.outcome, Skew: append([]string{}, k.skew...)}
	k.mu.Unlock()
	if roll.Revision == 0 {
		roll.Members = k.yard.Founders()
	}
	words := k.words(ctx, roll)
	var meta []Copy
	led := false
	for _, w := range words {
		if w.Led {
			meta, led = w.Meta, true
		}
	}
	looking, cancel := context.WithTimeout(ctx, askTime)
	streams, _ := k.streams(looking) // without an answer nothing is shown of them
	cancel()
	last := k.yard.Last()
	for i := range roll.Members {
		v.Members = append(v.Members, k.standing(&roll.Members[i], words, meta, led, streams, last))
	}
	return v
}

func (k *Keeper) standing(m *ledger.Member, words map[string]Word, meta []Copy, led bool, streams []StreamCopies, last uint64) Standing {
	s := Standing{
		Name: m.Node, Directory: m.Dir, State: m.State.String(), Route: m.Route, Raft: m.Raft,
		JetStream: "unknown", Behind: []string{},
	}
	if w, heard := words[m.ID()]; heard {
		s.Heard, s.Version, s.Running, s.Declares = true, w.Version, w.Running, w.Declares
		if w.Applied < last {
			s.Lag = last - w.Applied
		}
	}
	for _, server := range k.yard.Servers() {
		s.Voter = s.Voter || server.ID == m.ID() && server.Voter
	}
	if led {
		s.JetStream = "absent"
	}
	for i := range meta {
		if c := &meta[i]; c.ID == m.ID() {
			switch {
			case c.Offline:
				s.JetStream = "offline"
			case c.Current:
				s.JetStream = "current"
			default:
				s.JetStream = "behind"
			}
		}
	}
	for i := range streams {
		for n := range streams[i].Copies {
			c := &streams[i].Copies[n]
			if c.ID != m.ID() {
				continue
			}
			s.Streams++
			if c.Leader {
				s.Leads++
			}
			if !c.well() {
				s.Behind = append(s.Behind, streams[i].Stream)
			}
		}
	}
	return s
}
