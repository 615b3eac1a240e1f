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

	"yardmaster/edge/overhop"
)

// Road is how a job comes into a yard.
type Road string

const (
	Plain   Road = ""         // a publish to yard.jobs.<queue>, acknowledged by the stream
	Enqueue Road = "-enqueue" // a request to yard.enqueue.<queue>
	HTTP    Road = "-http"
	Overhop Road = "-overhop" // parameters stay behind
)

// Roads are all of them.
var Roads = []Road{Plain, Enqueue, HTTP, Overhop}

// carrier hands over one job; an error leaves it open whether it was accepted.
type carrier interface {
	carry(ctx context.Context, key, params string) error
	close()
}

func newCarrier(l *Load, y *Yard) (carrier, error) {
	switch l.Road {
	case HTTP:
		h := &httpRoad{load: l, client: &http.Client{Transport: &http.Transport{
			MaxIdleConnsPerHost: max(l.Parallel, 1), DialContext: (&net.Dialer{Timeout: publishPatience / 4}).DialContext}}}
		for _, n := range y.Nodes {
			h.doors = append(h.doors, n.HTTP)
		}
		return h, nil
	case Overhop:
		return &overhopRoad{load: l, producer: &overhop.Producer{Nodes: y.Edges(), Name: "drill", Log: slog.New(slog.DiscardHandler)}}, nil
	}
	road := &natsRoad{load: l}
	nc, err := nats.Connect(y.URLs(), nats.LameDuckModeHandler(road.move), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.RetryOnFailedConnect(true),
		nats.Timeout(time.Second), nats.PingInterval(time.Second), nats.MaxPingsOutstanding(2))
	if err != nil {
		return nil, fmt.Errorf("connect to the yard: %w", err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return nil, err
	}
	road.nc, road.js = nc, js
	return road, nil
}

// natsRoad is a plain publish, or a request to be asked for.
type natsRoad struct {
	load *Load
	nc   *nats.Conn
	js   jetstream.JetStream

	moving sync.RWMutex // held by publishes under way
}

// move goes to another node when this one says that it is about to stop: once
// what is under way has its answer.
func (r *natsRoad) move(nc *nats.Conn) {
	r.moving.Lock()
	defer r.moving.Unlock()
	_ = nc.ForceReconnect() // it is closed already
}

func (r *natsRoad) close() { r.nc.Close() }

func (r *natsRoad) carry(ctx context.Context, key, params string) error {
	r.moving.RLock()
	defer r.moving.RUnlock()
	m := &nats.Msg{Subject: "yard.jobs." + r.load.Queue, Header: nats.Header{"Nats-Msg-Id": []string{key}}, Data: r.load.body(params)}
	if r.load.Road == Plain {
		return r.publish(ctx, m)
	}
	m.Subject = "yard.enqueue." + r.load.Queue
	answer, err := r.nc.RequestMsgWithContext(ctx, m)
	if err != nil {
		return err
	}
	if refused := answer.Header.Get("Nats-Service-Error"); refused != "" {
		return errors.New(refused)
	}
	return nil
}

// publish repeats what no stream heard as often as the library does by itself,
// and counts that.
func (r *natsRoad) publish(ctx context.Context, m *nats.Msg) error {
	for repeated := 0; ; repeated++ {
		_, err := r.js.PublishMsg(ctx, m, jetstream.WithRetryAttempts(0))
		if !errors.Is(err, jetstream.ErrNoStreamResponse) || repeated == jetstream.DefaultPubRetryAttempts {
			return err
		}
		r.load.refuse(fmt.Errorf("%w, %s", err, RepeatedByLibrary))
		if late := pause(ctx, jetstream.DefaultPubRetryWait); late != nil {
			return errors.Join(err, late)
		}
	}
}

// RepeatedByLibrary marks a publish that failed and was repeated as client
// libraries do without being told.
const RepeatedByLibrary = "and was repeated as client libraries do"

// body is a job as JSON.
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

// httpRoad posts to one node, and to the next one when that does not accept.
type httpRoad struct {
	load   *Load
	client *http.Client
	doors  []string
	turn   atomic.Uint32
}

func (r *httpRoad) close() { r.client.CloseIdleConnections() }

func (r *httpRoad) carry(ctx context.Context, key, params string) error {
	turn := r.turn.Load()
	err := r.post(ctx, r.doors[int(turn)%len(r.doors)], key, params)
	if err != nil {
		r.turn.CompareAndSwap(turn, turn+1)
	}
	return err
}

func (r *httpRoad) post(ctx context.Context, door, key, params string) error {
	ask, err := http.NewRequestWithContext(ctx, http.MethodPost, door+"/v1/queues/"+r.load.Queue+"/jobs", bytes.NewReader(r.load.body(params)))
	if err != nil {
		return err
	}
	ask.Header.Set("Authorization", "Bearer "+Token)
	ask.Header.Set("Idempotency-Key", key)
	ask.Header.Set("Content-Type", "application/json")
	answer, err := r.client.Do(ask)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode/100 != 2 {
		err = fmt.Errorf("%s: %s", answer.Status, bytes.TrimSpace(said))
	}
	return err
}

type overhopRoad struct {
	load     *Load
	producer *overhop.Producer
}

func (r *overhopRoad) close() { r.producer.Close() }

func (r *overhopRoad) carry(ctx context.Context, key, _ string) error {
	_, err := r.producer.Enqueue(ctx, overhop.Enqueue{Queue: r.load.Queue, Function: r.load.Function, Key: key})
	return err
}
