package schemas

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// verbCounts asks a node for its counts of a queue's schemas. The request is a
// [countsRequest], the reply has the counts by version.
const verbCounts = "schema_counts"

// countsTimeout bounds the request to each node.
const countsTimeout = 400 * time.Millisecond

type countsRequest struct {
	Queue string `json:"queue"` // "": all queues
}

// Counts returns what this node has found by the schemas of a queue, or of all if queue is "",
// by the schemas' versions.
func (c *Checker) Counts(queue string) map[uint64]api.SchemaCounts {
	counts := make(map[uint64]api.SchemaCounts)
	for schema, compiled := range c.compiledSet().compiled {
		if queue == "" || schema.Queue == queue {
			counts[schema.Version] = compiled.read()
		}
	}
	return counts
}

// Collect calls fn for each schema with what this node has found by it.
func (c *Checker) Collect(fn func(*ledger.Schema, api.SchemaCounts)) {
	current := c.compiledSet()
	for _, schema := range current.set.Sorted() {
		fn(schema, current.compiled[schema].read())
	}
}

// Peers adds up the counts of all members. All fields are required.
type Peers struct {
	Checker *Checker
	Node    string          // this node's name
	Members func() []string // names of all members
	Fleet   interface {
		RequestJSON(ctx context.Context, node, verb string, request, reply any) error
	}
}

// Counts returns what all members have found by the schemas of a queue, or of all if queue is
// "", by the schemas' versions, and which members have not answered.
func (p *Peers) Counts(ctx context.Context, queue string) (counts map[uint64]api.SchemaCounts, missing []string) {
	ctx, cancel := context.WithTimeout(ctx, countsTimeout)
	defer cancel()
	counts = p.Checker.Counts(queue)
	var mu sync.Mutex
	var requests crash.Group
	for _, member := range p.Members() {
		if member == p.Node {
			continue
		}
		requests.Run(func() {
			var reply map[uint64]api.SchemaCounts
			err := p.Fleet.RequestJSON(ctx, member, verbCounts, countsRequest{queue}, &reply)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				missing = append(missing, member)
				return
			}
			for version, theirs := range reply {
				counts[version] = add(counts[version], theirs)
			}
		})
	}
	_ = requests.Wait() // the functions return no errors
	slices.Sort(missing)
	return counts, missing
}

// add returns the sum of two counts, with the later of the last violations.
func add(a, b api.SchemaCounts) api.SchemaCounts {
	sum := api.SchemaCounts{Refused: a.Refused + b.Refused, Rejected: a.Rejected + b.Rejected, Warned: a.Warned + b.Warned, Last: a.Last}
	if a.Last == nil || b.Last != nil && b.Last.At.After(a.Last.At) {
		sum.Last = b.Last
	}
	return sum
}

// Handlers returns the handlers of requests from other nodes, by verb.
func (p *Peers) Handlers() map[string]func(context.Context, []byte) ([]byte, error) {
	return map[string]func(context.Context, []byte) ([]byte, error){verbCounts: p.serve}
}

func (p *Peers) serve(_ context.Context, text []byte) ([]byte, error) {
	var request countsRequest
	if err := json.Unmarshal(text, &request); err != nil {
		return nil, &job.InvalidError{Reason: err.Error()}
	}
	return json.Marshal(p.Checker.Counts(request.Queue))
}
