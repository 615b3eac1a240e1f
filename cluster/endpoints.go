package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"

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
	maxReplyHeader     = 4 << 10 // bytes of a reply's headers
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
	// without a reply subject are counted like all requests, including errors.
	HandleAsync func(r *Request)
}

// Request is a request of a client over NATS or another transport.
type Request struct {
	Data      []byte // JSON, or empty
	OnRelease func() // called by [Request.Release]; may be nil

	token   string
	header  func(name string) string
	respond func(data []byte, apiErr *api.Error) error
	index   uint64
}

// NewRequest returns a request received over a transport other than NATS. token is
// the equivalent of the subject's last token; header returns "" for a missing
// header; reply sends either data or apiErr.
func NewRequest(data []byte, token string, header func(name string) string, reply func(data []byte, apiErr *api.Error) error) *Request {
	return &Request{Data: data, token: token, header: header, respond: reply}
}

// Token returns the last token of the subject, such as the queue of
// yard.enqueue.<queue>.
func (r *Request) Token() string { return r.token }

// Header returns the value of a header, "" if it is missing.
func (r *Request) Header(name string) string { return r.header(name) }

// SetIndex sets the index of the last ledger entry that the reply reflects. The
// reply carries it in the header [api.HeaderIndex]; 0 means none.
func (r *Request) SetIndex(index uint64) { r.index = index }

// Index returns the value set by [Request.SetIndex].
func (r *Request) Index() uint64 { return r.index }

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
func (r *Request) Respond(data []byte) error { return r.respond(data, nil) }

// RespondError replies with err, converted by [AsAPIError].
func (r *Request) RespondError(err error) error { return r.respond(nil, AsAPIError(err)) }

// natsResponder sends the reply to a request that came over NATS.
type natsResponder struct {
	request     *Request
	node, reply string
	nc          *nats.Conn
	stats       *activeEndpoint
	started     time.Time
}

func (r *natsResponder) respond(data []byte, apiErr *api.Error) error {
	if len(data) > embedded.MaxMessage-maxReplyHeader {
		apiErr = AsAPIError(fmt.Errorf("reply of %d bytes, maximum %d: %w", len(data), embedded.MaxMessage-maxReplyHeader, job.ErrTooLarge))
	}
	r.stats.record(r.started, apiErr)
	if r.reply == "" {
		return nil
	}
	if apiErr != nil {
		return r.nc.PublishMsg(errorReply(r.reply, r.node, apiErr))
	}
	m := &nats.Msg{Subject: r.reply, Data: data}
	if index := r.request.Index(); index > 0 {
		m.Header = nats.Header{api.HeaderIndex: []string{strconv.FormatUint(index, 10)}}
	}
	return r.nc.PublishMsg(m)
}

// Serve serves a service until ctx has ended and all handlers have returned. It
// receives only requests of this node's own clients, see mapLocalSubjects.
func (s *Server) Serve(ctx context.Context, service Service) error {
	var work, waitGroup errgroup.Group
	work.SetLimit(maxHandlers)
	waitGroup.SetLimit(maxWaiters)
	var endpoints []*activeEndpoint
	var subs []*nats.Subscription
	var err error
	for i := range service.Endpoints {
		e := &activeEndpoint{Endpoint: &service.Endpoints[i], errorsByCode: map[string]uint64{}}
		group := &work
		if e.LongRunning {
			group = &waitGroup
		}
		if err == nil {
			endpoints = append(endpoints, e)
			var sub *nats.Subscription
			if sub, err = s.openEndpoint(ctx, e, group); err == nil {
				subs = append(subs, sub)
			}
		}
	}
	if err == nil {
		var verbs []*nats.Subscription
		verbs, err = s.serveMicro(&microService{Service: &service, node: s.local.Config.Node, started: time.Now().UTC(), endpoints: endpoints})
		subs = append(subs, verbs...)
	}
	if err == nil {
		<-ctx.Done()
	}
	return errors.Join(err, embedded.EndSubscriptions((*nats.Subscription).Drain, subs...), work.Wait(), waitGroup.Wait())
}

