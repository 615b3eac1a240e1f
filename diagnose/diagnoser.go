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

// Config configures a [Diagnoser]: its node, and the functions that it calls.
type Config struct {
	Node           string        // this node's name
	DefaultTimeout time.Duration // of jobs that set none
	MaxAttempts    uint32        // of jobs that set none
	Defaults       job.Defaults
	// Route returns the queue whose Overhop workers may run a job and the runner that
	// may, as [scheduler.Config.Route].
	Route func(queue, function string) (workers, runner string)

	View      func(func(*ledger.Ledger))                                       // reads this node's ledger
	NoQuorum  func() string                                                    // returns why there is no quorum, "" if there is one
	Authority func() (node string, known bool)                                 // returns the authority according to the ledger
	Members   func() []string                                                  // returns the names of all members
	FindJob   func(ctx context.Context, name, queue string) (job.ID, error)    // finds a job that may have been accepted a moment ago
	FindQueue func(ctx context.Context, name string) (ledger.QueueView, error) // finds a queue
	// Ended returns a job that has ended, also one that the ledger has forgotten, and the number of its
	// result, 0 for none.
	Ended func(ctx context.Context, id job.ID) (view job.View, result uint64, err error)

	// LetterGone reports whether the dead letter of a failed job no longer exists, false if that is not known.
	LetterGone func(context.Context, *job.View) bool

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
	Workers(request *api.WorkerRequest, limit int) (workers []api.Worker, more int)
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
	verbWorkers          = "workers"           // the request is an [api.WorkerRequest], the reply an [api.NodeWorkers]
	verbRunningJob       = "running_job"       // the request is the id of a dispatch, the reply a [job.Progress]
)

// queryTimeout bounds each request about placement or executors.
const queryTimeout = 400 * time.Millisecond

// PeerHandlers returns the handlers of requests from other nodes, by verb.
func (g *Diagnoser) PeerHandlers() map[string]func(context.Context, []byte) ([]byte, error) {
	return map[string]func(context.Context, []byte) ([]byte, error){
		verbExplainPlacement: serveJSON(g.cfg.Placement), verbExecutors: serveJSON(g.localExecutors),
		verbWorkers: serveJSON(g.localWorkers), verbRunningJob: g.serveRunning,
	}
}

// serveJSON returns the handler of requests for which answer returns the reply. Requests
// and replies are JSON.
func serveJSON[Request, Reply any](answer func(context.Context, Request) (Reply, error)) func(context.Context, []byte) ([]byte, error) {
	return func(ctx context.Context, text []byte) ([]byte, error) {
		var request Request
		if err := json.Unmarshal(text, &request); err != nil {
			return nil, &job.InvalidError{Reason: err.Error()}
		}
		reply, err := answer(ctx, request)
		if err != nil {
			return nil, err
		}
		return json.Marshal(reply)
	}
}

// WaitReason returns why a job does not start, or "" if nothing prevents it or the ledger
// does not have the job. It takes at most [queryTimeout]; facts of nodes that do not
// answer are left out. The text does not change unless the situation does.
func (g *Diagnoser) WaitReason(ctx context.Context, id job.ID) string {
	d, ok := g.newDiagnosis(), false
	g.cfg.View(func(l *ledger.Ledger) { ok = d.readLedger(l, id) })
	if !ok {
		return ""
	}
	g.queryNodes(ctx, d)
	return d.waitReason()
}
