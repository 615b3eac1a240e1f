package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"
)

// Limits of services.
const (
	maxHandlers = 256  // concurrent requests, other than long-running ones
	maxWaiters  = 4096 // concurrent long-running requests
	// Requests that may be pending for one endpoint. They allow a burst of enqueue
	// requests; more are dropped, and their callers time out.
	endpointQueueLen   = 65536
	endpointQueueBytes = 256 << 20
	maxReply           = embedded.MaxMessage - 4<<10 // bytes without the reply's headers
)

// Service is a NATS micro service of this node, which `nats micro ls`, `info`,
// `stats` and `ping` show.
type Service struct {
	Name        string // [A-Za-z0-9_-]+
	Version     string // semantic version
	Description string
	Metadata    func() map[string]string // called for each discovery request; nil: none
	Endpoints   []Endpoint
}

// Endpoint is an endpoint of the API with its handler: either Handle or HandleAsync.
type Endpoint struct {
	api.Endpoint
	Metadata map[string]string // besides the summary, which is the description

	// Handle handles a request and returns the reply. It runs concurrently with
	// other requests; beyond 256 at a time, requests are refused as unavailable.
	// Long-running requests have their own limit of 4096, so that they do not delay
	// short ones.
	Handle func(ctx context.Context, r *Request) ([]byte, error)
	// HandleAsync accepts a request and returns at once; the reply is sent later,
	// once, from any goroutine. Requests are passed in order of arrival. Those
	// without a reply subject are counted like all requests, including errors. Those
	// over NATS have no Actor.
	HandleAsync func(r *Request)
}

// Request is a request of a client over NATS or another transport.
type Request struct {
	Data      []byte              // JSON, or empty
	OnRelease func()              // called by [Request.Release]; may be nil
	Actor     func() ledger.Actor // returns who sends the request; nil: not known
	Sender    func() Sender       // returns what the sender may do; nil: everything

	token     string
	transport transport
	index     atomic.Uint64 // of the last entry that the reply reflects; 0 means none
	event     atomic.Uint64 // likewise, number of the last event
	asOf      string        // see [Request.SetAsOf]
}

// transport is how a request came: its headers, and the way of its reply.
type transport interface {
	// header returns the value of a header, "" if it is missing.
	header(name string) string
	// respond sends either data or apiErr.
	respond(data []byte, apiErr *api.Error) error
}

// callbacks is a transport other than NATS.
type callbacks struct {
	headerOf func(name string) string
	reply    func(data []byte, apiErr *api.Error) error
}

func (c *callbacks) header(name string) string                    { return c.headerOf(name) }
func (c *callbacks) respond(data []byte, apiErr *api.Error) error { return c.reply(data, apiErr) }

// NewRequest returns a request received over a transport other than NATS. token is
// the equivalent of the subject's last token; header returns "" for a missing
// header; reply sends either data or apiErr.
func NewRequest(data []byte, token string, header func(name string) string, reply func(data []byte, apiErr *api.Error) error) *Request {
	return &Request{Data: data, token: token, transport: &callbacks{header, reply}}
}

// Token returns the last token of the subject, such as the queue of
// yard.enqueue.<queue>.
func (r *Request) Token() string { return r.token }

// Header returns the value of a header, "" if it is missing.
func (r *Request) Header(name string) string { return r.transport.header(name) }

// SetIndex sets the index of a ledger entry that the reply reflects. The reply carries the
// highest one in the header [api.HeaderIndex]; 0 means none. SetIndex may be called
// concurrently, as by requests that commit several commands.
func (r *Request) SetIndex(index uint64) { raise(&r.index, index) }

// Index returns the highest value set by [Request.SetIndex].
func (r *Request) Index() uint64 { return r.index.Load() }

// SetEvent is like SetIndex for the number of an event and the header [api.HeaderEvent].
func (r *Request) SetEvent(number uint64) { raise(&r.event, number) }

// Event returns the highest value set by [Request.SetEvent].
func (r *Request) Event() uint64 { return r.event.Load() }

// SetAsOf sets the header [api.HeaderAsOf] of the reply. It must be called before the request is handled.
func (r *Request) SetAsOf(t time.Time) { r.asOf = t.UTC().Format(time.RFC3339Nano) }

// AsOf returns the value of the header [api.HeaderAsOf], "" if the reply has none.
func (r *Request) AsOf() string { return r.asOf }