// mapLocalSubjects maps the public request subjects to subjects of this node, so
// that each node serves its own clients. A queue group over all nodes would also
// pick a node that has just died.
func (s *Server) mapLocalSubjects() error {
	acc, err := s.local.NATS.LookupAccount(embedded.AccountYard)
	if err != nil {
		return err
	}
	node := s.local.Config.Node
	mapped := map[string]string{
		api.SubjectEnqueue + ".*": subjects.LocalSubject(node, api.SubjectEnqueue) + ".$1",
		api.SubjectCall + ".*":    subjects.LocalSubject(node, api.SubjectCall) + ".$1",
		api.SubjectExec:           subjects.LocalSubject(node, api.SubjectExec),
		api.SubjectExec + ".*":    subjects.LocalSubject(node, api.SubjectExec) + ".$1",
		api.SubjectSnapshot:       subjects.LocalSubject(node, api.SubjectSnapshot),
		api.SubjectStatus:         subjects.LocalSubject(node, api.SubjectStatus),
		api.SubjectAPI + ".>":     subjects.LocalSubject(node, api.SubjectAPI) + ".>",
		subjects.Consumers + ".>": subjects.LocalSubject(node, subjects.Consumers) + ".>",
	}
	for _, verb := range subjects.NodeVerbs { // to the node in the subject
		mapped[subjects.NodeSubject("*", verb)] = subjects.NodeVerbSubject("$1", verb)
	}
	for src, dest := range mapped {
		if err := acc.AddMapping(src, dest); err != nil {
			return err
		}
	}
	return nil
}

// openEndpoint subscribes to the endpoint's subject.
func (s *Server) openEndpoint(ctx context.Context, e *activeEndpoint, work *errgroup.Group) (*nats.Subscription, error) {
	if (e.Handle == nil) == (e.HandleAsync == nil) {
		return nil, fmt.Errorf("endpoint %s must have either Handle or HandleAsync", e.Name)
	}
	if verb, ofNode := strings.CutPrefix(e.Subject, subjects.NodeSubject(s.local.Config.Node, "")); ofNode && !slices.Contains(subjects.NodeVerbs, verb) {
		return nil, fmt.Errorf("endpoint %s is not one of the verbs %v that clients may send to a node", e.Name, subjects.NodeVerbs)
	}
	handle := func(m *nats.Msg) {
		if m.Reply == "" && !e.AllowNoReply || isReservedReply(m.Reply) {
			return // no one would see the reply
		}
		e.requests.Add(1)
		d := &natsResponder{node: s.local.Config.Node, reply: m.Reply, nc: s.local.API.Conn, stats: e, started: time.Now()}
		r := NewRequest(m.Data, m.Subject[strings.LastIndexByte(m.Subject, '.')+1:], m.Header.Get, d.respond)
		d.request = r
		if e.HandleAsync != nil {
			e.HandleAsync(r)
			return
		}
		if !work.TryGo(func() error { s.handle(ctx, e.Endpoint, r); return nil }) {
			s.logSendError(e.Endpoint, r.RespondError(&job.UnavailableError{Reason: "too many requests at once", RetryAfter: 100 * time.Millisecond}))
		}
	}
	sub, err := s.local.API.Conn.Subscribe(subjects.LocalSubject(s.local.Config.Node, e.Subject), handle)
	if err == nil {
		err = sub.SetPendingLimits(endpointQueueLen, endpointQueueBytes)
	}
	if err != nil {
		return nil, fmt.Errorf("open endpoint %s: %w", e.Name, err)
	}
	return sub, nil
}

// isReservedReply reports whether a reply subject must not be used, because nodes
// may publish to it and their clients may not.
func isReservedReply(reply string) bool {
	return strings.HasPrefix(reply, "yard.") || strings.HasPrefix(reply, "$")
}

// handle runs an endpoint's handler and sends its reply.
func (s *Server) handle(ctx context.Context, e *Endpoint, r *Request) {
	data, err := e.Handle(ctx, r)
	if err != nil {
		err = r.RespondError(err)
	} else {
		err = r.Respond(data)
	}
	s.logSendError(e, err)
}

// logSendError logs that a reply could not be sent. The client times out and
// retries.
func (s *Server) logSendError(e *Endpoint, err error) {
	if err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		s.local.Log.Warn("reply not sent", "endpoint", e.Name, "err", err)
	}
}
