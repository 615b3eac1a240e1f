package diagnose

import (
	"context"
	"encoding/json"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
)

// Config is what a [Diagnoser] knows of its node, and the functions that it calls.
type Config struct {
	Node           string        // this node's name
	DefaultTimeout time.Duration // of jobs that set none
	MaxAttempts    uint32        // of jobs that set none
	Defaults       job.Defaults
	// Route returns the queue whose Overhop workers may run a job and the runner that
	// may, as [scheduler.Config.Route].
	Route func(queue, function string) (workers, runner string)

	View      func(func(*ledger.Ledger))                                                         // reads this node's ledger
	NoQuorum  func() string                                                                      // returns why there is no quorum, "" if there is one
	Authority func() (node string, known bool)                                                   // returns the authority according to the ledger
	Members   func() []string                                                                    // returns the names of all members
	FindJob   func(ctx context.Context, name, queue string) (job.ID, error)                      // finds a job that may have been accepted a moment ago
	FindQueue func(ctx context.Context, name string) (view ledger.QueueView, ok bool, err error) // likewise a queue

	Placement func(context.Context, scheduler.PlacementQuery) (scheduler.PlacementExplanation, error) // asks this node's scheduler; fails unless this node is the authority
	Peers     Peers
	Records   Records
	Workers   Workers
	Pools     func() []api.Pool // returns the state of this node's runners
	Drained   func() bool       // reports whether this node starts no jobs
}

// Peers sends requests to other nodes.
type Peers interface {
	Request(ctx context.Context, node, verb string, payload []byte) ([]byte, error)
	RequestJSON(ctx context.Context, node, verb string, request, reply any) error
}

// Records reads the lanes and the history.
type Records interface {
	Read(ctx context.Context, lane uint8, from uint64, limit int) ([]job.Record, error)
	ReadHistory(ctx context.Context, seq uint64, limit int) ([]streams.Batch, error)
	ReadHistorySince(ctx context.Context, at time.Time, limit int) ([]streams.Batch, error)
}

// Workers knows this node's Overhop workers.
type Workers interface {
	Subscribers(queue string) api.Subscribers
	Running(id job.ID, dispatch uint32) (job.Progress, bool)
}

// Diagnoser explains jobs and queues, and answers the diagnosers of other nodes.
type Diagnoser struct{ cfg Config }

// New returns a diagnoser.
func New(cfg Config) *Diagnoser { return &Diagnoser{cfg} }

// Requests to other nodes: to the authority about placement, to each node about its
// workers and runners, and to the node that runs a dispatch.
const (
	verbExplainPlacement = "explain_placement" // the request is a [scheduler.PlacementQuery], the reply a [scheduler.PlacementExplanation]
	verbExecutors        = "executors"         // the request is an [executorsRequest], the reply an [api.NodeExecutors]
	verbRunningJob       = "running_job"       // the request is the id of a dispatch, the reply a [job.Progress]
)

// queryTimeout bounds each request about placement or executors.
const queryTimeout = 400 * time.Millisecond

// PeerHandlers returns the handlers of requests from other nodes, by verb.
func (g *Diagnoser) PeerHandlers() map[string]func(context.Context, []byte) ([]byte, error) {
	return map[string]func(context.Context, []byte) ([]byte, error){
		verbExplainPlacement: g.servePlacement, verbExecutors: g.serveExecutors, verbRunningJob: g.serveRunning,
	}
}

// decode decodes the request of another node.
func decode[T any](request []byte) (v T, err error) {
	if err := json.Unmarshal(request, &v); err != nil {
		return v, &job.InvalidError{Reason: err.Error()}
	}
	return v, nil
}

// diagnose collects the facts about a job from the ledger and from the other nodes,
// which it asks at the same time. It takes at most [queryTimeout] and never fails:
// what a node does not answer is left out. ok is false if the ledger does not have the
// job.
func (g *Diagnoser) diagnose(ctx context.Context, id job.ID) (d *diagnosis, ok bool) {
	d = g.newDiagnosis()
	g.cfg.View(func(l *ledger.Ledger) { ok = d.readLedger(l, id) })
	if ok {
		g.queryNodes(ctx, d)
	}
	return d, ok
}

// WaitReason returns why a job does not start, or "" if nothing prevents it or the ledger
// does not have the job. The text does not change unless the situation does.
func (g *Diagnoser) WaitReason(ctx context.Context, id job.ID) string {
	if d, ok := g.diagnose(ctx, id); ok {
		return d.waitReason()
	}
	return ""
}
