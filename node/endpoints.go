package node

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/backup"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/health"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/membership"
	"github.com/yardmaster-dev/yardmaster/server"
	"github.com/yardmaster-dev/yardmaster/server/httproutes"
	"github.com/yardmaster-dev/yardmaster/server/joblog"
	"github.com/yardmaster-dev/yardmaster/server/operations"
	"github.com/yardmaster-dev/yardmaster/server/overview"
)

// serveEndpoints serves the API over NATS and HTTP. The endpoints of a node have its name
// in their subject, so that clients reach it from wherever they are connected. Those for
// backup and restore are not served over HTTP, which has one route for a backup.
func (n *Node) serveEndpoints(g *loopGroup) {
	binding := n.binding()
	service := func(name, description string, endpoints []cluster.Endpoint) cluster.Service {
		return cluster.Service{
			Name: name, Version: semver(n.version), Description: "Yardmaster: " + description,
			Metadata: n.serviceMetadata, Endpoints: endpoints,
		}
	}
	overHTTP := &httproutes.Handlers{Enqueue: n.enqueue, Jobs: n.jobHandlers(), Backup: n.backups.OpenBackup}
	shared := service("yard-api", "jobs, queues and the state of the yard", n.endpoints())
	for _, s := range []cluster.Service{
		overHTTP.WithOpenAPI(shared, n.version, n.web.RequiresToken()),
		service("yard-node", "one node of the yard, by its name", binding.Bind(api.NodeEndpoints, n.nodeHandlers())),
		service("yard-backup", "backup and restore of the whole yard", binding.Bind(api.BackupEndpoints, backupHandlers(n.backups))),
	} {
		g.Go(func(ctx context.Context) error { return n.cluster.Serve(ctx, s) })
	}
	routes := overHTTP.Routes(shared.Endpoints)
	g.Go(func(ctx context.Context) error { return n.web.ServeAPI(ctx, routes) })
	g.Go(n.serveConsole)
}

// binding returns what the API needs besides its handlers.
func (n *Node) binding() server.Binding {
	return server.Binding{
		Node: n.cfg.Node.Name, View: n.raft.View, Enqueue: n.enqueue.HandleAsync,
		NoQuorum: func() bool { return health.NoQuorum(n.raft.Status()) != "" },
	}
}

// overhopOperations returns the endpoints of the API that are served over Overhop, by name.
func (n *Node) overhopOperations() map[string]cluster.Endpoint {
	operations := make(map[string]cluster.Endpoint)
	for _, e := range n.endpoints() {
		if op := e.OverhopOp(); op != "" {
			operations[op] = e
		}
	}
	return operations
}

// serviceMetadata returns the metadata of this node's NATS services.
func (n *Node) serviceMetadata() map[string]string {
	metadata := map[string]string{
		"version": n.version, "raft": n.raft.Status().State, "authority": fmt.Sprint(n.authority.Holder() == n.cfg.Node.Name),
	}
	if n.httpAddr != "" {
		metadata["http"] = n.httpAddr
	}
	return metadata
}

// semver returns version in the form that the NATS service API requires.
func semver(version string) string {
	var major, minor, patch int
	if _, err := fmt.Sscanf(version, "v%d.%d.%d", &major, &minor, &patch); err != nil {
		return "0.0.0"
	}
	return fmt.Sprintf("%d.%d.%d", major, minor, patch)
}

// jobHandlers returns the handlers of requests about jobs.
func (n *Node) jobHandlers() *server.Jobs {
	return &server.Jobs{Authority: n.proposer, Viewer: n.viewer, Retrier: n.retrier, Waiters: n.waiters, WaitReason: n.diagnoser.WaitReason}
}

// workerHandlers returns the handlers of requests about single workers.
func (n *Node) workerHandlers() *server.Workers {
	return &server.Workers{
		Node: n.cfg.Node.Name, Authority: n.proposer, List: n.diagnoser.ListWorkers, Executors: []server.Executors{n.edge, n.runners}, Request: n.fleet.RequestJSON,
	}
}

// explainJob explains a job, with the whole error of its last attempt.
func (n *Node) explainJob(ctx context.Context, q *api.JobRequest) (*api.JobExplanation, error) {
	e, err := n.diagnoser.ExplainJob(ctx, q)
	if err == nil && e.Job != nil {
		n.viewer.AddErrorOf(ctx, e.Job)
	}
	return e, err
}

