package overhop

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"yardmaster/internal/frame"
)

// fakeYard is where the clients of a test connect to: nodes that answer as the
// protocol wants it, unless the test says otherwise, and keep count of credits.
// Everything happens in a synctest bubble.
type fakeYard struct {
	t *testing.T

	mu     sync.Mutex
	nodes  []*fakeNode // in the order of the connections
	answer func(n *fakeNode, e Envelope) (then func(), ok bool)
	refuse func(addr string) error
	queues []string
}

// fakeNode is one connection's other end.
type fakeNode struct {
	yard *fakeYard
	addr string
	turn int // how many connections there were before
	nc   net.Conn

	mu      sync.Mutex
	write   sync.Mutex
	said    []Envelope     // all that came, in order
	balance map[string]int // credits by queue
}

func newFakeYard(t *testing.T) *fakeYard { return &fakeYard{t: t} }

func (y *fakeYard) dial(_ context.Context, addr string) (net.Conn, error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.refuse != nil {
		if err := y.refuse(addr); err != nil {
			return nil, err
		}
	}
	ours, theirs := net.Pipe()
	n := &fakeNode{yard: y, addr: addr, turn: len(y.nodes), nc: ours, balance: map[string]int{}}
	y.nodes = append(y.nodes, n)
	go n.run()
	return theirs, nil
}

// answers sets what is done before a node's usual answer. If it is ok, the
// usual answer is not given; then, if any, runs in its place.
func (y *fakeYard) answers(f func(n *fakeNode, e Envelope) (then func(), ok bool)) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.answer = f
}

// node is the i-th connection, once all rests.
func (y *fakeYard) node(i int) *fakeNode {
	y.t.Helper()
	synctest.Wait()
	y.mu.Lock()
	defer y.mu.Unlock()
	if i >= len(y.nodes) {
		y.t.Fatalf("%d connections, want more than %d", len(y.nodes), i)
	}
	return y.nodes[i]
}

func (y *fakeYard) count() int {
	synctest.Wait()
	y.mu.Lock()
	defer y.mu.Unlock()
	return len(y.nodes)
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
			n.yard.t.Errorf("node got %x: %v", payload, err)
			return
		}
		n.mu.Lock()
		n.said = append(n.said, e)
		n.mu.Unlock()
		n.yard.mu.Lock()
		answer := n.yard.answer
		n.yard.mu.Unlock()
		if answer != nil {
			if then, ok := answer(n, e); ok {
				if then != nil {
					then()
				}
				continue
			}
		}
		n.usual(e)
	}
}

// usual is the answer of a node at which all is well.
func (n *fakeNode) usual(e Envelope) {
	n.account(e)
	switch e.T {
	case THello:
		n.send(AppendHi(nil, e.RID, true, n.addr, DefaultFrameLimit))
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

// account keeps the balances as a server does.
func (n *fakeNode) account(e Envelope) {
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
	n.nc.Write(b) // to a client that has gone: the test sees what it did
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

// quest hands out the n-th dispatch of a job, for one credit of "mail".
func (n *fakeNode) quest(number int, change func(*Quest)) Quest {
	n.yard.t.Helper()
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
		n.yard.t.Fatal(err)
	}
	n.mu.Lock()
	n.balance["mail"]--
	n.mu.Unlock()
	n.send(b)
	synctest.Wait()
	return q
}

// heard gives what came of a type so far, once all rests.
func (n *fakeNode) heard(t int64) (got []Raw) {
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.said {
		if e.T == t {
			got = append(got, e.P)
		}
	}
	return got
}

// one is what came of a type, which must be one message.
func (n *fakeNode) one(t int64) Raw {
	n.yard.t.Helper()
	got := n.heard(t)
	if len(got) != 1 {
		n.yard.t.Fatalf("%s got t=%d %d times, want once: %v", n.addr, t, len(got), got)
	}
	return got[0]
}

// room is the balance of "mail", which must be as wanted.
func (n *fakeNode) room(want int) {
	n.yard.t.Helper()
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	if got := n.balance["mail"]; got != want {
		n.yard.t.Errorf("%s may hand out %d jobs, want %d", n.addr, got, want)
	}
}

func textOf(r Raw) string { s, _ := r.Str(); return s }
