package ledger

import "time"

// Proposal is one log entry to be committed: commands that are applied in order, at one
// time and under the epoch of the authority that proposes them.
type Proposal struct {
	At       time.Time
	Offsets  Offsets // of the other clocks, see [Clock]
	Epoch    uint64
	Commands []Command
}

// Commit is a committed proposal: the index of its log entry, and one result for each of
// its commands.
type Commit struct {
	Index   uint64
	Results []Result
}
