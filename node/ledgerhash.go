package node

import (
	"context"
	"encoding/hex"
	"fmt"
	"sync"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// ledgerHasher computes the hash of this node's ledger for comparisons between nodes. It
// encodes a whole copy of the ledger, but only once per index.
type ledgerHasher struct {
	copy func() *ledger.Ledger

	mu   sync.Mutex // held while a hash is computed, so that concurrent callers share it
	last ledgerHashJSON
}

// ledgerHashJSON is the hash of one node's ledger. All nodes have the same hash at the same
// index, unless one has diverged.
type ledgerHashJSON struct {
	Node  string `json:"node"`
	Index uint64 `json:"index"` // of the last entry in it
	Hash  string `json:"hash"`  // SHA-256, 64 hexadecimal digits
}

// hash returns the hash of the current ledger.
func (h *ledgerHasher) hash(node string) (ledgerHashJSON, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.copy()
	if h.last.Index == l.Index() && h.last.Hash != "" {
		return h.last, nil
	}
	hash, err := l.Hash()
	if err != nil {
		return ledgerHashJSON{}, fmt.Errorf("encode the ledger: %w", err)
	}
	h.last = ledgerHashJSON{Node: node, Index: l.Index(), Hash: hex.EncodeToString(hash[:])}
	return h.last, nil
}

func (n *Node) handleLedgerHash(context.Context, *cluster.Request) (any, error) {
	return n.hasher.hash(n.cfg.Node.Name)
}
