package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/web"
)

// serviceMetadata returns the metadata of this node's NATS services.
func (n *Node) serviceMetadata() map[string]string {
	raft := n.raft.Status()
	metadata := map[string]string{"version": n.version, "raft": raft.State, "authority": "false"}
	if owner, _, ok := n.authority.current(); ok && owner == n.cfg.Node.Name {
		metadata["authority"] = "true"
	}
	if n.httpAddr != "" {
		metadata["http"] = n.httpAddr
	}
	return metadata
}

// withOpenAPI adds an endpoint to s that returns the OpenAPI document, and to the
// metadata of each endpoint where the document describes it.
func (n *Node) withOpenAPI(s cluster.Service) cluster.Service {
	const name = "openapi"
	subject := cluster.SubjectAPI + "." + name
	document := sync.OnceValues(func() ([]byte, error) {
		return web.Document(n.version, n.cfg.HTTP.Token != "", n.webRoutes(s.Endpoints))
	})
	described := slices.Clone(s.Endpoints)
	for i := range described {
		e := &described[i]
		meta := maps.Clone(e.Metadata)
		if meta == nil {
			meta = map[string]string{}
		}
		meta["http"] = routes[e.Name].Pattern
		meta["schema"] = subject + "#" + e.Name // the document's operation of this id
		e.Metadata = meta
	}
	s.Endpoints = append(described, cluster.Endpoint{
		Name: name, Subject: subject, Description: "the OpenAPI document: what every endpoint takes and answers",
		Handle: func(context.Context, *cluster.Request) ([]byte, error) { return document() },
	})
	return s
}

// nodeService returns the endpoints whose subject names this node, so that clients
// reach it from wherever they are connected.
func (n *Node) nodeService() cluster.Service {
	verb := func(name, description string, do func(context.Context, *cluster.Request) (any, error)) cluster.Endpoint {
		return cluster.Endpoint{
			Name: name, Subject: cluster.NodeSubject(n.cfg.Node.Name, name), Description: description, Handle: jsonHandler(do),
		}
	}
	service := cluster.Service{
		Name: "yard-node", Version: semver(n.version), Description: "Yardmaster: one node of the yard, by its name",
		Metadata: n.serviceMetadata,
		Endpoints: []cluster.Endpoint{
			verb("health", "whether this node works, of itself", n.handleHealth),
			verb("readiness", "whether the yard is ready, seen from this node, and why not", n.handleReadiness),
			verb("snapshot", "the runtime contract's snapshot, from this node", n.handleSnapshot),
			verb("status", "members, authority, lanes, backlog, readiness, seen from this node", n.handleStatus),
			verb("stepdown", "hand the authority to another member, if this node holds it", n.handleStepdown),
			verb("drain", "take no more work, and give to other members what they can do as well", n.handleDrain),
			verb("resume", "take work again after a drain", n.handleResume),
		},
	}
	n.addIndex(service.Endpoints)
	return service
}

// healthReply reports whether this node works. The cluster may be ready without it.
type healthReply struct {
	Node      string `json:"node"`
	Healthy   bool   `json:"healthy"`
	JetStream string `json:"jetstream"` // what is wrong with it; "": nothing
	Raft      string `json:"raft"`      // leader, follower, candidate
	Leader    string `json:"leader"`    // of the Raft group, as this node knows it; "": none
}

func (n *Node) handleHealth(ctx context.Context, _ *cluster.Request) (any, error) {
	raft := n.raft.Status()
	h := healthReply{Node: n.cfg.Node.Name, Raft: raft.State, Leader: raft.Leader}
	if err := n.cluster.Health(ctx); err != nil {
		h.JetStream = err.Error()
	}
	h.Healthy = h.JetStream == "" && h.Leader != ""
	return h, nil
}

func (n *Node) handleReadiness(ctx context.Context, _ *cluster.Request) (any, error) {
	return n.readiness(ctx, n.authorityStatus(ctx), n.laneStatus(ctx)), nil
}

// transferReply names the member that received the authority.
type transferReply struct {
	From  string `json:"from"`
	To    string `json:"to"`
	Epoch uint64 `json:"epoch"`
}

// handleStepdown transfers the authority to the first other member that accepts it.
func (n *Node) handleStepdown(ctx context.Context, _ *cluster.Request) (any, error) {
	me := n.cfg.Node.Name
	owner, _, _ := n.authority.current()
	if owner != me {
		return nil, &cluster.APIError{Code: "409", Text: fmt.Sprintf("%s does not hold the authority; ask %s, which does", me, owner)}
	}
	return n.transferAuthority(ctx, "")
}
