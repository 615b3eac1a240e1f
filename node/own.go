package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"yardmaster/cluster"
	"yardmaster/web"
)

// facts is what this node says of itself to who lists services.
func (n *Node) facts() map[string]string {
	raft := n.raft.Status()
	facts := map[string]string{"version": n.version, "raft": raft.State, "authority": "false"}
	if owner, _, ok := n.watch.authority(); ok && owner == n.cfg.Node.Name {
		facts["authority"] = "true"
	}
	if n.httpAddr != "" {
		facts["http"] = n.httpAddr
	}
	return facts
}

// described adds to a service where its questions and answers are described,
// and an endpoint that gives that description.
func (n *Node) described(s cluster.Service) cluster.Service {
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
		Do: func(context.Context, *cluster.Request) ([]byte, error) { return document() },
	})
	return s
}

// ownService is what clients may ask of this very node, wherever they are
// connected.
func (n *Node) ownService() cluster.Service {
	verb := func(name, description string, do func(context.Context, *cluster.Request) (any, error)) cluster.Endpoint {
		return cluster.Endpoint{
			Name: name, Subject: cluster.NodeSubject(n.cfg.Node.Name, name), Description: description, Do: answer(do),
		}
	}
	service := cluster.Service{
		Name: "yard-node", Version: semver(n.version), Description: "Yardmaster: one node of the yard, by its name",
		Metadata: n.facts,
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
	n.index(service.Endpoints)
	return service
}

// health is whether a node works, of itself: the yard may be ready without it.
type health struct {
	Node      string `json:"node"`
	Healthy   bool   `json:"healthy"`
	JetStream string `json:"jetstream"` // what is wrong with it; "": nothing
	Raft      string `json:"raft"`      // leader, follower, candidate
	Leader    string `json:"leader"`    // Raft's, as heard here; "": none
}

func (n *Node) handleHealth(ctx context.Context, _ *cluster.Request) (any, error) {
	raft := n.raft.Status()
	h := health{Node: n.cfg.Node.Name, Raft: raft.State, Leader: raft.Leader}
	if err := n.messages.Health(ctx); err != nil {
		h.JetStream = err.Error()
	}
	h.Healthy = h.JetStream == "" && h.Leader != ""
	return h, nil
}

func (n *Node) handleReadiness(ctx context.Context, _ *cluster.Request) (any, error) {
	return n.readiness(ctx, n.look(ctx), n.laneStatus(ctx)), nil
}

// steppedDown says to whom the authority went.
type steppedDown struct {
	From  string `json:"from"`
	To    string `json:"to"`
	Epoch uint64 `json:"epoch"`
}

// handleStepdown hands the authority to the first other member that takes it.
func (n *Node) handleStepdown(ctx context.Context, _ *cluster.Request) (any, error) {
	me := n.cfg.Node.Name
	owner, _, _ := n.watch.authority()
	if owner != me {
		return nil, &cluster.APIError{Code: "409", Text: fmt.Sprintf("%s does not hold the authority; ask %s, which does", me, owner)}
	}
	return n.giveAuthority(ctx, "")
}
