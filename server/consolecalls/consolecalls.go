// Package consolecalls connects the console to a node: its requests to the endpoints of the
// API, to the endpoints of other members, and to the history.
package consolecalls

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/ledger/history"
	"github.com/yardmaster-dev/yardmaster/web/console/calls"
	"github.com/yardmaster-dev/yardmaster/web/console/pages"
	"github.com/yardmaster-dev/yardmaster/web/console/tail"
)

// Requests between nodes: verbAct asks for an endpoint of [api.NodeEndpoints] on behalf of a
// user of the console at another member, verbAddress for the address of the HTTP listener.
const (
	verbAct     = "console_act"
	verbAddress = "console_address"
)

// addressTimeout is how long a member may take to answer with its address.
const addressTimeout = time.Second

// nodeActs are the endpoints that one member asks another for.
var nodeActs = []string{"drain", "resume", "stepdown"}

// Caller sends the requests of the console. All fields are required.
type Caller struct {
	Node string // this member's name
	// Endpoints returns the endpoints of [api.Endpoints], NodeEndpoints those of
	// [api.NodeEndpoints] at this node.
	Endpoints, NodeEndpoints func() []cluster.Endpoint
	// Request sends a request to another member.
	Request func(ctx context.Context, node, verb string, request, reply any) error
	// Members returns the members with the addresses of their routes.
	Members func() []ledger.Member
	HTTP    string // address of this node's HTTP listener
	TLS     bool   // of that listener
	Reader  *streams.Reader
}

// Call sends a request of the console.
func (c *Caller) Call(ctx context.Context, call *calls.Call) ([]byte, error) {
	switch {
	case call.Node == "":
		return serve(ctx, c.Endpoints(), call)
	case call.Node == c.Node:
		return serve(ctx, c.NodeEndpoints(), call)
	}
	act := nodeAct{Endpoint: call.Endpoint, Actor: call.Actor, Reason: call.Reason}
	var reply json.RawMessage
	if err := c.Request(ctx, call.Node, verbAct, &act, &reply); err != nil {
		return nil, cluster.AsAPIError(err)
	}
	return reply, nil
}

// serve calls the handler of an endpoint.
func serve(ctx context.Context, endpoints []cluster.Endpoint, call *calls.Call) ([]byte, error) {
	i := slices.IndexFunc(endpoints, func(e cluster.Endpoint) bool { return e.Name == call.Endpoint })
	if i < 0 || endpoints[i].Handle == nil {
		return nil, &api.Error{Code: api.CodeNotFound, Text: fmt.Sprintf("this node has no endpoint %q", call.Endpoint)}
	}
	header := func(name string) string {
		if name == api.HeaderReason {
			return call.Reason
		}
		return ""
	}
	r := cluster.NewRequest(call.Data, call.Token, header, nil)
	r.Actor = func() ledger.Actor {
		return ledger.Actor{Name: call.Actor, Door: ledger.DoorConsole, Reason: call.Reason}
	}
	r.Sender = func() cluster.Sender { return cluster.Sender{Quota: call.Quota} }
	data, err := endpoints[i].Handle(ctx, r)
	if err != nil {
		return nil, cluster.AsAPIError(err)
	}
	return data, nil
}

// nodeAct asks another member to act on itself.
type nodeAct struct {
	Endpoint string `json:"endpoint"`
	Actor    string `json:"actor"`
	Reason   string `json:"reason,omitempty"`
}

// address is where a member serves HTTP.
type address struct {
	Addr string `json:"addr"` // host:port; "" without a listener
	TLS  bool   `json:"tls"`
}

// PeerHandlers returns the handlers of requests from other members, by verb.
func (c *Caller) PeerHandlers() map[string]func(context.Context, []byte) ([]byte, error) {
	return map[string]func(context.Context, []byte) ([]byte, error){
		verbAct: func(ctx context.Context, payload []byte) ([]byte, error) {
			var act nodeAct
			if err := json.Unmarshal(payload, &act); err != nil {
				return nil, &api.Error{Code: api.CodeInvalid, Text: err.Error()}
			}
			if !slices.Contains(nodeActs, act.Endpoint) {
				return nil, &api.Error{Code: api.CodeInvalid, Text: fmt.Sprintf("%q is not an act on a member", act.Endpoint)}
			}
			return serve(ctx, c.NodeEndpoints(), &calls.Call{Endpoint: act.Endpoint, Actor: act.Actor, Reason: act.Reason})
		},
		verbAddress: func(context.Context, []byte) ([]byte, error) {
			return json.Marshal(address{Addr: c.HTTP, TLS: c.TLS})
		},
	}
}

// Peers asks the other members where they serve the console. It leaves the URL empty of one
// that does not answer, or serves it on its own host only.
func (c *Caller) Peers(ctx context.Context) []pages.Peer {
	ctx, cancel := context.WithTimeout(ctx, addressTimeout)
	defer cancel()
	members := slices.DeleteFunc(c.Members(), func(m ledger.Member) bool { return m.Node == c.Node })
	peers := make([]pages.Peer, len(members))
	var requests crash.Group
	for i, m := range members {
		requests.Run(func() {
			peers[i].Node = m.Node
			var at address
			if c.Request(ctx, m.Node, verbAddress, struct{}{}, &at) == nil {
				peers[i].URL = peerURL(at, m.Route, c.HTTP)
			}
		})
	}
	_ = requests.Wait() // the functions return no errors
	return peers
}

// peerURL returns the URL of a member's listener as browsers of this node's console reach it,
// "" if they cannot: a listener of loopback is reached only on the same host. route is the
// address of the member's route, here that of this node's listener.
func peerURL(at address, route, here string) string {
	host, port, err := net.SplitHostPort(at.Addr)
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		if host, _, err = net.SplitHostPort(route); err != nil {
			return ""
		}
	} else if ip != nil && ip.IsLoopback() {
		hereHost, _, err := net.SplitHostPort(here)
		if ip := net.ParseIP(hereHost); err != nil || ip == nil || !ip.IsLoopback() {
			return ""
		}
	}
	scheme := "http"
	if at.TLS {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}

// Events returns the history of the yard for the console.
func (c *Caller) Events() tail.Source {
	const limit = 64
	return tail.Source{
		Since: func(ctx context.Context, at time.Time) ([]byte, uint64, error) {
			batches, err := c.Reader.ReadHistorySince(ctx, at, limit)
			return expand(batches, 0, err)
		},
		From: func(ctx context.Context, from uint64) ([]byte, uint64, error) {
			batches, err := c.Reader.ReadHistory(ctx, from, limit)
			return expand(batches, from, err)
		},
		End: func(ctx context.Context) (uint64, error) {
			last, _, err := c.Reader.LastPublished(ctx, subjects.StreamEvents)
			return last + 1, err
		},
	}
}

// expand returns the events of batches and the sequence after them, from without any.
func expand(batches []streams.Batch, from uint64, err error) ([]byte, uint64, error) {
	if err != nil {
		return nil, from, err
	}
	var body []byte
	for _, b := range batches {
		body = append(body, b.Body...)
		from = b.Seq + 1
	}
	lines, err := history.Expand(body)
	return lines, from, err
}
