package consistency

import (
	"context"
	"encoding/hex"
	"fmt"
	"sync"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Hasher computes the hash of this node's ledger for requests about it. It encodes a
// whole copy of the ledger, but only once per index.
type Hasher struct {
	node string
	copy func() *ledger.Ledger

	mu   sync.Mutex      // held while a hash is computed, so that concurrent callers share it
	last *api.LedgerHash // not changed once it is set
}

// NewHasher returns a hasher for a node. copy returns a copy of its ledger.
func NewHasher(node string, copy func() *ledger.Ledger) *Hasher {
	return &Hasher{node: node, copy: copy}
}

// Hash returns the hash of the current ledger.
func (h *Hasher) Hash(context.Context) (*api.LedgerHash, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.copy()
	if h.last != nil && h.last.Index == l.Index() {
		return h.last, nil
	}
	hash, err := l.Hash()
	if err != nil {
		return nil, fmt.Errorf("encode the ledger: %w", err)
	}
	h.last = &api.LedgerHash{Node: h.node, Index: l.Index(), Hash: hex.EncodeToString(hash[:])}
	return h.last, nil
}
