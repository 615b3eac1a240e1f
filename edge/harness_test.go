package edge

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/frame"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/test/testlog"
)

// harness is a server with a cluster and an executor in memory. Its connections
// are pipes, so that it runs in a synctest bubble.
type harness struct {
	t        *testing.T
	server   *Server
	cluster  *memCluster
	executor *memExecutor
	log      *testlog.Recorder
	ln       *pipeListener
	stop     context.CancelFunc
	served   chan error
}

// bubble runs a test with a harness on fake time.
func bubble(t *testing.T, cfg Config, test func(*harness)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newHarness(t, cfg)
		test(r)
		r.stop()
		if err := <-r.served; err != nil {
			t.Errorf("serve: %v", err)
		}
		if n := len(r.server.conns) + len(r.server.deliveries.workers) + len(r.server.anonymous) + len(r.server.connsByHost); n > 0 {
			t.Errorf("%d connections are kept after the end", n)
		}
	})
}

func newHarness(t *testing.T, cfg Config) *harness { return newHarnessWith(t, cfg, newMemCluster()) }

func newHarnessWith(t *testing.T, cfg Config, c *memCluster) *harness {
	r := newHarnessOn(t, cfg, c)
	r.cluster = c
	return r
}

// newHarnessOn returns a harness whose server has any cluster.
func newHarnessOn(t *testing.T, cfg Config, c Cluster) *harness {
	cfg.Node = "n1"
	r := &harness{t: t, executor: newMemExecutor(), ln: newPipeListener(), served: make(chan error, 1)}
	var err error
	var log *slog.Logger
	log, r.log = testlog.NewRecorder(t)
	if r.server, err = New(cfg, c, r.executor, log); err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, r.stop = context.WithCancel(t.Context())
	go func() { r.served <- r.server.Serve(ctx, r.ln) }()
	return r
}

// pipeListener is a listener whose connections are pipes.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}
func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

func (l *pipeListener) dial() net.Conn {
	ours, theirs := net.Pipe()
	l.conns <- theirs
	return ours
}

// peer is a client that sends and receives single frames. What it is sent is
// read at once, as into a socket's buffer.
type peer struct {
	t      *testing.T
	nc     net.Conn
	frames chan overhop.Envelope
	wid    string
}

func (h *harness) connect() *peer { return h.connectOver(h.ln.dial()) }

func (h *harness) connectOver(nc net.Conn) *peer {
	p := &peer{t: h.t, nc: nc, frames: make(chan overhop.Envelope, 10_000)}
	go func() {
		defer close(p.frames)
		in := frame.NewReader(p.nc, overhop.MaxFrameLimit)
		for {
			b, err := in.Next()
			if err != nil {
				return
			}
			e, err := overhop.ParseEnvelope(slices.Clone(b))
			if err != nil {
				panic(err)
			}
			p.frames <- e
		}
	}()
	h.t.Cleanup(func() { p.nc.Close() })
	return p
}

// register connects and registers; with delivery it offers the extension.
func (h *harness) register(delivery bool) *peer {
	h.t.Helper()
	hello := overhop.Fields{}
	if delivery {
		hello["ext"] = []string{overhop.Delivery}
	}
	return h.registerOver(h.ln.dial(), hello)
}

func (h *harness) registerOver(nc net.Conn, hello overhop.Fields) *peer {
	h.t.Helper()
	p := h.connectOver(nc)
	p.ask(overhop.THello, hello, overhop.THi)
	ok := p.ask(overhop.TRegister, nil, overhop.TOK)
	p.wid = str(ok.Get("wid"))
	if _, err := uuid.Parse(p.wid); err != nil {
		h.t.Fatalf("wid %q: %v", p.wid, err)
	}
	return p
}

// startWorker registers a client and subscribes it to "jobs".
func (h *harness) startWorker(credits int) (p *peer, sid string) {
	h.t.Helper()
	p = h.register(true)
	ok := p.ask(overhop.TSubscribe, overhop.Fields{"q": "jobs", "credits": credits}, overhop.TOK)
	return p, str(ok.Get("sid"))
}

func (p *peer) send(t int64, rid string, f overhop.Fields) {
	p.t.Helper()
	b, _ := overhop.AppendFields(nil, t, rid, f)
	p.write(b)
}

