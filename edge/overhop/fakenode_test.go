package overhop

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

// fakeCluster is a set of nodes for the clients of a test. The nodes answer as
// the protocol requires, unless the test sets other answers, and count credits.
// Everything runs in a synctest bubble.
type fakeCluster struct {
	t *testing.T

	mu      sync.Mutex
	nodes   []*fakeNode // in the order of the connections
	answer  func(n *fakeNode, e Envelope) (then func(), ok bool)
	dialErr func(addr string) error
	queues  []string
}

// fakeNode is the server's end of one connection.
type fakeNode struct {
	cluster *fakeCluster
	addr    string
	index   int // number of earlier connections
	nc      net.Conn

	mu       sync.Mutex
	write    sync.Mutex
	received []Envelope     // all messages, in order
	balance  map[string]int // credits by queue
}

func newFakeCluster(t *testing.T) *fakeCluster { return &fakeCluster{t: t} }

func (c *fakeCluster) dial(_ context.Context, addr string) (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dialErr != nil {
		if err := c.dialErr(addr); err != nil {
			return nil, err
		}
	}
	ours, theirs := net.Pipe()
	n := &fakeNode{cluster: c, addr: addr, index: len(c.nodes), nc: ours, balance: map[string]int{}}
	c.nodes = append(c.nodes, n)
	go n.run()
	return theirs, nil
}

// setAnswer sets a function that is called before a node answers. If ok is
// true, the node does not send its default answer, and runs then if it is not
// nil.
func (c *fakeCluster) setAnswer(f func(n *fakeNode, e Envelope) (then func(), ok bool)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = f
}

// setDialErr makes attempts to connect fail with the error that f returns; a nil f ends that.
func (c *fakeCluster) setDialErr(f func(addr string) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dialErr = f
}

// node returns the i-th connection, once the bubble is idle.
func (c *fakeCluster) node(i int) *fakeNode {
	c.t.Helper()
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if i >= len(c.nodes) {
		c.t.Fatalf("%d connections, want more than %d", len(c.nodes), i)
	}
	return c.nodes[i]
}

func (c *fakeCluster) count() int {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.nodes)
}

func (n *fakeNode) run() {
	defer n.nc.Close()
	in := frame.NewReader(n.nc, MaxFrameLimit)
	for {
		payload, err := in.Next()
		if err != nil {
			return
		}
		e, err := ParseEnvelope(append([]byte(nil), payload...))
		if err != nil {
			n.cluster.t.Errorf("node got %x: %v", payload, err)
			return
		}
		n.mu.Lock()
		n.received = append(n.received, e)
		n.mu.Unlock()
		n.cluster.mu.Lock()
		answer := n.cluster.answer
		n.cluster.mu.Unlock()
		if answer != nil {
			if then, ok := answer(n, e); ok {
				if then != nil {
					then()
				}
				continue
			}
		}
		n.defaultAnswer(e)
	}
}

// defaultAnswer answers as a healthy node does.
func (n *fakeNode) defaultAnswer(e Envelope) {
	n.countCredits(e)
	switch e.T {
	case THello:
		n.send(AppendHi(nil, e.RID, Hello{Delivery: true}, n.addr, DefaultFrameLimit))
	case TRegister:
		n.ok(e, Fields{"wid": "w"})
	case TPing:
		n.send(AppendPong(nil, e.RID, time.Now()))
	case TSubscribe:
		queue, _ := e.P.Get("q").Str()
		n.ok(e, Fields{"sid": "sid-" + queue})
	case TBeat:
		var jobs []any
		for item := range e.P.Get("jobs").Items() {
			jobs = append(jobs, Fields{"jid": item.Get("jid"), "ok": true})
		}
		n.ok(e, Fields{"jobs": jobs})
	default:
		n.ok(e, Fields{})
	}
}

// countCredits updates the balances as a server does.
func (n *fakeNode) countCredits(e Envelope) {
	credits, _ := e.P.Get("credits").Int()
	n.mu.Lock()
	defer n.mu.Unlock()
	switch e.T {
	case TCredit:
		sid, _ := e.P.Get("sid").Str()
		n.balance[sid[len("sid-"):]] += int(credits)
	case TDone, TFail, TNack:
		n.balance["mail"] += int(credits)
	}
}

func (n *fakeNode) send(b []byte) {
	n.write.Lock()
	defer n.write.Unlock()
	n.nc.Write(b) // the client may have disconnected
}

func (n *fakeNode) ok(e Envelope, p Fields) { n.send(AppendOK(nil, e.RID, p.Raw())) }

func (n *fakeNode) err(e Envelope, code Code) {
	n.send(AppendErr(nil, e.RID, code, "no", Fields{"retry_after_ms": 100, "jid": "mail:other"}))
}

func (n *fakeNode) push(t int64, p Fields) {
	b, _ := AppendFields(nil, t, PushRID, p)
	n.send(b)
	synctest.Wait()
}

// quest sends the n-th dispatch of a job, for one credit of "mail".
func (n *fakeNode) quest(number int, change func(*Quest)) Quest {
	n.cluster.t.Helper()
	now := time.Now()
	q := Quest{
		JID: fmt.Sprintf("mail:%d", number), Queue: "mail", SID: "sid-mail", Token: [TokenLen]byte{15: byte(number)}, Attempt: 1,
		Lease: 6 * time.Second, Beat: 2 * time.Second, LeaseUntil: now.Add(6 * time.Second), AckBy: now.Add(5 * time.Second),
		Created: now, RunAt: now, Payload: Fields{"n": number}.Raw(),
	}
	if change != nil {
		change(&q)
	}
	b, err := AppendQuest(nil, &q, MaxFrameLimit)
	if err != nil {
		n.cluster.t.Fatal(err)
	}
	n.mu.Lock()
	n.balance["mail"]--
	n.mu.Unlock()
	n.send(b)
	synctest.Wait()
	return q
}

// messages returns the messages of a type received so far, once the bubble is
// idle.
func (n *fakeNode) messages(t int64) (got []Raw) {
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.received {
		if e.T == t {
			got = append(got, e.P)
		}
	}
	return got
}

// onlyMessage returns the only message of a type.
func (n *fakeNode) onlyMessage(t int64) Raw {
	n.cluster.t.Helper()
	got := n.messages(t)
	if len(got) != 1 {
		n.cluster.t.Fatalf("%s got t=%d %d times, want once: %v", n.addr, t, len(got), got)
	}
	return got[0]
}

// expectBalance checks the credits of "mail".
func (n *fakeNode) expectBalance(want int) {
	n.cluster.t.Helper()
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	if got := n.balance["mail"]; got != want {
		n.cluster.t.Errorf("%s may send %d jobs, want %d", n.addr, got, want)
	}
}

func textOf(r Raw) string { s, _ := r.Str(); return s }
