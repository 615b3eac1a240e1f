package drill

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/examples/worker/worker"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Load is a set of jobs to publish to one queue.
type Load struct {
	Queue     string
	Transport Transport     // zero value: PlainPublish
	Function  string        // "" means none
	JobParams string        // params of every job as JSON; "" means its number
	Fields    string        // further fields of every job as JSON without braces
	Jobs      int           // number of jobs; 0 means until Stop
	Prefix    string        // of every job's key; "" means queue and transport
	Parallel  int           // concurrent publishers, each waiting for acknowledgements; 0 means 1
	Pace      time.Duration // pause of a publisher between two jobs
	// When At jobs are acknowledged, Then is called once, while publishing goes on.
	At   int
	Then func()

	stopped  atomic.Bool
	then     sync.WaitGroup
	mu       sync.Mutex
	acks     []int64        // times of acknowledgements, by the host's clock
	refusals map[string]int // number of failed publishes by error
}

// Run publishes the jobs, each repeatedly until it is acknowledged, and returns
// after Then has returned. If ctx ends first, it returns an error.
func (l *Load) Run(ctx context.Context, c *Cluster) error {
	p, err := newProducer(l, c)
	if err != nil {
		return err
	}
	defer p.close()
	var next atomic.Int64
	var work sync.WaitGroup
	errs := make([]error, max(l.Parallel, 1))
	for i := range errs {
		work.Go(func() {
			for errs[i] == nil && !l.stopped.Load() {
				n := int(next.Add(1)) - 1
				if l.Jobs > 0 && n >= l.Jobs {
					return
				}
				errs[i] = l.publish(ctx, p, n)
			}
		})
	}
	work.Wait()
	l.then.Wait()
	if l.Jobs == 0 { // every number taken is acknowledged
		l.Jobs = int(next.Load())
	}
	return errors.Join(errs...)
}

// Stop ends a load without a fixed number of jobs. Publishers still repeat their
// current job until it is acknowledged.
func (l *Load) Stop() { l.stopped.Store(true) }

// Acked returns the number of jobs acknowledged so far.
func (l *Load) Acked() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acks)
}

// Key returns the key of job n.
func (l *Load) Key(n int) string {
	return fmt.Sprintf("%s-%d", cmp.Or(l.Prefix, l.Queue+string(l.Transport)), n)
}

// publish publishes one job under its key until it is acknowledged.
func (l *Load) publish(ctx context.Context, p producer, n int) error {
	params := l.JobParams
	if params == "" {
		params = fmt.Sprintf(`{"n":%d}`, n)
	}
	for {
		one, cancel := context.WithTimeout(ctx, publishTimeout)
		err := p.send(one, l.Key(n), params)
		cancel()
		if err == nil {
			break
		}
		l.noteRefusal(err)
		if backoff.Sleep(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("job %s is not acknowledged: %w", l.Key(n), err)
		}
	}
	if l.noteAck() == l.At && l.Then != nil {
		l.then.Go(l.Then)
	}
	return backoff.Sleep(ctx, l.Pace)
}

// publishTimeout limits the wait for one acknowledgement.
const publishTimeout = time.Second

func (l *Load) noteRefusal(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refusals == nil {
		l.refusals = make(map[string]int)
	}
	l.refusals[err.Error()]++
}

// Refusals returns the number of failed publishes by error.
func (l *Load) Refusals() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.refusals)
}

// noteAck records the time of an acknowledgement and returns the number of
// acknowledgements so far.
func (l *Load) noteAck() int {
	at := HostClock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acks = append(l.acks, at)
	return len(l.acks)
}

