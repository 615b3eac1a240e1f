package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"yardmaster/job"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"
)

const (
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
	Name        string // [A-Za-z0-9_-]+
	Version     string // semantic version
	Description string
	Metadata    func() map[string]string // asked whenever somebody asks for it; nil: none
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
	// Unheard carries out what comes without a place for an answer, too. It is
	// counted like any other, with its refusal.
	Unheard bool
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
	stats       *served
	began       time.Time
}

func (d *desk) answer(data []byte, refusal *APIError) error {
	if len(data) > MaxMessage-maxHeader {
		refusal = RefusalOf(fmt.Errorf("answer of %d bytes, at most %d: %w", len(data), MaxMessage-maxHeader, job.ErrTooLarge))
	}
	d.stats.answered(d.began, refusal)
	if d.reply == "" {
		return nil
	}
	if refusal != nil {
		return d.nc.PublishMsg(errorReply(d.reply, d.node, refusal))
	}
	m := &nats.Msg{Subject: d.reply, Data: data}
	if index := d.request.Index(); index > 0 {
		m.Header = nats.Header{HeaderIndex: []string{strconv.FormatUint(index, 10)}}
	}
	return d.nc.PublishMsg(m)
}

// Serve answers until ctx ends and the last handler has returned. Requests of
// this node's own clients come here, and only those: see [Cluster.Run].
func (c *Cluster) Serve(ctx context.Context, s Service) error {
	var work, waits errgroup.Group
	work.SetLimit(handlersAtOnce)
	waits.SetLimit(waitersAtOnce)
	var open []*served
	var subs []*nats.Subscription
	var err error
	for i := range s.Endpoints {
		e := &served{Endpoint: &s.Endpoints[i], codes: map[string]uint64{}}
		places := &work
		if e.Waits {
			places = &waits
		}
		if err == nil {
			open = append(open, e)
			var sub *nats.Subscription
			if sub, err = c.openEndpoint(ctx, e, places); err == nil {
				subs = append(subs, sub)
			}
		}
	}
	if err == nil {
		var verbs []*nats.Subscription
		verbs, err = c.present(&presence{Service: &s, node: c.cfg.Node, began: time.Now().UTC(), open: open})
		subs = append(subs, verbs...)
	}
	if err == nil {
		<-ctx.Done()
	}
	return errors.Join(err, drain(subs), work.Wait(), waits.Wait())
}

// drain lets subscriptions end when what has come already is handled.
func drain(subs []*nats.Subscription) error {
	for _, sub := range subs {
		ended := make(chan struct{})
		sub.SetClosedHandler(func(string) { close(ended) })
		if err := sub.Drain(); err != nil {
			if errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, nats.ErrBadSubscription) {
				continue // it has ended with its connection
			}
			return err
		}
		<-ended
	}
	return nil
}

func (c *Cluster) openEndpoint(ctx context.Context, e *served, work *errgroup.Group) (*nats.Subscription, error) {
	if (e.Do == nil) == (e.Go == nil) {
		return nil, fmt.Errorf("endpoint %s must have either Do or Go", e.Name)
	}
	if verb, ofNode := strings.CutPrefix(e.Subject, nodeSubject(c.cfg.Node, "")); ofNode && !slices.Contains(nodeVerbs, verb) {
		return nil, fmt.Errorf("endpoint %s is none of the verbs %v that clients may say to a node", e.Name, nodeVerbs)
	}
	handle := func(m *nats.Msg) {
		if m.Reply == "" && !e.Unheard || ownReply(m.Reply) {
			return // nobody waits: nothing to say, and nothing to do unseen
		}
		e.asked.Add(1)
		d := &desk{node: c.cfg.Node, reply: m.Reply, nc: c.api.nc, stats: e, began: time.Now()}
		r := NewRequest(m.Data, m.Subject[strings.LastIndexByte(m.Subject, '.')+1:], m.Header.Get, d.answer)
		d.request = r
		if e.Go != nil {
			e.Go(r)
			return
		}
		if !work.TryGo(func() error { c.do(ctx, e.Endpoint, r); return nil }) {
			c.answered(e.Endpoint, r.Refuse(&job.UnavailableError{Reason: "too many requests at once", RetryAfter: 100 * time.Millisecond}))
		}
	}
	sub, err := c.api.nc.Subscribe(localSubject(c.cfg.Node, e.Subject), handle)
	if err == nil {
		err = sub.SetPendingLimits(endpointWaiting, endpointWaitingBytes)
	}
	if err != nil {
		return nil, fmt.Errorf("open endpoint %s: %w", e.Name, err)
	}
	return sub, nil
}

// ownReply tells what must not be a question's place for an answer: nodes may
// write where their clients may not.
func ownReply(reply string) bool {
	return strings.HasPrefix(reply, "yard.") || strings.HasPrefix(reply, "$")
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
