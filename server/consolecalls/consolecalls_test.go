package consolecalls

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/web/console/calls"
	"github.com/yardmaster-dev/yardmaster/web/console/pages"
)

// yard has the callers of its members by name; requests to others fail.
type yard map[string]*Caller

// newYard returns members whose endpoints reply with the request, the member, the actor and the quota.
func newYard(listeners map[string]string) yard {
	y := yard{}
	var members []ledger.Member
	for _, node := range []string{"n1", "n2", "n3"} { // n3 does not answer
		members = append(members, ledger.Member{Node: node, Route: "10.0.0." + node[1:] + ":6222"})
	}
	for node, listener := range listeners {
		endpoint := func(name string) []cluster.Endpoint {
			return []cluster.Endpoint{{Endpoint: api.Endpoint{Name: name}, Handle: func(_ context.Context, r *cluster.Request) ([]byte, error) {
				if string(r.Data) == "refuse" {
					return nil, errors.New("refused")
				}
				return json.Marshal([]any{node, string(r.Data), r.Token(), r.Header(api.HeaderReason), r.Actor(), r.Sender().Quota})
			}}, {Endpoint: api.Endpoint{Name: "async"}}}
		}
		y[node] = &Caller{
			Node: node, Endpoints: func() []cluster.Endpoint { return endpoint("queue-pause") }, NodeEndpoints: func() []cluster.Endpoint { return endpoint("drain") },
			Request: y.request, Members: func() []ledger.Member { return members }, HTTP: listener,
		}
	}
	return y
}

func (y yard) request(ctx context.Context, node, verb string, request, reply any) error {
	if y[node] == nil {
		return errors.New("no answer")
	}
	payload, err := json.Marshal(request)
	if err != nil {
		return err
	}
	text, err := y[node].PeerHandlers()[verb](ctx, payload)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, reply)
}

// A request is served by this node, or by the member that it names, with its actor, the
// console as the door, and the reason. What this node serves knows whose new queues it counts.
func TestCaller_Call(t *testing.T) {
	y := newYard(map[string]string{"n1": "", "n2": ""})
	actor := ledger.Actor{Name: "ann", Door: ledger.DoorConsole, Reason: "tests"}
	for _, c := range []struct {
		call calls.Call
		want []any // nil means an error with the code
		code string
	}{
		{calls.Call{Endpoint: "queue-pause", Data: []byte("{}"), Token: "mail"}, []any{"n1", "{}", "mail", "tests", actor, "ann"}, ""},
		{calls.Call{Endpoint: "drain", Node: "n1"}, []any{"n1", "", "", "tests", actor, "ann"}, ""},
		{calls.Call{Endpoint: "drain", Node: "n2"}, []any{"n2", "", "", "tests", actor, ""}, ""},
		{calls.Call{Endpoint: "drain", Node: "n3"}, nil, api.CodeInternal},
		{calls.Call{Endpoint: "status", Node: "n2"}, nil, api.CodeInvalid}, // no act
		{calls.Call{Endpoint: "resume", Node: "n2"}, nil, api.CodeNotFound},
		{calls.Call{Endpoint: "drain"}, nil, api.CodeNotFound},
		{calls.Call{Endpoint: "async"}, nil, api.CodeNotFound},
		{calls.Call{Endpoint: "queue-pause", Data: []byte("refuse")}, nil, api.CodeInternal},
	} {
		c.call.Actor, c.call.Quota, c.call.Reason = "ann", "ann", "tests"
		reply, err := y["n1"].Call(t.Context(), &c.call)
		if c.want == nil {
			if problem, ok := errors.AsType[*api.Error](err); !ok || problem.Code != c.code {
				t.Errorf("%s at %q: %s, %v; want the code %s", c.call.Endpoint, c.call.Node, reply, err, c.code)
			}
			continue
		}
		want, _ := json.Marshal(c.want)
		if err != nil || string(reply) != string(want) {
			t.Errorf("%s at %q: %s, %v; want %s", c.call.Endpoint, c.call.Node, reply, err, want)
		}
	}
}

// The consoles of other members are listed with addresses that browsers reach. A member that
// does not answer, or listens on its own host only, has none.
func TestCaller_Peers(t *testing.T) {
	for _, c := range []struct{ here, there, want string }{
		{"10.0.0.1:4280", "10.0.0.2:4280", "http://10.0.0.2:4280"},
		{"10.0.0.1:4280", "0.0.0.0:4281", "http://10.0.0.2:4281"},
		{"10.0.0.1:4280", "[::]:4281", "http://10.0.0.2:4281"},
		{"10.0.0.1:4280", "127.0.0.1:4280", ""},
		{"127.0.0.1:4280", "127.0.0.1:4281", "http://127.0.0.1:4281"},
		{"127.0.0.1:4280", "", ""},
	} {
		y := newYard(map[string]string{"n1": c.here, "n2": c.there})
		if got, want := y["n1"].Peers(t.Context()), []pages.Peer{{Node: "n2", URL: c.want}, {Node: "n3"}}; !reflect.DeepEqual(got, want) {
			t.Errorf("from %s, n2 at %q: %v, want %v", c.here, c.there, got, want)
		}
		y["n2"].TLS = true
		if got := y["n1"].Peers(t.Context())[0].URL; c.want != "" && got != "https"+c.want[len("http"):] {
			t.Errorf("with TLS: %s", got)
		}
	}
}

// Events are returned with the position after them; without events it stays the same.
func TestExpand(t *testing.T) {
	if lines, next, err := expand(nil, 7, nil); len(lines) > 0 || next != 7 || err != nil {
		t.Errorf("%q, %d, %v; want nothing", lines, next, err)
	}
	line := []byte(`{"event":"run.heartbeat","seq":1}` + "\n")
	if lines, next, err := expand([]streams.Batch{{Seq: 7, Body: line}, {Seq: 9, Body: line}}, 7, nil); err != nil || next != 10 || string(lines) != string(line)+string(line) {
		t.Errorf("%q, %d, %v", lines, next, err)
	}
	if _, next, err := expand([]streams.Batch{{Seq: 7}}, 7, errors.New("no leader")); err == nil || next != 7 {
		t.Errorf("%d, %v; want the error", next, err)
	}
}