// raise sets n to value if that is higher.
func raise(n *atomic.Uint64, value uint64) {
	for {
		highest := n.Load()
		if value <= highest || n.CompareAndSwap(highest, value) {
			return
		}
	}
}

// ProducerHeaders returns the headers that belong to a job.
func (r *Request) ProducerHeaders() job.Headers { return streams.ProducerHeaders(r.Header) }

// Release drops Data and calls OnRelease. Handlers that go on to wait call it to
// free memory early.
func (r *Request) Release() {
	r.Data = nil
	if r.OnRelease != nil {
		r.OnRelease()
	}
}

// Respond sends the reply. A reply that is too large for the transport is replaced
// by an error.
func (r *Request) Respond(data []byte) error { return r.transport.respond(data, nil) }

// RespondError replies with err, converted by [AsAPIError].
func (r *Request) RespondError(err error) error { return r.transport.respond(nil, AsAPIError(err)) }

// natsRequest is a request that came over NATS, and its transport: one object, because
// there may be very many. It does not refer to the message, whose data may be released
// before.
type natsRequest struct {
	Request
	server    *Server
	endpoint  *activeEndpoint
	msgHeader nats.Header
	reply     string
	started   time.Time
}

func (r *natsRequest) header(name string) string { return r.msgHeader.Get(name) }

// actor returns who sends the request.
func (r *natsRequest) actor() ledger.Actor { return r.server.actorOf(r.msgHeader, r.reply) }

// sender returns what the sender of the request may do.
func (r *natsRequest) sender() Sender { return r.server.senderOf(r.msgHeader) }

// respond sends data, or apiErr if it is not nil, and counts the reply. A reply that is
// too large for a message is replaced by an error.
func (r *natsRequest) respond(data []byte, apiErr *api.Error) error {
	if len(data) > maxReply {
		apiErr = AsAPIError(fmt.Errorf("reply of %d bytes, maximum %d: %w", len(data), maxReply, job.ErrTooLarge))
	}
	r.endpoint.record(r.started, apiErr)
	if r.reply == "" {
		return nil
	}
	nc := r.server.local.API.Conn
	if apiErr != nil {
		return nc.PublishMsg(errorReply(r.reply, r.server.local.Config.Node, apiErr))
	}
	if r.Index() == 0 && r.asOf == "" {
		return nc.Publish(r.reply, data)
	}
	header := nats.Header{}
	if r.asOf != "" {
		header.Set(api.HeaderAsOf, r.asOf)
	}
	if index := r.Index(); index > 0 {
		header.Set(api.HeaderIndex, strconv.FormatUint(index, 10))
	}
	if event := r.Event(); event > 0 {
		header.Set(api.HeaderEvent, strconv.FormatUint(event, 10))
	}
	return nc.PublishMsg(&nats.Msg{Subject: r.reply, Header: header, Data: data})
}

// Serve serves a service until ctx has ended and all handlers have returned. It
// receives only requests of this node's own clients, see mapLocalSubjects.
func (s *Server) Serve(ctx context.Context, service Service) error {
	var handlers, waiters errgroup.Group
	handlers.SetLimit(maxHandlers)
	waiters.SetLimit(maxWaiters)
	groupOf := func(e *activeEndpoint) *errgroup.Group {
		if e.LongRunning {
			return &waiters
		}
		return &handlers
	}
	subs, err := s.openService(ctx, &service, groupOf)
	if err == nil {
		<-ctx.Done()
	}
	return errors.Join(err, embedded.EndSubscriptions((*nats.Subscription).Drain, subs...), handlers.Wait(), waiters.Wait())
}

// openService subscribes to the subjects of a service and to its discovery. groupOf
// returns the group in which an endpoint's handlers run. With an error openService also
// returns the subscriptions that it has made.
func (s *Server) openService(ctx context.Context, service *Service, groupOf func(*activeEndpoint) *errgroup.Group) (subs []*nats.Subscription, err error) {
	instance := &microService{Service: service, node: s.local.Config.Node, started: time.Now().UTC()}
	for i := range service.Endpoints {
		e := &activeEndpoint{Endpoint: &service.Endpoints[i], errorsByCode: map[string]uint64{}}
		sub, err := s.openEndpoint(ctx, e, groupOf(e))
		if err != nil {
			return subs, err
		}
		subs = append(subs, sub)
		instance.endpoints = append(instance.endpoints, e)
	}
	discovery, err := s.serveMicro(instance)
	return append(subs, discovery...), err
}

