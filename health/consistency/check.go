package consistency

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// VerbLedgerHash is the verb of the requests that [Check.Serve] answers: the hash of a
// member's ledger at an index.
const VerbLedgerHash = "ledger_hash"

// Limits of a comparison.
const (
	keptHashes         = 8                // hashes that a node keeps
	hashTimeout        = 15 * time.Second // for all members to reach the index
	hashRetryInterval  = 250 * time.Millisecond
	hashRequestTimeout = time.Second
	divergedStay       = 3 * time.Second // a diverged node stays up this long, for the others to compare
)

// Config is what a [Check] depends on.
type Config struct {
	Node    string
	Dir     string                // the data directory, which is marked if the ledger has diverged
	Advice  string                // what to do then
	Copies  <-chan *ledger.Ledger // receives a copy of the ledger at each entry that the authority chooses
	Members func() []string       // returns the names of all voters
	// Request sends a JSON request to another member.
	Request func(ctx context.Context, node, verb string, request, reply any) error
}

// Check compares the hash of this node's ledger with the hashes of the other members. It
// hashes copies of the ledger and does not block the applying of entries.
type Check struct {
	cfg Config
	log *slog.Logger

	mu       sync.Mutex
	hashes   []api.LedgerHash  // newest last
	served   map[uint64]int    // number of answers to other members, by index
	findings map[string]string // texts for readiness, by member; "": about several members
}

// New returns a check. [Check.Run] runs it.
func New(cfg Config, log *slog.Logger) *Check {
	return &Check{cfg: cfg, log: log, served: map[uint64]int{}}
}

// Run hashes and compares until ctx ends. It returns a [*DivergedError] if this node's
// ledger differs from the majority's.
func (c *Check) Run(ctx context.Context) error {
	for {
		select {
		case l := <-c.cfg.Copies:
			if err := c.check(ctx, l); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// check hashes l and compares it with the other members' hashes at the same index. It
// marks the data directory and returns a [*DivergedError] if the majority has another
// hash.
func (c *Check) check(ctx context.Context, l *ledger.Ledger) error {
	hash, err := l.Hash()
	if err != nil {
		return fmt.Errorf("encode the ledger: %w", err)
	}
	own := api.LedgerHash{Node: c.cfg.Node, Index: l.Index(), Hash: hex.EncodeToString(hash[:])}
	c.mu.Lock()
	c.hashes = append(c.hashes, own)
	c.hashes = c.hashes[max(0, len(c.hashes)-keptHashes):]
	maps.DeleteFunc(c.served, func(index uint64, _ int) bool { return index < c.hashes[0].Index })
	c.mu.Unlock()
	members := c.cfg.Members()
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
	if err := os.WriteFile(divergedFile(c.cfg.Dir), []byte(text+"\n"), 0o600); err != nil {
		c.log.Error("data directory not marked as diverged", "err", err)
	}
	return &DivergedError{text, c.cfg.Advice}
}

// record logs the findings of a comparison of hashes at an index, and replaces the
// findings of earlier ones. It keeps the finding about a member that did not answer this
// time, because that member may have stopped itself, and the finding that there is no
// majority until there is one.
func (c *Check) record(result *hashComparison, index uint64, hashes map[string]string, members []string) {
	found := result.findings(index)
	for _, text := range found {
		c.log.Error("ledgers differ", "finding", text)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for member, text := range c.findings {
		silent := hashes[member] == "" && slices.Contains(members, member)
		stillSplit := member == "" && result.majority == "" && found[""] == ""
		if silent || stillSplit {
			found[member] = text
		}
	}
	c.findings = found
}

// awaitPeers waits until the given number of other members have got this node's hash at
// an index, for at most divergedStay, so that they learn which ledger is wrong before
// this node stops.
func (c *Check) awaitPeers(ctx context.Context, index uint64, others int) {
	ctx, cancel := context.WithTimeout(ctx, divergedStay)
	defer cancel()
	for {
		c.mu.Lock()
		allServed := c.served[index] >= others
		c.mu.Unlock()
		if allServed || backoff.Sleep(ctx, hashRetryInterval) != nil {
			return
		}
	}
}

// collectHashes asks all members for their hash at own.Index, for up to hashTimeout. It
// asks those again that have not reached the index, or did not answer. It returns the
// hashes that it got by member, including this node's own.
func (c *Check) collectHashes(ctx context.Context, own api.LedgerHash, members []string) map[string]string {
	ctx, cancel := context.WithTimeout(ctx, hashTimeout)
	defer cancel()
	hashes := map[string]string{own.Node: own.Hash}
	for {
		for _, member := range members {
			if hashes[member] != "" {
				continue
			}
			var reply api.LedgerHash
			reqCtx, cancelReq := context.WithTimeout(ctx, hashRequestTimeout)
			if err := c.cfg.Request(reqCtx, member, VerbLedgerHash, own.Index, &reply); err == nil && reply.Index == own.Index {
				hashes[member] = reply.Hash
			}
			cancelReq()
		}
		if len(hashes) == len(members) {
			return hashes
		}
		if backoff.Sleep(ctx, hashRetryInterval) != nil {
			return hashes
		}
	}
}

// Serve answers a member with the hash at an index, or with index 0 if this node does
// not have it (yet).
func (c *Check) Serve(_ context.Context, request []byte) ([]byte, error) {
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
	return json.Marshal(api.LedgerHash{})
}

// Reasons returns the findings of the comparisons, for readiness.
func (c *Check) Reasons() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Values(c.findings))
}
