package drill

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
)

// Transport is the way in which a job is enqueued.
type Transport string

const (
	PlainPublish Transport = ""         // a publish to yard.jobs.<queue>, acknowledged by the stream
	Enqueue      Transport = "-enqueue" // a request to yard.enqueue.<queue>
	HTTP         Transport = "-http"
	Overhop      Transport = "-overhop" // does not carry params
)

// Transports lists all transports.
var Transports = []Transport{PlainPublish, Enqueue, HTTP, Overhop}

// producer enqueues jobs. After an error, the job may or may not have been accepted.
type producer interface {
	send(ctx context.Context, key, params string) error
	close()
}

// newProducer returns a producer for the load's transport.
func newProducer(l *Load, c *Cluster) (producer, error) {
	switch l.Transport {
	case HTTP:
		h := &httpProducer{load: l, client: &http.Client{Transport: &http.Transport{
			MaxIdleConnsPerHost: max(l.Parallel, 1), DialContext: (&net.Dialer{Timeout: publishTimeout / 4}).DialContext}}}
		for _, n := range c.Nodes {
			h.addrs = append(h.addrs, "http://"+n.HTTP)
		}
		return h, nil
	case Overhop:
		return &overhopProducer{load: l, producer: &overhop.Producer{Nodes: c.Edges(), Name: "drill", Log: slog.New(slog.DiscardHandler)}}, nil
	}
	p := &natsProducer{load: l}
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
	load *Load
	nc   *nats.Conn
	js   jetstream.JetStream

	switching sync.RWMutex // read-locked during a publish
}

// switchNode reconnects to another node when this one announces that it will stop,
// after the publishes in progress have been answered.
func (p *natsProducer) switchNode(nc *nats.Conn) {
	p.switching.Lock()
	defer p.switching.Unlock()
	_ = nc.ForceReconnect() // fails if nc is closed
}

func (p *natsProducer) close() { p.nc.Close() }

func (p *natsProducer) send(ctx context.Context, key, params string) error {
	p.switching.RLock()
	defer p.switching.RUnlock()
	m := &nats.Msg{Subject: "yard.jobs." + p.load.Queue, Header: nats.Header{"Nats-Msg-Id": []string{key}}, Data: p.load.body(params)}
	if p.load.Transport == PlainPublish {
		return p.publish(ctx, m)
	}
	m.Subject = "yard.enqueue." + p.load.Queue
	answer, err := p.nc.RequestMsgWithContext(ctx, m)
	if err != nil {
		return err
	}
	if refused := answer.Header.Get("Nats-Service-Error"); refused != "" {
		return errors.New(refused)
	}
	return nil
}

// publish publishes m, repeats it when no stream responds as often as the client
// library would, and counts the repetitions.
func (p *natsProducer) publish(ctx context.Context, m *nats.Msg) error {
	for repeated := 0; ; repeated++ {
		_, err := p.js.PublishMsg(ctx, m, jetstream.WithRetryAttempts(0))
		if !errors.Is(err, jetstream.ErrNoStreamResponse) || repeated == jetstream.DefaultPubRetryAttempts {
			return err
		}
		p.load.noteRefusal(fmt.Errorf("%w, %s", err, RetriedByLibrary))
		if late := sleep(ctx, jetstream.DefaultPubRetryWait); late != nil {
			return errors.Join(err, late)
		}
	}
}

// RetriedByLibrary marks a failed publish that client libraries repeat by default.
const RetriedByLibrary = "and was repeated as client libraries do"

// body returns the record of a job as JSON.
func (l *Load) body(params string) []byte {
	b := fmt.Appendf(nil, `{"params":%s`, params)
	if l.Function != "" {
		b = fmt.Appendf(b, `,"function":%q`, l.Function)
	}
	if l.Fields != "" {
		b = append(append(b, ','), l.Fields...)
	}
	return append(b, '}')
}

// httpProducer posts jobs to one node, and to the next one after a failure.
type httpProducer struct {
	load   *Load
	client *http.Client
	addrs  []string
	next   atomic.Uint32
}

func (hp *httpProducer) close() { hp.client.CloseIdleConnections() }

func (hp *httpProducer) send(ctx context.Context, key, params string) error {
	turn := hp.next.Load()
	err := hp.post(ctx, hp.addrs[int(turn)%len(hp.addrs)], key, params)
	if err != nil {
		hp.next.CompareAndSwap(turn, turn+1)
	}
	return err
}

func (hp *httpProducer) post(ctx context.Context, addr, key, params string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, addr+"/v1/queues/"+hp.load.Queue+"/jobs", bytes.NewReader(hp.load.body(params)))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+Token)
	request.Header.Set("Idempotency-Key", key)
	request.Header.Set("Content-Type", "application/json")
	answer, err := hp.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode/100 != 2 {
		err = fmt.Errorf("%s: %s", answer.Status, bytes.TrimSpace(text))
	}
	return err
}

// overhopProducer enqueues jobs over the Overhop protocol.
type overhopProducer struct {
	load     *Load
	producer *overhop.Producer
}

func (p *overhopProducer) close() { p.producer.Close() }

func (p *overhopProducer) send(ctx context.Context, key, _ string) error {
	_, err := p.producer.Enqueue(ctx, overhop.Enqueue{Queue: p.load.Queue, Function: p.load.Function, Key: key})
	return err
}
