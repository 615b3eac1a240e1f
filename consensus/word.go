package consensus

import (
	"fmt"

	"yardmaster/ledger"
)

// Say lets the other members hear how this node does, a few KiB of JSON, over
// the port that agreement uses.
func (n *Node) Say(word []byte) {
	if door := n.id.Door(); door != nil {
		door.Say(word)
	}
}

// Hear asks a member how it does; nil if it has not said. It takes a second at
// most.
func (n *Node) Hear(member string) ([]byte, error) {
	addr, door := n.addr(member), n.id.Door()
	if addr == "" || door == nil {
		return nil, fmt.Errorf("member %s has no declared address", member)
	}
	return door.Hear(addr)
}

// WriteError is why the last write to the log failed; nil if it did not. The next
// one that succeeds clears it.
func (n *Node) WriteError() error {
	if err := n.guard.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// ToProve gives a copy of the ledger as it was right after each entry with a
// [ledger.Prove]; of several that nobody has taken, the newest.
func (n *Node) ToProve() <-chan *ledger.Ledger { return n.fsm.prove }

// Disturb changes this member's ledger behind agreement's back, so that tests can
// see what becomes of a member whose memory is not what it was.
func (n *Node) Disturb(change func(*ledger.Ledger)) {
	n.fsm.mu.Lock()
	defer n.fsm.mu.Unlock()
	change(n.fsm.ledger)
}