// mapLocalSubjects maps the public request subjects to subjects of this node, so
// that each node serves its own clients. A queue group over all nodes would also
// pick a node that has just died.
func (s *Server) mapLocalSubjects() error {
	account, err := s.local.NATS.LookupAccount(embedded.AccountYard)
	if err != nil {
		return err
	}
	local := func(subject string) string { return subjects.LocalSubject(s.local.Config.Node, subject) }
	mappings := map[string]string{
		api.SubjectEnqueue + ".*": local(api.SubjectEnqueue) + ".$1",
		api.SubjectCall + ".*":    local(api.SubjectCall) + ".$1",
		api.SubjectExec:           local(api.SubjectExec),
		api.SubjectExec + ".*":    local(api.SubjectExec) + ".$1",
		api.SubjectSnapshot:       local(api.SubjectSnapshot),
		api.SubjectStatus:         local(api.SubjectStatus),
		api.SubjectAPI + ".>":     local(api.SubjectAPI) + ".>",
		subjects.Consumers + ".>": local(subjects.Consumers) + ".>",
	}
	for _, verb := range subjects.NodeVerbs { // to the node in the subject
		mappings[subjects.NodeSubject("*", verb)] = subjects.NodeVerbSubject("$1", verb)
	}
	for public, destination := range mappings {
		if err := account.AddMapping(public, destination); err != nil {
			return err
		}
	}
	return nil
}

// openEndpoint subscribes to the endpoint's subject. Its handler runs in a goroutine of
// group for each request, as long as that is within its limit.
func (s *Server) openEndpoint(ctx context.Context, e *activeEndpoint, group *errgroup.Group) (*nats.Subscription, error) {
	if (e.Handle == nil) == (e.HandleAsync == nil) {
		return nil, fmt.Errorf("endpoint %s must have either Handle or HandleAsync", e.Name)
	}
	node := s.local.Config.Node
	verb, ofNode := strings.CutPrefix(e.Subject, subjects.NodeSubject(node, ""))
	if ofNode && !slices.Contains(subjects.NodeVerbs, verb) {
		return nil, fmt.Errorf("endpoint %s is not one of the verbs %v that clients may send to a node", e.Name, subjects.NodeVerbs)
	}
	receive := func(m *nats.Msg) {
		if m.Reply == "" && !e.AllowNoReply || subjects.IsReserved(m.Reply) {
			return // the reply could not be sent
		}
		e.requests.Add(1)
		r := &natsRequest{server: s, endpoint: e, msgHeader: m.Header, reply: m.Reply, started: time.Now()}
		r.Data, r.token, r.transport = m.Data, m.Subject[strings.LastIndexByte(m.Subject, '.')+1:], r
		if s.hasUsers {
			r.Sender = r.sender
		}
		if e.HandleAsync != nil {
			s.handleAsync(e.Endpoint, &r.Request)
			return
		}
		r.Actor = r.actor
		if !group.TryGo(func() error { s.handle(ctx, e.Endpoint, &r.Request); return nil }) {
			s.logSendError(e.Endpoint, r.RespondError(&job.UnavailableError{Reason: "too many requests at once", RetryAfter: 100 * time.Millisecond}))
		}
	}
	sub, err := s.local.API.Conn.Subscribe(subjects.LocalSubject(node, e.Subject), receive)
	if err == nil {
		err = sub.SetPendingLimits(endpointQueueLen, endpointQueueBytes)
	}
	if err != nil {
		return nil, fmt.Errorf("open endpoint %s: %w", e.Name, err)
	}
	return sub, nil
}

// handle runs an endpoint's handler and sends its reply.
func (s *Server) handle(ctx context.Context, e *Endpoint, r *Request) {
	defer crash.Contain(s.local.Log, crash.NATS, func(err error) { s.logSendError(e, r.RespondError(err)) })
	data, err := e.Handle(ctx, r)
	if err != nil {
		err = r.RespondError(err)
	} else {
		err = r.Respond(data)
	}
	s.logSendError(e, err)
}

// handleAsync passes a request to an endpoint's handler, which replies later.
func (s *Server) handleAsync(e *Endpoint, r *Request) {
	defer crash.Contain(s.local.Log, crash.NATS, func(err error) { s.logSendError(e, r.RespondError(err)) })
	e.HandleAsync(r)
}

// logSendError logs that a reply could not be sent. The client times out and
// retries.
func (s *Server) logSendError(e *Endpoint, err error) {
	if err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		s.local.Log.Warn("reply not sent", "endpoint", e.Name, "err", err)
	}
}