// apiHandlers returns the handlers of [api.Endpoints] by name.
func (n *Node) apiHandlers() map[string]server.Handler {
	logs := &joblog.Reader{FindJob: n.viewer.Locate, Read: n.cluster.Reader.ReadLog}
	handlers := map[string]server.Handler{
		"snapshot":         snapshotHandler(n.reporter),
		"status":           server.JSONReply(n.reporter.Status),
		"job-explain":      server.JSON(n.explainJob),
		"job-logs":         server.JSON(logs.Handle),
		"job-errors":       server.JSON(n.viewer.HandleErrors),
		"job-find":         server.JSON(n.index.HandleFind),
		"cluster-members":  server.JSON(n.member.Handler(membership.Show)),
		"cluster-add":      server.JSON(n.member.Handler(membership.Add)),
		"cluster-rm":       server.JSON(n.member.Handler(membership.Remove)),
		"cluster-replace":  server.JSON(n.member.Handler(membership.Replace)),
		"cluster-cancel":   server.JSON(n.member.Handler(membership.Cancel)),
		"cluster-transfer": server.JSON(n.transfer.HandleTransfer),
		"cluster-scrub":    handleRetired,
		"cluster-rebuild":  handleRetired,
		"ledger-hash":      server.JSONReply(n.hasher.Hash),
		"state-at":         server.JSON(n.chronicle.HandleState),
		"state-diff":       server.JSON(n.chronicle.HandleDiff),
		"queue-explain":    server.JSON(n.diagnoser.ExplainQueue),
		"worker-list":      server.JSON(n.diagnoser.ListWorkers),
	}
	schemas := &server.Schemas{Authority: n.proposer, View: n.raft.View, Counts: n.schemaPeers()}
	for _, h := range []interface {
		Handlers() map[string]server.Handler
	}{
		n.enqueue,
		n.jobHandlers(),
		n.workerHandlers(),
		&server.Queues{Authority: n.proposer, View: n.raft.View, Schemas: schemas, NewQueues: n.newQueues},
		schemas,
		&overview.Overview{
			Node: n.cfg.Node.Name, Recorder: n.statistics, View: n.raft.View, Status: n.reporter.Status,
			Quorum: func() bool { return health.NoQuorum(n.raft.Status()) == "" },
		},
		&server.Limits{Authority: n.proposer, View: n.raft.View, DefaultTimeout: n.cfg.Scheduler.DefaultTimeout},
		&server.Retention{Authority: n.proposer, View: n.raft.View, Status: n.reporter.AuthorityStatus},
		&server.Crons{
			Authority: n.proposer, View: n.raft.View, Intake: n.intake, NewQueues: n.newQueues, CreateQueues: *n.cfg.Scheduler.CreateQueues, FindJob: n.viewer.Summary,
		},
		&server.Contract{
			Authority: n.proposer, IsMember: n.transfer.IsMember, Acquire: n.transfer.Acquire, SnapshotContext: n.reporter.CaptureContext,
		},
		n.deadLetters,
		&operations.Server{Authority: n.proposer, View: n.raft.View, Find: n.index, Options: n.index.QueryOptions, Preview: n.deadLetters.Preview, HasLetter: n.deadLetters.HasLetter},
	} {
		maps.Copy(handlers, h.Handlers())
	}
	return handlers
}

// nodeHandlers returns the handlers of [api.NodeEndpoints] by name.
func (n *Node) nodeHandlers() map[string]server.Handler {
	return map[string]server.Handler{
		"health": server.JSONReply(n.reporter.Health),
		"readiness": server.JSONReply(func(ctx context.Context) (*api.Readiness, error) {
			r := n.reporter.Readiness(ctx)
			return &r, nil
		}),
		"snapshot": snapshotHandler(n.reporter),
		"status":   server.JSONReply(n.reporter.Status),
		"stepdown": server.JSONReply(n.transfer.HandleStepdown),
		"drain":    server.JSONReply(n.drainer.HandleDrain),
		"resume":   server.JSONReply(n.drainer.HandleResume),
	}
}

// snapshotHandler answers with the snapshot of the runtime contract.
func snapshotHandler(r *health.Reporter) server.Handler {
	return server.JSONReply(func(ctx context.Context) (*ledger.Snapshot, error) {
		view := r.Snapshot(ctx, func(l *ledger.Ledger) { server.Shows(ctx, l) })
		return &view, nil
	})
}

// backupHandlers returns the handlers of [api.BackupEndpoints] by name.
func backupHandlers(b *backup.Server) map[string]server.Handler {
	return map[string]server.Handler{
		"backup-begin": server.JSONReply(b.BeginBackup),
		"backup-read": server.Raw(func(ctx context.Context, body []byte) ([]byte, error) {
			var req api.BackupRequest
			if len(body) > 0 {
				if err := job.UnmarshalStrict("request", body, &req); err != nil {
					return nil, err
				}
			}
			return b.ReadBackup(ctx, &req)
		}),
		"backup-end":    server.JSON(b.EndBackup),
		"restore-begin": server.JSON(b.BeginRestore),
		"restore-push": server.Raw(func(ctx context.Context, body []byte) ([]byte, error) {
			reply, err := b.PushRestore(ctx, body)
			if err != nil {
				return nil, err
			}
			return json.Marshal(reply)
		}),
		"restore-finish":  server.JSON(b.FinishRestore),
		"restore-abandon": server.JSONReply(b.AbandonRestore),
		"restore-wait":    server.JSON(b.WaitRestore),
	}
}

// handleRetired answers requests of earlier builds about replicas of single streams.
func handleRetired(context.Context, *cluster.Request) ([]byte, error) {
	return nil, &api.Error{
		Code: api.CodeGone,
		Text: "replicas of single streams are neither compared nor rebuilt any more; where 'yardmaster status' names a damaged or lagging member, replace it: 'yardmaster cluster replace <member>'",
	}
}
