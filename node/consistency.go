package node

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// verbLedgerHash asks a member for its ledger's hash at an index.
const verbLedgerHash = "ledger_hash"

// Limits of a comparison.
const (
	keptHashes         = 8                // hashes that a node keeps
	hashTimeout        = 15 * time.Second // for all members to reach the index
	hashRetryInterval  = 250 * time.Millisecond
	hashRequestTimeout = time.Second
	divergedStay       = 3 * time.Second // a diverged node stays up this long, for the others to compare
)

// consistencyCheck compares the hash of this node's ledger with the hashes of the other
// members, at the entries that the authority chooses. It hashes copies of the ledger
// and does not block the applying of entries.
type consistencyCheck struct {
	node *Node

	mu       sync.Mutex
	hashes   []ledgerHashJSON  // newest last
	served   map[uint64]int    // number of answers to other members, by index
	findings map[string]string // texts for readiness, by member; "": about several members
}

func newConsistencyCheck(n *Node) *consistencyCheck {
	return &consistencyCheck{node: n, served: map[uint64]int{}}
}

// run hashes and compares until ctx ends. It returns an [*ExitError] if this node's
// ledger differs from the majority's.
func (c *consistencyCheck) run(ctx context.Context) error {
	for {
		select {
		case l := <-c.node.raft.ConsistencyChecks():
			if err := c.check(ctx, l); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// check hashes l and compares it with the other members' hashes at the same index.
func (c *consistencyCheck) check(ctx context.Context, l *ledger.Ledger) error {
	hash, err := l.Hash()
	if err != nil {
		return fmt.Errorf("encode the ledger: %w", err)
	}
	own := ledgerHashJSON{Node: c.node.cfg.Node.Name, Index: l.Index(), Hash: hex.EncodeToString(hash[:])}
	c.mu.Lock()
	c.hashes = append(c.hashes, own)
	c.hashes = c.hashes[max(0, len(c.hashes)-keptHashes):]
	maps.DeleteFunc(c.served, func(index uint64, _ int) bool { return index < c.hashes[0].Index })
	c.mu.Unlock()
	members := c.node.memberNames()
	hashes := c.collectHashes(ctx, own, members)
	comparison := compareHashes(hashes, members)
	if ctx.Err() != nil {
		return nil
	}
	c.record(&comparison, own.Index, hashes, members)
	if !slices.Contains(comparison.diverged, own.Node) {
		return nil
	}
	c.awaitPeers(ctx, own.Index, len(members)-1)
	text := fmt.Sprintf("this node's ledger is not the yard's at entry %d: its hash begins with %s, the majority's with %s", own.Index, shortHash(own.Hash), shortHash(comparison.majority))
	c.node.markDiverged(text)
	return &ExitError{ExitDamaged, fmt.Errorf("%s; %s", text, c.node.replaceAdvice())}
}

// record replaces the findings with the findings of v. It keeps the finding about a member
// that did not answer this time, because that member may have stopped itself, and the
// finding that there is no majority until there is one.
func (c *consistencyCheck) record(v *hashComparison, index uint64, hashes map[string]string, members []string) {
	found := v.findings(index)
	for _, text := range found {
		c.node.log.Error("ledgers differ", "finding", text)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for member, text := range c.findings {
		unknown := hashes[member] == "" && slices.Contains(members, member)
		if unknown || member == "" && v.majority == "" && found[""] == "" {
			found[member] = text
		}
	}
	c.findings = found
}

// awaitPeers waits until that many other members have asked for the hash at an index,
// for at most divergedStay, so that they learn which ledger is wrong before this node
// stops.
func (c *consistencyCheck) awaitPeers(ctx context.Context, index uint64, others int) {
	ctx, cancel := context.WithTimeout(ctx, divergedStay)
	defer cancel()
	for {
		c.mu.Lock()
		asked := c.served[index] >= others
		c.mu.Unlock()
		if asked || backoff.Sleep(ctx, hashRetryInterval) != nil {
			return
		}
	}
}

// collectHashes asks all members for their hash at an index, for up to hashTimeout. It
// asks those again that have not reached the index.
func (c *consistencyCheck) collectHashes(ctx context.Context, own ledgerHashJSON, members []string) map[string]string {
	ctx, cancel := context.WithTimeout(ctx, hashTimeout)
	defer cancel()
	hashes := map[string]string{own.Node: own.Hash}
	for {
		for _, member := range members {
			if hashes[member] != "" {
				continue
			}
			var reply ledgerHashJSON
			reqCtx, cancelReq := context.WithTimeout(ctx, hashRequestTimeout)
			if err := c.node.request(reqCtx, member, verbLedgerHash, own.Index, &reply); err == nil && reply.Index == own.Index {
				hashes[member] = reply.Hash
			}
			cancelReq()
		}
		if len(hashes) == len(members) {
			return hashes
		}
		select {
		case <-time.After(hashRetryInterval):
		case <-ctx.Done():
			return hashes
		}
	}
}

// serve answers a member with the hash at an index, or with index 0 if this node does
// not have it (yet).
func (c *consistencyCheck) serve(_ context.Context, request []byte) ([]byte, error) {
	var index uint64
	if err := json.Unmarshal(request, &index); err != nil {
		return nil, &job.InvalidError{Reason: err.Error()}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, hash := range c.hashes {
		if hash.Index == index {
			c.served[index]++
			return json.Marshal(hash)
		}
	}
	return json.Marshal(ledgerHashJSON{})
}

// reasons returns the findings of the comparisons, for readiness.
func (c *consistencyCheck) reasons() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Values(c.findings))
}

// hashComparison is the result of comparing the hashes of members.
type hashComparison struct {
	majority string   // the hash of more than half of the members; "": there is none
	diverged []string // members with another hash
	split    []string // all members that answered, if hashes differ without a majority
}

// compareHashes compares the hashes of members, by member. The majority counts all
// members, also those without a hash.
func compareHashes(hashes map[string]string, members []string) (result hashComparison) {
	votes := map[string]int{}
	for _, hash := range hashes {
		votes[hash]++
	}
	for hash, n := range votes {
		if n > len(members)/2 {
			result.majority = hash
		}
	}
	for member, hash := range hashes {
		switch {
		case len(votes) < 2:
		case result.majority == "":
			result.split = append(result.split, member)
		case hash != result.majority:
			result.diverged = append(result.diverged, member)
		}
	}
	slices.Sort(result.diverged)
	slices.Sort(result.split)
	return result
}

// findings returns what the result means and what to do, by member; "" is about
// several.
func (v *hashComparison) findings(index uint64) map[string]string {
	texts := map[string]string{}
	for _, member := range v.diverged {
		texts[member] = fmt.Sprintf("member %s's ledger is not the yard's at entry %d: it ends itself; run 'yardmaster cluster replace %s'", member, index, member)
	}
	if len(v.split) > 0 {
		texts[""] = fmt.Sprintf("the ledgers of %s differ at entry %d, and no majority says which is right: start the other members", strings.Join(v.split, ", "), index)
	}
	return texts
}

func shortHash(hash string) string { return hash[:min(8, len(hash))] }

// divergedFile marks a data directory whose ledger has diverged.
const divergedFile = "diverged"

// markDiverged prevents further starts with this data directory.
func (n *Node) markDiverged(text string) {
	if err := os.WriteFile(filepath.Join(n.cfg.Node.DataDir, divergedFile), []byte(text+"\n"), 0o600); err != nil {
		n.log.Error("data directory not marked as diverged", "err", err)
	}
}

// checkDiverged returns an error if the data directory is marked as diverged. A replay
// of its log might produce the right ledger this time and hide the fault.
func (n *Node) checkDiverged() error {
	text, err := os.ReadFile(filepath.Join(n.cfg.Node.DataDir, divergedFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("check whether the ledger has diverged: %w", err)
	}
	return &ExitError{ExitDamaged, fmt.Errorf("%s; %s", strings.TrimSpace(string(text)), n.replaceAdvice())}
}
