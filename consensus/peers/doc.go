// Package peers determines which node this is and with which members it forms a
// cluster, before any other part of the node starts.
//
// A node is bound to its data directory, not to its name: a directory that was
// emptied has forgotten its votes, and a voter without memory can undo what a
// quorum has decided. So every directory gets a random id when it is first
// used. A member's Raft id is "<name>-<directory id>", and the list of those
// pairs (the bootstrap members) is fixed when the cluster forms.
//
//	empty ── all declared members empty, all with the same plan ──────────────▶ formed
//	empty ── a formed member lists this name and directory ──────────────────▶ formed
//	empty ── a formed member lists this name with another directory ──────────▶ waits
//	formed ── restart ────────────────────────────────────────────────────────▶ formed, without waiting
//
// Every member computes the same list from what it sees (sorted pairs of name
// and directory) and identifies the cluster by its hash: this is the plan. A
// member forms only when all others announce the same plan, so a directory that
// is emptied meanwhile cannot leave two different lists, unless that happens
// within the last round trip. In that case the two clusters refuse each other
// with an error, and nothing is lost, because nothing was accepted yet.
//
// Members communicate at the raft port. Each connection starts with one hello
// per side (see [PeerListener]). Connections for Raft are passed on after that,
// so a node of another cluster, version or directory never exchanges Raft
// messages.
package peers