func (p *peer) write(b []byte) {
	p.t.Helper()
	p.nc.SetWriteDeadline(time.Now().Add(time.Minute))
	if _, err := p.nc.Write(b); err != nil {
		p.t.Fatalf("write: %v", err)
	}
}

// next returns the next frame, which must have arrived when the server is idle.
func (p *peer) next() overhop.Envelope {
	p.t.Helper()
	synctest.Wait()
	select {
	case e, ok := <-p.frames:
		if !ok {
			p.t.Fatal("connection was closed, want a frame")
		}
		return e
	default:
		p.t.Fatal("no frame came")
		return overhop.Envelope{}
	}
}

// expect returns the payload of the next frame, which must be of type t.
func (p *peer) expect(t int64, rid string) overhop.Raw {
	p.t.Helper()
	e := p.next()
	if e.T != t || e.RID != rid {
		p.t.Fatalf("got t=%d rid=%q %s, want t=%d rid=%q", e.T, e.RID, text(e.P), t, rid)
	}
	return e.P
}

func (p *peer) ask(t int64, f overhop.Fields, want int64) overhop.Raw {
	p.t.Helper()
	p.send(t, "r", f)
	return p.expect(want, "r")
}

func (p *peer) expectErr(t int64, f overhop.Fields, code overhop.Code) {
	p.t.Helper()
	if got := str(p.ask(t, f, overhop.TErr).Get("code")); got != string(code) {
		p.t.Errorf("t=%d %v: code %s, want %s", t, f, got, code)
	}
}

func (p *peer) expectNothing() {
	p.t.Helper()
	synctest.Wait()
	select {
	case e, ok := <-p.frames:
		p.t.Fatalf("got t=%d %s (open: %t), want nothing", e.T, text(e.P), ok)
	default:
	}
}

// expectClosed checks that the server has closed the connection and sent
// nothing more.
func (p *peer) expectClosed() {
	p.t.Helper()
	synctest.Wait()
	select {
	case e, ok := <-p.frames:
		if ok {
			p.t.Fatalf("got t=%d %s, want the end", e.T, text(e.P))
		}
	default:
		p.t.Fatal("connection is still open")
	}
}

func str(r overhop.Raw) string  { s, _ := r.Str(); return s }
func num(r overhop.Raw) int64   { n, _ := r.Int(); return n }
func text(r overhop.Raw) string { return string(overhop.AppendLossyJSON(nil, r)) }
func leaseFields(q overhop.Raw) overhop.Fields {
	return overhop.Fields{"jid": q.Get("jid"), "tok": q.Get("tok")}
}
func leaseFieldsWith(q overhop.Raw, more overhop.Fields) overhop.Fields {
	f := leaseFields(q)
	for k, v := range more {
		f[k] = v
	}
	return f
}

// assignment returns the n-th dispatch of a job, for worker p of "jobs".
func assignment(p *peer, n uint32) job.Assignment {
	return job.Assignment{
		Job: someJobID, N: n, Attempt: 1, MaxAttempts: 5, Queue: "jobs", Kind: job.Overhop, Key: "jobs",
		Worker: p.wid, Fence: 100 + uint64(n), Accepted: time.Now(), RunAt: time.Now(),
	}
}

// startJob starts a job at p and returns its QUEST.
func (h *harness) startJob(p *peer, n uint32, change func(*job.Assignment)) overhop.Raw {
	h.t.Helper()
	a := assignment(p, n)
	if change != nil {
		change(&a)
	}
	if !h.server.Start(a, job.Spec{Params: []byte(`{"n":1}`)}) {
		h.t.Fatal("Start refused the job")
	}
	return p.expect(overhop.TQuest, overhop.PushRID)
}

type netConn = net.Conn

// cuttable is a connection that the test can close.
type cuttable struct{ net.Conn }

// onlyWorker returns the id of the one registered worker.
func (h *harness) onlyWorker() string {
	h.t.Helper()
	synctest.Wait()
	h.server.deliveries.mu.Lock()
	defer h.server.deliveries.mu.Unlock()
	if len(h.server.deliveries.workers) != 1 {
		h.t.Fatalf("%d workers, want 1", len(h.server.deliveries.workers))
	}
	for wid := range h.server.deliveries.workers {
		return wid
	}
	return ""
}

// someJobID is the id of someJob.
var someJobID, _ = job.ParseID(someJob[len("jobs:"):])
