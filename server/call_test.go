package server

import (
	"context"
	"errors"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// request returns a request with a token, whose headers have their own names as values.
func request(body, token string) *cluster.Request {
	return cluster.NewRequest([]byte(body), token, func(name string) string { return name }, nil)
}

// A handler gets the decoded request, and what else the call has from its context.
func TestJSON(t *testing.T) {
	handle := JSON(func(ctx context.Context, q *api.QueueRequest) (*api.Removed, error) {
		if Token(ctx) != "mail" || Header(ctx, "X") != "X" {
			t.Errorf("token %q, header %q", Token(ctx), Header(ctx, "X"))
		}
		SetIndex(ctx, 7)
		return &api.Removed{Name: q.Name}, nil
	})
	r := request(`{"name":"mail"}`, "mail")
	if reply, err := handle(t.Context(), r); err != nil || string(reply) != `{"name":"mail","removed":false}` || r.Index() != 7 {
		t.Errorf("%s, %v, index %d", reply, err, r.Index())
	}
	if reply, err := handle(t.Context(), request("", "mail")); err != nil || string(reply) != `{"name":"","removed":false}` {
		t.Errorf("an empty body: %s, %v", reply, err)
	}
	var invalid *job.InvalidError
	if _, err := handle(t.Context(), request(`{"nme":"mail"}`, "mail")); !errors.As(err, &invalid) {
		t.Errorf("an unknown key: %v", err)
	}
	ignoring := JSONReply(func(context.Context) (*api.Removed, error) { return &api.Removed{Removed: true}, nil })
	if reply, err := ignoring(t.Context(), request(`{"nme":"mail"}`, "")); err != nil || string(reply) != `{"name":"","removed":true}` {
		t.Errorf("a handler without a request: %s, %v", reply, err)
	}
}

// Replies of indexed endpoints have the index at the time of the request, unless the
// handler sets another.
func TestBind_Index(t *testing.T) {
	table := []api.Endpoint{{Name: "status", Subject: "yard.node.*.status", Indexed: true}, {Name: "queue-add", Indexed: true}, {Name: "health"}}
	set := JSONReply(func(ctx context.Context) (*api.Removed, error) { SetIndex(ctx, 9); return &api.Removed{}, nil })
	none := JSONReply(func(context.Context) (*api.Removed, error) { return &api.Removed{}, nil })
	l := ledger.New()
	l.Apply(ledger.Stamp{Index: 8}, nil)
	b := Binding{Node: "n1", View: func(view func(*ledger.Ledger)) { view(l) }}
	endpoints := b.Bind(table, map[string]Handler{"status": none, "queue-add": set, "health": none})
	for i, want := range []uint64{8, 9, 0} {
		r := request("", "")
		if _, err := endpoints[i].Handle(t.Context(), r); err != nil || r.Index() != want {
			t.Errorf("%s: index %d, want %d; %v", endpoints[i].Name, r.Index(), want, err)
		}
	}
	if endpoints[0].Subject != "yard.node.n1.status" {
		t.Error(endpoints[0].Subject)
	}
}
