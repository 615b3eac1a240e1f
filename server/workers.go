package server

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/authority"
)

// Workers drains single workers and runner processes. All fields are required.
type Workers struct {
	Node      string // this member's name
	Authority *authority.Client
	// List returns the workers and processes that a request names, at all members.
	List func(ctx context.Context, request *api.WorkerRequest) (*api.WorkerList, error)
	// Executors are the workers and the processes of this member.
	Executors []Executors
	// Request sends a request to another member.
	Request func(ctx context.Context, node, verb string, request, reply any) error
}

// Executors are the workers or the runner processes of a member.
type Executors interface {
	// SetDrained drains the executor of a channel, or resumes it. It returns the number
	// of jobs that the executor runs, and false if there is no such executor.
	SetDrained(channel string, drained bool) (running int, ok bool)
}

// verbDrainWorker asks another member to drain one of its executors, or to resume it. The
// request is an [api.WorkerDrain], and so is the reply.
const verbDrainWorker = "drain_worker"

// Handlers returns the handlers by the name of the endpoint.
func (h *Workers) Handlers() map[string]Handler {
	handler := func(drained bool) Handler {
		return JSON(func(ctx context.Context, q *api.WorkerRequest) (*api.WorkerDrain, error) {
			return h.change(ctx, q, drained)
		})
	}
	return map[string]Handler{"worker-drain": handler(true), "worker-resume": handler(false)}
}

// PeerHandlers returns the handlers of requests from other members, by verb.
func (h *Workers) PeerHandlers() map[string]func(context.Context, []byte) ([]byte, error) {
	return map[string]func(context.Context, []byte) ([]byte, error){
		verbDrainWorker: func(_ context.Context, payload []byte) ([]byte, error) {
			var d api.WorkerDrain
			if err := json.Unmarshal(payload, &d); err != nil {
				return nil, &job.InvalidError{Reason: err.Error()}
			}
			if err := h.set(&d); err != nil {
				return nil, err
			}
			return json.Marshal(&d)
		},
	}
}

// change drains or resumes the only executor that a request names, at whichever member it
// is, and records the act.
func (h *Workers) change(ctx context.Context, q *api.WorkerRequest, drained bool) (*api.WorkerDrain, error) {
	if q.Worker == "" {
		return nil, &job.InvalidError{Reason: "worker is missing; 'yardmaster workers' lists the names and ids"}
	}
	node, w, err := h.find(ctx, q)
	if err != nil {
		return nil, err
	}
	d := &api.WorkerDrain{Node: node, Worker: w.Worker, Name: w.Name, Drained: drained}
	if node == h.Node {
		err = h.set(d)
	} else {
		err = h.Request(ctx, node, verbDrainWorker, d, d)
	}
	if err != nil {
		return nil, err
	}
	if w.Drained != drained {
		action := "worker.resume"
		if drained {
			action = "worker.drain"
		}
		h.Authority.RecordAct(ctx, &ledger.RecordAct{Action: action, Target: strings.TrimSpace(fmt.Sprintf("%s %s at %s", job.CutText(d.Name, ledger.MaxText), d.Worker, node))})
	}
	return d, nil
}

// find returns the only executor that a request names, and its member.
func (h *Workers) find(ctx context.Context, q *api.WorkerRequest) (node string, found *api.Worker, err error) {
	list, err := h.List(ctx, q)
	if err != nil {
		return "", nil, err
	}
	count, silent := 0, []string(nil)
	for i := range list.Nodes {
		n := &list.Nodes[i]
		if n.Error != "" {
			silent = append(silent, n.Node)
		}
		for k := range n.Workers {
			if w := &n.Workers[k]; w.Worker != "" { // else it is down
				node, found, count = n.Node, w, count+1
			}
		}
	}
	name := job.CutText(q.Worker, ledger.MaxText)
	switch {
	case count > 1:
		return "", nil, &api.Error{Code: api.CodeConflict, Text: fmt.Sprintf("%d workers are named %q: give the id of one, such as %s, and its node if several have it; 'yardmaster workers' lists them", count, name, found.Worker)}
	case count == 0 && len(silent) > 0:
		return "", nil, &api.Error{Code: api.CodeUnavailable, Text: fmt.Sprintf("no worker %q is connected to the members that answer; %s did not answer: try again", name, strings.Join(silent, ", "))}
	case count == 0:
		return "", nil, &api.Error{Code: api.CodeNotFound, Text: fmt.Sprintf("no worker or runner process %q is connected; 'yardmaster workers' lists them", name)}
	}
	return node, found, nil
}

// set drains or resumes an executor of this member, and sets the number of jobs that it
// runs.
func (h *Workers) set(d *api.WorkerDrain) error {
	for _, e := range h.Executors {
		if running, ok := e.SetDrained(d.Worker, d.Drained); ok {
			d.Running = running
			return nil
		}
	}
	return &api.Error{Code: api.CodeNotFound, Text: fmt.Sprintf("%s is no longer connected to %s", d.Worker, h.Node)}
}
