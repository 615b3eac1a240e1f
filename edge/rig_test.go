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

	"yardmaster/edge/overhop"
	"yardmaster/internal/frame"
	"yardmaster/internal/testlog"
	"yardmaster/job"
)

// rig is a server with a yard and hands of memory. In a synctest bubble its
// connections are pipes.
type rig struct {
	t      *testing.T
	server *Server
	yard   *memoryYard
	hands  *memoryHands
	log    *testlog.Recorder
	ln     *pipeListener
	stop   context.CancelFunc
	served chan error
}

// bubble runs a test with a rig on fake time.
func bubble(t *testing.T, cfg Config, test func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, cfg)
		test(r)
		r.stop()
		if err := <-r.served; err != nil {
			t.Errorf("serve: %v", err)
		}
		if n := len(r.server.conns) + len(r.server.workers) + len(r.server.anonymous) + len(r.server.addresses); n > 0 {
			t.Errorf("%d connections are remembered after the end", n)
		}
	})
}

func newRig(t *testing.T, cfg Config) *rig { return newRigWith(t, cfg, newMemoryYard()) }

func newRigWith(t *testing.T, cfg Config, y *memoryYard) *rig {
	cfg.Node = "n1"
	r := &rig{t: t, yard: y, hands: newMemoryHands(), ln: newPipeListener(), served: make(chan error, 1)}
	var err error
	var log *slog.Logger
	log, r.log = testlog.NewRecorder(t)
	if r.server, err = New(cfg, r.yard, r.hands, log); err != nil {
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

// peer is a client that sends and reads single frames. What it is sent is read
// at once, as from a socket's buffer, unless it is deaf.
type peer struct {
	t      *testing.T
	nc     net.Conn
	frames chan overhop.Envelope
	wid    string
}

func (r *rig) connect() *peer { return r.connectOver(r.ln.dial()) }

func (r *rig) connectOver(nc net.Conn) *peer {
	p := &peer{t: r.t, nc: nc, frames: make(chan overhop.Envelope, 10_000)}
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
	r.t.Cleanup(func() { p.nc.Close() })
	return p
}

// register connects and registers; with delivery it offers the extension.
func (r *rig) register(delivery bool) *peer {
	r.t.Helper()
	hello := overhop.Fields{}
	if delivery {
		hello["ext"] = []string{overhop.Delivery}
	}
	return r.registerOver(r.ln.dial(), hello)
}

func (r *rig) registerOver(nc net.Conn, hello overhop.Fields) *peer {
	r.t.Helper()
	p := r.connectOver(nc)
	p.ask(overhop.THello, hello, overhop.THi)
	ok := p.ask(overhop.TRegister, nil, overhop.TOK)
	p.wid = str(ok.Get("wid"))
	if _, err := uuid.Parse(p.wid); err != nil {
		r.t.Fatalf("wid %q: %v", p.wid, err)
	}
	return p
}

// worker registers and subscribes to "jobs".
func (r *rig) worker(credits int) (p *peer, sid string) {
	r.t.Helper()
	p = r.register(true)
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

// next is the next frame, which must be there as soon as the server rests.
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

// expect is the next frame, which must be of type t.
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

func (p *peer) refused(t int64, f overhop.Fields, code overhop.Code) {
	p.t.Helper()
	if got := str(p.ask(t, f, overhop.TErr).Get("code")); got != string(code) {
		p.t.Errorf("t=%d %v: code %s, want %s", t, f, got, code)
	}
}

func (p *peer) quiet() {
	p.t.Helper()
	synctest.Wait()
	select {
	case e, ok := <-p.frames:
		p.t.Fatalf("got t=%d %s (open: %t), want nothing", e.T, text(e.P), ok)
	default:
	}
}

// closed checks that the server has closed and said nothing more.
func (p *peer) closed() {
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
func held(q overhop.Raw) overhop.Fields {
	return overhop.Fields{"jid": q.Get("jid"), "tok": q.Get("tok")}
}
func heldAnd(q overhop.Raw, more overhop.Fields) overhop.Fields {
	f := held(q)
	for k, v := range more {
		f[k] = v
	}
	return f
}

// assignment is the n-th dispatch of a job for a worker of "jobs".
func assignment(p *peer, n uint32) job.Assignment {
	return job.Assignment{
		Job: theJob, N: n, Attempt: 1, MaxAttempts: 5, Queue: "jobs", Kind: job.Overhop, Key: "jobs",
		Worker: p.wid, Fence: 100 + uint64(n), Accepted: time.Now(), RunAt: time.Now(),
	}
}

// quest starts a job at p and gives its QUEST.
func (r *rig) quest(p *peer, n uint32, change func(*job.Assignment)) overhop.Raw {
	r.t.Helper()
	a := assignment(p, n)
	if change != nil {
		change(&a)
	}
	if !r.server.Start(a, job.Spec{Params: []byte(`{"n":1}`)}) {
		r.t.Fatal("Start found no room")
	}
	return p.expect(overhop.TQuest, overhop.PushRID)
}

type netConn = net.Conn

// cuttable is a connection the test may close from outside.
type cuttable struct{ net.Conn }

// onlyWorker is the id of the one registered worker.
func (r *rig) onlyWorker() string {
	r.t.Helper()
	synctest.Wait()
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	if len(r.server.workers) != 1 {
		r.t.Fatalf("%d workers, want 1", len(r.server.workers))
	}
	for wid := range r.server.workers {
		return wid
	}
	return ""
}

// theJob is the job of someJob.
var theJob, _ = job.ParseID(someJob[len("jobs:"):])
