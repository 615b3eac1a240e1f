package consensus

import (
	"fmt"
)

// SetNodeStatus sets the status that other members get from this node over the
// raft port: a few KiB of JSON.
func (n *Node) SetNodeStatus(status []byte) {
	if listener := n.id.Listener(); listener != nil {
		listener.SetNodeStatus(status)
	}
}

// PeerStatus returns the status that a member has set, or nil if it has not set
// one. It takes at most a second.
func (n *Node) PeerStatus(member string) ([]byte, error) {
	addr, listener := addrOf(n.id, member), n.id.Listener()
	if addr == "" || listener == nil {
		return nil, fmt.Errorf("member %s has no declared address", member)
	}
	return listener.PeerStatus(addr)
}

// WriteError returns the error of the last write to the log, or nil if it
// succeeded.
func (n *Node) WriteError() error {
	if err := n.guarded.lastErr.Load(); err != nil {
		return *err
	}
	return nil
}
