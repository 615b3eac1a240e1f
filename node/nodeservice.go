package node

import (
	"context"
	"slices"
	"sync"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/server"
	"github.com/yardmaster-dev/yardmaster/web"
)

// serviceMetadata returns the metadata of this node's NATS services.
func (n *Node) serviceMetadata() map[string]string {
	raft := n.raft.Status()
	metadata := map[string]string{"version": n.version, "raft": raft.State, "authority": "false"}
	if owner, _, ok := n.authority.Current(); ok && owner == n.cfg.Node.Name {
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
	openAPI := api.Endpoint{
		Name: "openapi", Subject: api.SubjectAPI + ".openapi", Summary: "the OpenAPI document: what every endpoint takes and answers",
	}
	document := sync.OnceValues(func() ([]byte, error) {
		return web.Document(n.version, n.cfg.HTTP.Token != "", n.webRoutes(s.Endpoints))
	})
	described := slices.Clone(s.Endpoints)
	for i := range described {
		e := &described[i]
		e.Metadata = map[string]string{"http": e.Pattern, "schema": openAPI.Subject + "#" + e.Name} // the document's operation of this id
	}
	s.Endpoints = append(described, cluster.Endpoint{
		Endpoint: openAPI, Handle: func(context.Context, *cluster.Request) ([]byte, error) { return document() },
	})
	return s
}

// nodeService returns the endpoints whose subject names this node, so that clients
// reach it from wherever they are connected.
func (n *Node) nodeService() cluster.Service {
	return cluster.Service{
		Name: "yard-node", Version: semver(n.version), Description: "Yardmaster: one node of the yard, by its name",
		Metadata: n.serviceMetadata, Endpoints: n.bind(api.NodeEndpoints, n.nodeHandlers()),
	}
}

// nodeHandlers returns the handlers of [api.NodeEndpoints] by name.
func (n *Node) nodeHandlers() map[string]handler {
	return map[string]handler{
		"health":    jsonHandler(n.handleHealth),
		"readiness": jsonHandler(n.handleReadiness),
		"snapshot":  jsonHandler(n.handleSnapshot),
		"status":    server.JSONReply(n.reporter.Status),
		"stepdown":  server.JSONReply(n.transfer.HandleStepdown),
		"drain":     server.JSONReply(n.drainer.HandleDrain),
		"resume":    server.JSONReply(n.drainer.HandleResume),
	}
}

func (n *Node) handleHealth(ctx context.Context, _ *cluster.Request) (any, error) {
	raft := n.raft.Status()
	h := api.Health{Node: n.cfg.Node.Name, Raft: raft.State, Leader: raft.Leader}
	if err := n.cluster.Health(ctx); err != nil {
		h.JetStream = err.Error()
	}
	h.Healthy = h.JetStream == "" && h.Leader != ""
	return h, nil
}

func (n *Node) handleReadiness(ctx context.Context, _ *cluster.Request) (any, error) {
	return n.reporter.Readiness(ctx), nil
}
