package drill

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
)

// Transport is the way in which a job is enqueued.
type Transport string

const (
	PlainPublish Transport = ""         // a publish to yard.jobs.<queue>, acknowledged by the stream
	Enqueue      Transport = "-enqueue" // a request to yard.enqueue.<queue>
	HTTP         Transport = "-http"
	Overhop      Transport = "-overhop" // does not carry Fields
)

// Transports lists all transports.
var Transports = []Transport{PlainPublish, Enqueue, HTTP, Overhop}

// Message is a job to enqueue.
type Message struct {
	Queue    string
	Key      string // the producer's idempotency key
	Function string // "" means none
	Params   string // JSON
	Fields   string // further fields of the record as JSON without braces
}

// body returns the record of the job as JSON.
func (m *Message) body() []byte {
	b := fmt.Appendf(nil, `{"params":%s`, m.Params)
	if m.Function != "" {
		b = fmt.Appendf(b, `,"function":%q`, m.Function)
	}
	if m.Fields != "" {
		b = append(append(b, ','), m.Fields...)
	}
	return append(b, '}')
}

// Producer enqueues jobs. Its methods may be called concurrently.
type Producer interface {
	// Send enqueues a job once and returns the id of the job that now exists, which is
	// another job's if the message has a guard whose key is held, or "" if the answer
	// names none. An error is an [*api.Error] or an [*overhop.RemoteError] if a node
	// refused the job. After any error the job may or may not have been accepted.
	Send(ctx context.Context, m Message) (id string, err error)
	Close()
}

// NewProducer returns a producer for a transport, for about this many concurrent calls.
// refused is called for each publish that the producer repeats by itself.
func (c *Cluster) NewProducer(t Transport, parallel int, refused func(error)) (Producer, error) {
	switch t {
	case HTTP:
		transport := &http.Transport{MaxIdleConnsPerHost: max(parallel, 1), DialContext: (&net.Dialer{Timeout: publishTimeout / 4}).DialContext}
		p := &httpProducer{client: &http.Client{Transport: transport}, nodes: slices.Clone(c.Nodes)}
		p.next.Store(rand.Uint32N(uint32(len(p.nodes))))
		return p, nil
	case Overhop:
		return &overhopProducer{&overhop.Producer{Nodes: c.Edges(), Name: "drill", Log: slog.New(slog.DiscardHandler)}}, nil
	}
	p := &natsProducer{stream: t == PlainPublish, refused: refused}
	nc, err := nats.Connect(c.URLs(), nats.LameDuckModeHandler(p.switchNode), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.RetryOnFailedConnect(true),
		nats.Timeout(time.Second), nats.PingInterval(time.Second), nats.MaxPingsOutstanding(2))
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return nil, err
	}
	p.nc, p.js = nc, js
	return p, nil
}

// natsProducer publishes to the stream's subject or sends enqueue requests.
type natsProducer struct {
	stream  bool // publishes
	refused func(error)
	nc      *nats.Conn
	js      jetstream.JetStream

	switching sync.RWMutex // read-locked during a publish
}

// switchNode reconnects to another node when this one announces that it will stop,
// after the publishes in progress have been answered.
func (p *natsProducer) switchNode(nc *nats.Conn) {
	p.switching.Lock()
	defer p.switching.Unlock()
	_ = nc.ForceReconnect() // fails if nc is closed
}

func (p *natsProducer) Close() { p.nc.Close() }

// Send implements Producer.
func (p *natsProducer) Send(ctx context.Context, job Message) (id string, err error) {
	p.switching.RLock()
	defer p.switching.RUnlock()
	m := &nats.Msg{Subject: "yard.jobs." + job.Queue, Header: nats.Header{"Nats-Msg-Id": []string{job.Key}}, Data: job.body()}
	if p.stream {
		return "", p.publish(ctx, m)
	}
	m.Subject = api.SubjectEnqueue + "." + job.Queue
	answer, err := p.nc.RequestMsgWithContext(ctx, m)
	if err != nil {
		return "", err
	}
	if text := answer.Header.Get("Nats-Service-Error"); text != "" {
		return "", &api.Error{Code: answer.Header.Get("Nats-Service-Error-Code"), Text: text}
	}
	return replyID(answer.Data)
}

// replyID returns the id in an [api.EnqueueReply].
func replyID(answer []byte) (string, error) {
	var reply api.EnqueueReply
	if err := json.Unmarshal(answer, &reply); err != nil {
		return "", fmt.Errorf("malformed answer %q: %w", answer, err)
	}
	return reply.ID.String(), nil
}

// publish publishes m, repeats it when no stream responds as often as the client
// library would, and reports the repetitions.
func (p *natsProducer) publish(ctx context.Context, m *nats.Msg) error {
	for repeated := 0; ; repeated++ {
		_, err := p.js.PublishMsg(ctx, m, jetstream.WithRetryAttempts(0))
		if !errors.Is(err, jetstream.ErrNoStreamResponse) || repeated == jetstream.DefaultPubRetryAttempts {
			return err
		}
		p.refused(fmt.Errorf("%w, %s", err, RetriedByLibrary))
		if late := backoff.Sleep(ctx, jetstream.DefaultPubRetryWait); late != nil {
			return errors.Join(err, late)
		}
	}
}

// RetriedByLibrary marks a failed publish that client libraries repeat by default.
const RetriedByLibrary = "and was repeated as client libraries do"

// httpProducer posts jobs to one node, and to the next one after a failure.
type httpProducer struct {
	client *http.Client
	nodes  []*Node
	next   atomic.Uint32
}

func (p *httpProducer) Close() { p.client.CloseIdleConnections() }

// Send implements Producer. After an error, the next call uses the next node.
func (p *httpProducer) Send(ctx context.Context, m Message) (id string, err error) {
	turn := p.next.Load()
	n := p.nodes[int(turn)%len(p.nodes)]
	code, text, err := n.callHTTP(ctx, p.client, "POST /v1/queues/"+m.Queue+"/jobs", m.body(), "Idempotency-Key", m.Key)
	if err == nil && code/100 != 2 {
		err = &api.Error{Code: fmt.Sprint(code), Text: fmt.Sprintf("%s: %s", http.StatusText(code), bytes.TrimSpace(text))}
	}
	if err != nil {
		p.next.CompareAndSwap(turn, turn+1)
		return "", err
	}
	return replyID(text)
}

// overhopProducer enqueues jobs over the Overhop protocol.
type overhopProducer struct{ producer *overhop.Producer }

func (p *overhopProducer) Close() { p.producer.Close() }

// Send implements Producer.
func (p *overhopProducer) Send(ctx context.Context, m Message) (id string, err error) {
	payload, err := overhop.FromJSON([]byte(m.Params))
	if err != nil {
		return "", fmt.Errorf("params of job %s: %w", m.Key, err)
	}
	jid, err := p.producer.Enqueue(ctx, overhop.Enqueue{Queue: m.Queue, Function: m.Function, Key: m.Key, Payload: payload})
	_, id, _ = strings.Cut(jid, ":")
	return id, err
}
