package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"yardmaster/job"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"golang.org/x/sync/errgroup"
)

const (
	serviceName    = "yard-api"
	handlersAtOnce = 256
	waitersAtOnce  = 4096
	// What may wait for one endpoint before the node says "later" by silence:
	// a burst of enqueue calls, not a backlog.
	endpointWaiting      = 65536
	endpointWaitingBytes = 256 << 20
	maxHeader            = 4 << 10 // of an answer
)

// Service is what this node answers to anybody, as a NATS micro service that
// `nats micro ls`, `info`, `stats` and `ping` show.
type Service struct {
	Version     string // semantic version
	Description string
	Metadata    map[string]string
	Endpoints   []Endpoint
}

// Endpoint is one thing to ask for. It has either Do or Go.
type Endpoint struct {
	Name        string // [A-Za-z0-9_-]+
	Subject     string // public: "yard.enqueue.*", "yard.api.v1.job.show"
	Description string
	Metadata    map[string]string

	// Do answers a request; it runs beside others, on a goroutine of its own.
	// Beyond 256 at once, requests are refused with "later".
	Do func(ctx context.Context, r *Request) ([]byte, error)
	// Waits tells that Do may take long: such requests have 4096 places of
	// their own, so that they keep no quick one waiting.
	Waits bool
	// Go takes a request and returns at once; it or somebody else answers it
	// later, once. Requests come in the order in which they arrived.
	Go func(r *Request)
}

// Request is one question of a client, by whichever door it came.
type Request struct {
	Data []byte // JSON, or empty
	Free func() // what [Request.Forget] calls; nil: nothing

	token  string
	header func(name string) string
	reply  func(data []byte, refusal *APIError) error
	index  uint64
}

// NewRequest is a question that came by another door than NATS. token is what
// would be its subject's last one; header gives "" for what is not given; reply
// takes the answer, or else why there is none.
func NewRequest(data []byte, token string, header func(name string) string, reply func(data []byte, refusal *APIError) error) *Request {
	return &Request{Data: data, token: token, header: header, reply: reply}
}

// Token is the last token of the subject: the queue of yard.enqueue.<queue>.
func (r *Request) Token() string { return r.token }

// Header is a header's value, "" if it is not given.
func (r *Request) Header(name string) string { return r.header(name) }

// Shows notes which state of the ledger the answer shows, by the index of its
// last entry. The answer carries it in the header [HeaderIndex]; 0 is no index.
func (r *Request) Shows(index uint64) { r.index = index }

// Index is what [Request.Shows] noted.
func (r *Request) Index() uint64 { return r.index }

// Producer is what the headers say of a job.
func (r *Request) Producer() job.Headers { return producerHeaders(r.Header) }

// Forget lets go of Data: for those that go on to wait.
func (r *Request) Forget() {
	r.Data = nil
	if r.Free != nil {
		r.Free()
	}
}

// Respond answers. What is too large for the asker's door is refused instead.
func (r *Request) Respond(data []byte) error { return r.reply(data, nil) }

// Refuse answers with an error, by the table of codes in [APIError].
func (r *Request) Refuse(err error) error { return r.reply(nil, RefusalOf(err)) }

// desk answers the questions that came over NATS.
type desk struct {
	request     *Request
	node, reply string
	nc          *nats.Conn
	stats       *endpointStats
	began       time.Time
}

func (d *desk) answer(data []byte, refusal *APIError) error {
	if len(data) > MaxMessage-maxHeader {
		refusal = RefusalOf(fmt.Errorf("answer of %d bytes, at most %d: %w", len(data), MaxMessage-maxHeader, job.ErrTooLarge))
	}
	d.stats.answered(d.began, refusal)
	if refusal != nil {
		return d.nc.PublishMsg(errorReply(d.reply, d.node, refusal))
	}
	m := &nats.Msg{Subject: d.reply, Data: data}
	if index := d.request.Index(); index > 0 {
		m.Header = nats.Header{HeaderIndex: []string{strconv.FormatUint(index, 10)}}
	}
	return d.nc.PublishMsg(m)
}

// endpointStats is what the service tells beside its own counts: the answers
// that were given after the handler returned.
type endpointStats struct {
	answers atomic.Uint64
	refused atomic.Uint64
	took    atomic.Int64 // nanoseconds, all answers together
	mu      sync.Mutex
	codes   map[string]uint64
}

