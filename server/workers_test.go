package server

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
)

// A name that several workers have drains none of them, and a member that does not answer is
// named.
func TestWorkers_Find(t *testing.T) {
	list := &api.WorkerList{Nodes: []api.NodeWorkers{
		{Node: "n1", Workers: []api.Worker{{Name: "py", Worker: "rrq/py/7000"}, {Name: "py", Reason: "exit 1"}, {Name: "mailer", Worker: "overhop/1"}}},
		{Node: "n2", Workers: []api.Worker{{Name: "py", Worker: "rrq/py/7000"}}},
	}}
	h := &Workers{List: func(_ context.Context, q *api.WorkerRequest) (*api.WorkerList, error) {
		found := &api.WorkerList{Nodes: slices.Clone(list.Nodes)}
		for i := range found.Nodes {
			n := &found.Nodes[i]
			n.Workers = slices.DeleteFunc(slices.Clone(n.Workers), func(w api.Worker) bool {
				return q.Node != "" && q.Node != n.Node || q.Worker != w.Name && q.Worker != w.Worker
			})
		}
		return found, nil
	}}
	for _, c := range []struct {
		request api.WorkerRequest
		node    string // "" means an error with the code and a text
		code    string
		text    string
	}{
		{api.WorkerRequest{Worker: "mailer"}, "n1", "", ""},
		{api.WorkerRequest{Worker: "overhop/1"}, "n1", "", ""},
		{api.WorkerRequest{Worker: "rrq/py/7000"}, "", api.CodeConflict, "2 workers are named"},
		{api.WorkerRequest{Worker: "rrq/py/7000", Node: "n2"}, "n2", "", ""},
		{api.WorkerRequest{Worker: "nobody"}, "", api.CodeNotFound, "yardmaster workers"},
	} {
		node, _, err := h.find(t.Context(), &c.request)
		problem, _ := err.(*api.Error)
		if node != c.node || (problem != nil) != (c.node == "") || problem != nil && (problem.Code != c.code || !strings.Contains(problem.Text, c.text)) {
			t.Errorf("%+v is found at %q: %v", c.request, node, err)
		}
	}
	list.Nodes = append(list.Nodes, api.NodeWorkers{Node: "n3", Error: "timeout"})
	if _, _, err := h.find(t.Context(), &api.WorkerRequest{Worker: "nobody"}); err == nil || !strings.Contains(err.Error(), "n3 did not answer") {
		t.Errorf("with a silent member: %v", err)
	}
}