// ids returns the ids of the acknowledged jobs. Call it after Run has returned nil.
func (l *Load) ids() (map[job.ID]bool, error) {
	ids := make(map[job.ID]bool, l.Jobs)
	for n := range l.Jobs {
		id, err := job.KeyID(l.Queue, l.Key(n))
		if err != nil {
			return nil, err
		}
		ids[id] = true
	}
	return ids, nil
}

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
		transport := &http.Transport{MaxIdleConnsPerHost: max(l.Parallel, 1), DialContext: (&net.Dialer{Timeout: publishTimeout / 4}).DialContext}
		return &httpProducer{load: l, client: &http.Client{Transport: transport}, nodes: slices.Clone(c.Nodes)}, nil
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

// send implements producer.
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
		if late := backoff.Sleep(ctx, jetstream.DefaultPubRetryWait); late != nil {
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
	nodes  []*Node
	next   atomic.Uint32
}

func (hp *httpProducer) close() { hp.client.CloseIdleConnections() }

// send implements producer. After an error, the next call uses the next node.
func (hp *httpProducer) send(ctx context.Context, key, params string) error {
	turn := hp.next.Load()
	n := hp.nodes[int(turn)%len(hp.nodes)]
	code, text, err := n.callHTTP(ctx, hp.client, "POST /v1/queues/"+hp.load.Queue+"/jobs", hp.load.body(params), "Idempotency-Key", key)
	if err == nil && code/100 != 2 {
		err = fmt.Errorf("%d %s: %s", code, http.StatusText(code), bytes.TrimSpace(text))
	}
	if err != nil {
		hp.next.CompareAndSwap(turn, turn+1)
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

// WorkVerb is the command line argument with which a process runs [Work]; the next
// argument is that of Work.
const WorkVerb = "work"

// Task configures a worker process.
type Task struct {
	Nodes   []string
	Queue   string
	Credits uint32
	Hold    time.Duration // how long it takes over a job
	Witness string        // path of its witness file
}

// Work runs jobs until ctx ends. Its argument is a [Task] in JSON. It appends a line to the witness file when a job
// begins and when it ends, each synced before Work continues:
//
//	<begin|end> <jid> <attempt> <fence> <nanoseconds of the host's monotonic clock>
func Work(ctx context.Context, task string) (err error) {
	var t Task
	if err := json.Unmarshal([]byte(task), &t); err != nil {
		return fmt.Errorf("task of a worker: %w", err)
	}
	witness, err := worker.OpenWitness(t.Witness)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, witness.Close()) }()
	w := overhop.Worker{Nodes: t.Nodes, Name: "drill"}
	w.Handle(t.Queue, t.Credits, func(ctx context.Context, q *overhop.Quest) (overhop.Raw, error) {
		if err := note(witness, "begin", q); err != nil {
			return nil, err
		}
		hold := time.NewTimer(t.Hold)
		defer hold.Stop()
		var ended error
		select {
		case <-hold.C:
		case <-ctx.Done():
			ended = context.Cause(ctx)
		}
		return nil, errors.Join(ended, note(witness, "end", q))
	})
	return w.Run(ctx)
}

// note appends a line about a quest to the witness file.
func note(w *worker.Witness, what string, q *overhop.Quest) error {
	at, err := readHostClock()
	if err != nil {
		return err
	}
	return w.Append(fmt.Sprintf("%s %s %d %d %d", what, q.JID, q.Attempt, q.Fence, at))
}

// readHostClock reads the host's monotonic clock, in nanoseconds.
func readHostClock() (int64, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0, fmt.Errorf("read the host's clock: %w", err)
	}
	return t.Nano(), nil
}

// AddWorker starts a worker process: this program again, with WorkVerb.
func (c *Cluster) AddWorker(t Task) (*procs.Process, error) {
	name := fmt.Sprintf("w%d", len(c.workers)+1)
	t.Witness = filepath.Join(c.Dir, name+".witness")
	text, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the path of this process: %w", err)
	}
	p := &procs.Process{Name: name, Args: []string{self, WorkVerb, string(text)}, LogFile: filepath.Join(c.Dir, name+".log")}
	c.workers = append(c.workers, p)
	return p, p.Start()
}