func (s *endpointStats) answered(began time.Time, refusal *APIError) {
	s.answers.Add(1)
	s.took.Add(int64(time.Since(began)))
	if refusal == nil {
		return
	}
	s.refused.Add(1)
	s.mu.Lock()
	s.codes[refusal.Code]++
	s.mu.Unlock()
}

func (s *endpointStats) view() any {
	s.mu.Lock()
	defer s.mu.Unlock()
	answers := s.answers.Load()
	return map[string]any{
		"answers": answers, "refused": s.refused.Load(), "refused_by_code": maps.Clone(s.codes),
		"average_answer_us": s.took.Load() / int64(max(answers, 1)) / 1000,
	}
}

// Serve answers until ctx ends and the last handler has returned. Requests of
// this node's own clients come here, and only those: see [Cluster.Run].
func (c *Cluster) Serve(ctx context.Context, s Service) error {
	all := map[string]*endpointStats{}
	svc, err := micro.AddService(c.api.nc, micro.Config{
		Name: serviceName, Version: s.Version, Description: s.Description, QueueGroupDisabled: true,
		Metadata:     withNode(s.Metadata, c.cfg.Node),
		StatsHandler: func(e *micro.Endpoint) any { return viewOf(all[e.Name]) },
	})
	if err != nil {
		return fmt.Errorf("open the service: %w", err)
	}
	var work, waits errgroup.Group
	work.SetLimit(handlersAtOnce)
	waits.SetLimit(waitersAtOnce)
	for i := range s.Endpoints {
		all[s.Endpoints[i].Name] = &endpointStats{codes: map[string]uint64{}}
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if err == nil {
			places := &work
			if e.Waits {
				places = &waits
			}
			err = c.addEndpoint(ctx, svc, e, all[e.Name], places)
		}
	}
	if err == nil {
		<-ctx.Done()
	}
	stopped := svc.Stop()
	if errors.Is(stopped, nats.ErrConnectionClosed) {
		stopped = nil
	}
	return errors.Join(err, stopped, work.Wait(), waits.Wait())
}

func viewOf(s *endpointStats) any {
	if s == nil {
		return nil
	}
	return s.view()
}

func withNode(m map[string]string, node string) map[string]string {
	m = maps.Clone(m)
	if m == nil {
		m = map[string]string{}
	}
	m["node"] = node
	return m
}

func (c *Cluster) addEndpoint(ctx context.Context, svc micro.Service, e *Endpoint, stats *endpointStats, work *errgroup.Group) error {
	if (e.Do == nil) == (e.Go == nil) {
		return fmt.Errorf("endpoint %s must have either Do or Go", e.Name)
	}
	local := localSubject(c.cfg.Node, e.Subject)
	meta := maps.Clone(e.Metadata)
	if meta == nil {
		meta = map[string]string{}
	}
	meta["subject"], meta["description"] = e.Subject, e.Description
	handle := func(m micro.Request) {
		if m.Reply() == "" {
			return // nobody waits: nothing to say, and nothing to do unseen
		}
		d := &desk{node: c.cfg.Node, reply: m.Reply(), nc: c.api.nc, stats: stats, began: time.Now()}
		subject := m.Subject()
		r := NewRequest(m.Data(), subject[strings.LastIndexByte(subject, '.')+1:], nats.Header(m.Headers()).Get, d.answer)
		d.request = r
		if e.Go != nil {
			e.Go(r)
			return
		}
		if !work.TryGo(func() error { c.do(ctx, e, r); return nil }) {
			c.answered(e, r.Refuse(&job.UnavailableError{Reason: "too many requests at once", RetryAfter: 100 * time.Millisecond}))
		}
	}
	err := svc.AddEndpoint(e.Name, micro.HandlerFunc(handle), micro.WithEndpointSubject(local),
		micro.WithEndpointMetadata(meta), micro.WithEndpointQueueGroupDisabled(),
		micro.WithEndpointPendingLimits(endpointWaiting, endpointWaitingBytes))
	if err != nil {
		return fmt.Errorf("open endpoint %s: %w", e.Name, err)
	}
	return nil
}

func (c *Cluster) do(ctx context.Context, e *Endpoint, r *Request) {
	data, err := e.Do(ctx, r)
	if err != nil {
		err = r.Refuse(err)
	} else {
		err = r.Respond(data)
	}
	c.answered(e, err)
}

// answered notes an answer that could not be sent: the asker will ask again.
func (c *Cluster) answered(e *Endpoint, err error) {
	if err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		c.log.Warn("answer is not sent", "endpoint", e.Name, "error", err)
	}
}
