package consistency

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/internal/durable"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Verbs of the requests between members.
const (
	VerbLedgerHash = "ledger_hash" // asks for a member's hash at an index: [Check.ServeHash]
	VerbDiverged   = "diverged"    // reports that the sender's ledger has diverged: [Check.ServeDiverged]
)

// Limits of a comparison.
const (
	keptRounds         = 8                // rounds that a node keeps
	hashTimeout        = 15 * time.Second // for all members to reach the index
	hashRetryInterval  = 250 * time.Millisecond
	hashRequestTimeout = time.Second
	divergedStay       = 3 * time.Second // a diverged node tries this long to report it to the others
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

	mu       crash.Mutex
	rounds   []*round          // newest last
	findings map[string]string // texts for readiness, by member; "": about several members
}

// round is the comparison of the members' hashes at one index.
type round struct {
	own      api.LedgerHash
	hashes   map[string]string // by member, this node included
	compared bool              // a hash that arrives now is compared when it arrives
}

// New returns a check. [Check.Run] runs it.
func New(cfg Config, log *slog.Logger) *Check {
	return &Check{cfg: cfg, log: log, findings: map[string]string{}}
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
	r := c.beginRound(api.LedgerHash{Node: c.cfg.Node, Index: l.Index(), Hash: hex.EncodeToString(hash[:])})
	members := c.cfg.Members()
	c.collectHashes(ctx, r, members)
	if ctx.Err() != nil {
		return nil
	}
	comparison := c.endRound(r, members)
	if !slices.Contains(comparison.diverged, c.cfg.Node) {
		return nil
	}
	c.reportDiverged(ctx, r.own, members)
	text := fmt.Sprintf("this node's ledger is not the yard's at entry %d: its hash begins with %s, the majority's with %s", r.own.Index, shortHash(r.own.Hash), shortHash(comparison.majority))
	if err := durable.WriteFile(divergedFile(c.cfg.Dir), []byte(text+"\n")); err != nil {
		c.log.Error("data directory not marked as diverged", "err", err)
	}
	return &DivergedError{text, c.cfg.Advice}
}

// beginRound begins the round at the index of this node's hash, and forgets the oldest
// one if there are more than keptRounds.
func (c *Check) beginRound(own api.LedgerHash) *round {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := &round{own: own, hashes: map[string]string{own.Node: own.Hash}}
	c.rounds = append(c.rounds, r)
	c.rounds = c.rounds[max(0, len(c.rounds)-keptRounds):]
	return r
}

// endRound compares the hashes of a round and records what it finds.
func (c *Check) endRound(r *round, members []string) hashComparison {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.compared = true
	comparison := compareHashes(r.hashes, members)
	c.recordLocked(&comparison, r, members)
	return comparison
}

// recordLocked logs the findings of a round and replaces those of earlier rounds. It
// keeps the finding about a member that did not answer this time, because that member may
// have stopped itself, and the finding that there is no majority until there is one.
func (c *Check) recordLocked(comparison *hashComparison, r *round, members []string) {
	found := comparison.findings(r.own.Index)
	for _, text := range found {
		c.log.Error("ledgers differ", "finding", text)
	}
	for member, text := range c.findings {
		silent := r.hashes[member] == "" && slices.Contains(members, member)
		stillSplit := member == "" && comparison.majority == "" && found[""] == ""
		if silent || stillSplit {
			found[member] = text
		}
	}
	c.findings = found
}

// collectHashes asks all members for their hash at the round's index, for up to
// hashTimeout. It asks those again that have not reached the index, or did not answer.
func (c *Check) collectHashes(ctx context.Context, r *round, members []string) {
	c.askMembers(ctx, hashTimeout, members, func(ctx context.Context, member string) bool {
		c.mu.Lock()
		known := r.hashes[member] != ""
		c.mu.Unlock()
		if known {
			return true
		}
		var reply api.LedgerHash
		if c.cfg.Request(ctx, member, VerbLedgerHash, r.own.Index, &reply) != nil || reply.Index != r.own.Index {
			return false
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		r.hashes[member] = reply.Hash
		return true
	})
}

// reportDiverged sends the hash of this node, whose ledger has diverged, to the other
// members, for up to divergedStay. A member whose round has ended would not ask for it,
// and could not report which member is wrong once this node has stopped.
func (c *Check) reportDiverged(ctx context.Context, own api.LedgerHash, members []string) {
	c.askMembers(ctx, divergedStay, members, func(ctx context.Context, member string) bool {
		var reply api.LedgerHash
		return member == own.Node || c.cfg.Request(ctx, member, VerbDiverged, &own, &reply) == nil && reply.Index == own.Index
	})
}

// askMembers calls ask for each member until it has returned true for each, or the
// timeout is over.
func (c *Check) askMembers(ctx context.Context, timeout time.Duration, members []string, ask func(context.Context, string) bool) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	remaining := slices.Clone(members)
	for {
		remaining = slices.DeleteFunc(remaining, func(member string) bool {
			ctx, cancel := context.WithTimeout(ctx, hashRequestTimeout)
			defer cancel()
			return ask(ctx, member)
		})
		if len(remaining) == 0 || backoff.Sleep(ctx, hashRetryInterval) != nil {
			return
		}
	}
}

// ServeHash answers a member with this node's hash at an index, or with index 0 if this
// node does not have it (yet).
func (c *Check) ServeHash(_ context.Context, request []byte) ([]byte, error) {
	var index uint64
	if err := json.Unmarshal(request, &index); err != nil {
		return nil, &job.InvalidError{Reason: err.Error()}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return json.Marshal(c.ownHashLocked(index))
}

// ServeDiverged receives the hash of a member whose ledger has diverged. If the round
// has ended without that hash, it records the finding about the member. The reply is
// that of [Check.ServeHash].
func (c *Check) ServeDiverged(_ context.Context, request []byte) ([]byte, error) {
	var theirs api.LedgerHash
	if err := json.Unmarshal(request, &theirs); err != nil {
		return nil, &job.InvalidError{Reason: err.Error()}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.roundLocked(theirs.Index); r != nil {
		r.hashes[theirs.Node] = theirs.Hash
		comparison := compareHashes(r.hashes, c.cfg.Members())
		if text := comparison.findings(theirs.Index)[theirs.Node]; r.compared && text != "" && text != c.findings[theirs.Node] {
			c.log.Error("ledgers differ", "finding", text)
			c.findings[theirs.Node] = text
		}
	}
	return json.Marshal(c.ownHashLocked(theirs.Index))
}

// ownHashLocked returns this node's hash at an index, or the zero value if this node has
// no round at it.
func (c *Check) ownHashLocked(index uint64) api.LedgerHash {
	if r := c.roundLocked(index); r != nil {
		return r.own
	}
	return api.LedgerHash{}
}

// roundLocked returns the round at an index, or nil.
func (c *Check) roundLocked(index uint64) *round {
	for _, r := range c.rounds {
		if r.own.Index == index {
			return r
		}
	}
	return nil
}

// Reasons returns the findings of the comparisons, for readiness.
func (c *Check) Reasons() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Values(c.findings))
}
