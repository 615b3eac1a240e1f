package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// actorKey is the key of the actor in a context.
type actorKey struct{}

// WithActor returns a context of a request by the actor that find returns. find is
// called only for commands that record who asked for them.
func WithActor(ctx context.Context, find func() ledger.Actor) context.Context {
	return context.WithValue(ctx, actorKey{}, find)
}

// ActorOf returns the actor of the request that ctx belongs to, the zero Actor if
// it belongs to none.
func ActorOf(ctx context.Context) ledger.Actor {
	if find, ok := ctx.Value(actorKey{}).(func() ledger.Actor); ok {
		return find()
	}
	return ledger.Actor{}
}

// SetActor sets the actor of ctx in c, unless c does not record one or has one.
func SetActor(ctx context.Context, c ledger.Command) {
	if asked, ok := c.(ledger.Askable); ok && asked.Actor() == (ledger.Actor{}) {
		asked.SetActor(ActorOf(ctx))
	}
}

// HTTPActor returns a function that returns the actor of a request over HTTP, as in
// [Request].Actor. name is that of the user, or else the remote address.
func HTTPActor(name, reason string) func() ledger.Actor {
	return func() ledger.Actor { return ledger.Actor{Name: name, Door: ledger.DoorHTTP, Reason: reason} }
}

// actorOf returns the sender of the request with a header and a reply subject.
func (s *Server) actorOf(header nats.Header, reply string) ledger.Actor {
	actor := ledger.Actor{Name: s.clientName(header, reply), Door: ledger.DoorNATS, Reason: header.Get(api.HeaderReason)}
	if header.Get(api.HeaderClient) == string(ledger.DoorCLI) {
		actor.Door = ledger.DoorCLI
	}
	return actor
}

// clientInfo returns who has sent a request, by the header that the server adds to the
// requests of users; the zero ClientInfo if there is none.
func clientInfo(header nats.Header) (info server.ClientInfo) {
	if json.Unmarshal([]byte(header.Get(server.ClientInfoHdr)), &info) != nil {
		return server.ClientInfo{}
	}
	return info
}

// clientName returns the name of the user who has sent a request, or else the client's
// address. To requests of users the server adds the header that is read here, whatever
// the client has put there; without users there is none.
func (s *Server) clientName(header nats.Header, reply string) string {
	const unknown = "unknown"
	if len(s.local.Config.Users) == 0 {
		return cmp.Or(s.local.ClientAddress(reply), unknown)
	}
	info := clientInfo(header)
	return cmp.Or(s.local.Config.UserName(info.User), strings.TrimSpace(info.Host), unknown)
}

// Sender is what the user who has sent a request may do. The zero Sender may do everything that
// the request's endpoint offers.
type Sender struct {
	Queues []string // the only queues that it may use, and whose jobs it may read; nil: all
	Quota  string   // the name under which its new queues are counted; "": they are not
}

// senderOf returns the sender of a request, the zero Sender without users.
func (s *Server) senderOf(header nats.Header) Sender {
	cfg := &s.local.Config
	if len(cfg.Users) == 0 {
		return Sender{}
	}
	u := cfg.User(clientInfo(header).User)
	if u == nil {
		u = &embedded.User{Role: cfg.Anonymous}
	}
	return Sender{Queues: u.Queues, Quota: u.QuotaName()}
}

// senderKey is the key of a request's sender in a context.
type senderKey struct{}

// WithSender returns a context of a request by the sender that find returns. find is called
// only where it matters who has sent the request.
func WithSender(ctx context.Context, find func() Sender) context.Context {
	return context.WithValue(ctx, senderKey{}, find)
}

// senderIn returns a function that returns the sender of the request that ctx belongs to, nil
// if the sender may do everything.
func senderIn(ctx context.Context) func() Sender {
	find, _ := ctx.Value(senderKey{}).(func() Sender)
	return find
}

// QuotaOf returns a function that returns the Quota of the request that ctx belongs to, nil if
// its new queues are not counted.
func QuotaOf(ctx context.Context) func() string {
	if find := senderIn(ctx); find != nil {
		return func() string { return find().Quota }
	}
	return nil
}

// QueuesOf returns the only queues that the sender of the request that ctx belongs to may
// use, nil if it may use all.
func QueuesOf(ctx context.Context) []string {
	if find := senderIn(ctx); find != nil {
		return find().Queues
	}
	return nil
}

// MayUse reports whether the sender of the request that ctx belongs to may use a queue and
// read its jobs.
func MayUse(ctx context.Context, queue string) bool {
	queues := QueuesOf(ctx)
	return len(queues) == 0 || slices.Contains(queues, queue)
}
