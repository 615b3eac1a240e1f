// Package roster settles who a node is and with whom it forms a yard, before
// anything else of the node starts.
//
// A node is bound to its data directory, not to its name: a directory that was
// emptied has forgotten its votes, and a voter without memory can undo what a
// quorum has promised. So every directory gets a random id when it is first
// used, a member's raft id is "<name>-<directory id>", and the list of those
// pairs (the roster) is fixed when the yard forms.
//
//	empty ── all declared members seen empty, all with the same plan ──▶ formed
//	empty ── a formed member's roster has this name and directory ─────▶ formed
//	empty ── a formed member's roster has this name, another directory ─▶ refused
//	formed ── restart ─────────────────────────────────────────────────▶ formed, waits for nobody
//
// Every member computes the same roster from what it sees (sorted pairs of name
// and directory) and names the yard by its hash: this is the plan. A member
// forms only once all others show the same plan, so that a directory emptied
// halfway cannot leave two rosters behind unless it happens within the last
// round trip; then the two yards refuse each other, loudly, and neither loses
// anything, because nothing was accepted yet.
//
// Members meet at the raft port. Each connection starts with one hello a side
// (see [Door]); the ones made for raft are handed on after it, so a node of
// another yard, version or directory never speaks a word of raft.
package roster
