package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/membership"
	"github.com/yardmaster-dev/yardmaster/node/config"
	"github.com/yardmaster-dev/yardmaster/server/authority"
)

func (n *Node) membershipConfig() membership.Config {
	declared := []ledger.Member{{Node: n.cfg.Node.Name}}
	if n.cfg.Clustered() {
		declared = nil
	}
	for _, m := range n.cfg.Cluster.Members {
		declared = append(declared, ledger.Member{Node: m.Name, Route: m.Route, Raft: m.Raft})
	}
	return membership.Config{
		Cluster: n.cfg.Cluster.Name, Version: n.version, Clustered: n.cfg.Clustered(), Declared: declared,
		Identity: n.id, Group: n.raft, NATS: n.cluster, Replication: n.cluster.Replication, Running: n.agent.Running,
		Authority: n.authority.Watch, ProposeLocal: n.proposeMembers, NotProposed: authority.NotProposed, CheckAddress: config.CheckAddress, Log: n.log,
	}
}

// proposeMembers commits a command on this node, which must hold the authority.
func (n *Node) proposeMembers(ctx context.Context, c ledger.Command) error {
	r, _, err := n.scheduler.Propose(ctx, c)
	return errors.Join(err, r.Err)
}

func (n *Node) drainConfig() membership.DrainConfig {
	return membership.DrainConfig{
		Clustered: n.cfg.Clustered(), Agent: n.agent, Edge: n.edge, Streams: n.cluster.Replication, DrainClients: n.cluster.DrainClients,
		ActiveJobs: n.activeJobs, StopReason: edge.DrainReasonStop, Log: n.log,
	}
}

// activeJobs returns jobs of this node that the ledger has as active, at most [api.MaxActiveJobs].
func (n *Node) activeJobs() (jobs []api.ActiveJob) {
	n.raft.View(func(l *ledger.Ledger) {
		l.ActiveDispatches(func(a ledger.ActiveDispatch) bool {
			if a.Node == n.cfg.Node.Name {
				jobs = append(jobs, api.NewActiveJob(&a, n.cfg.Scheduler.DefaultTimeout))
			}
			return len(jobs) < api.MaxActiveJobs
		})
	})
	return jobs
}

// drainWarnings returns a warning for each drained member, because a drain is easily
// forgotten.
func (n *Node) drainWarnings() (warnings []string) {
	for _, w := range append(n.monitor.PeerStatuses(), n.monitor.Status()) {
		if !w.Drained.IsZero() {
			warnings = append(warnings, fmt.Sprintf("%s is drained since %s: it takes no work until 'yardmaster node resume %s', or until it starts again",
				w.Node, ledger.FormatTime(w.Drained), w.Node))
		}
	}
	slices.SortFunc(warnings, strings.Compare)
	return warnings
}
