package node

import (
	"context"
	"encoding/hex"
	"fmt"
	"sync"

	"yardmaster/cluster"
	"yardmaster/ledger"
)

// proof makes the hash of this node's ledger for whoever compares nodes. The
// whole ledger is encoded for it, on a copy and never twice for one index.
type proof struct {
	copy func() *ledger.Ledger

	mu   sync.Mutex // held while a hash is made: the others who ask wait for it
	last proofJSON
}

// proofJSON is one node's ledger: those of all nodes are the same at the same
// index, or a replica has diverged.
type proofJSON struct {
	Node  string `json:"node"`
	Index uint64 `json:"index"` // of the last entry in it
	Hash  string `json:"hash"`  // SHA-256, 64 hexadecimal digits
}

func (p *proof) of(node string) (proofJSON, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.copy()
	if p.last.Index == l.Index() && p.last.Hash != "" {
		return p.last, nil
	}
	hash, err := l.Hash()
	if err != nil {
		return proofJSON{}, fmt.Errorf("encode the ledger: %w", err)
	}
	p.last = proofJSON{Node: node, Index: l.Index(), Hash: hex.EncodeToString(hash[:])}
	return p.last, nil
}

func (n *Node) handleLedgerHash(context.Context, *cluster.Request) (any, error) {
	return n.proof.of(n.cfg.Node.Name)
}
