package drill

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/frame"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/drill/hostile"
)

// The maximum cost of hostile clients for a node.
const (
	hostileMemory     = 400 << 10 // KiB
	hostileGoroutines = 200       // after they have disconnected
	hostileLines      = 2000      // lines of log
)

// TestHostile_Clients runs hundreds of clients that violate the protocol in every
// way, next to a well-behaved producer and worker, whose jobs must all complete. When
// the clients have disconnected, their cost must be gone too.
func TestHostile_Clients(t *testing.T) {
	const span = 15 * time.Second // longer than a connection may stay unregistered
	if testing.Short() {
		t.Skip("starts a process")
	}
	program, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second+3*span)
	defer cancel()
	cl, err := procs.Start(ctx, procs.Options{
		Nodes: 1, Dir: t.TempDir(), Binary: program, Profile: true,
		Config: "[limits]\nwrite_timeout = \"1s\"\nmax_connections_per_address = 20000\n",
	})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Stop()
	n := cl.Nodes[0]
	h := newHonest(t, ctx, n.Edge)
	lure := h.layBait()
	h.work(100) // warm up
	before := h.measure(n)
	calm := h.work(200)

	attackers, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	count := 0
	for _, a := range hostile.All(lure) {
		for range max(1, a.Weight/2) {
			all.Go(func() { a.Run(attackers, n.Edge) })
			count++
		}
	}
	var stormy []time.Duration
	most := before
	for began := time.Now(); time.Since(began) < span; {
		stormy = append(stormy, h.work(10)...)
		now := h.measure(n)
		most.rss, most.connections = max(most.rss, now.rss), max(most.connections, now.connections)
	}
	stop()
	all.Wait()
	var after nodeUsage
	err = cl.Until(ctx, "the resources of the attackers are released", func() error {
		after = h.measure(n)
		if after.connections != before.connections || after.goroutines > before.goroutines+hostileGoroutines {
			return fmt.Errorf("%+v now, %+v before", after, before)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if grown := most.rss - before.rss; grown > hostileMemory {
		t.Errorf("the node grew by %d MiB, at most %d", grown>>10, hostileMemory>>10)
	}
	if lines := h.lines(n) - before.lines; lines > hostileLines {
		t.Errorf("the attack filled %d lines of the log, at most %d; %s", lines, hostileLines, n.OutputTail())
	}
	h.check()
	t.Logf("%d attackers, %d connections at most; memory %d MiB before, %d at most, %d after; %d honest jobs meanwhile, %d QUESTs of them repeated",
		count, most.connections, before.rss>>10, most.rss>>10, after.rss>>10, len(stormy), h.repeated)
	t.Logf("ENQUEUE to DONE's answer: calm p50 %s p99 %s, meanwhile p50 %s p99 %s",
		quantile(calm, 50), quantile(calm, 99), quantile(stormy, 50), quantile(stormy, 99))
}

func quantile(d []time.Duration, percent int) time.Duration {
	slices.Sort(d)
	return d[min(len(d)-1, len(d)*percent/100)].Round(10 * time.Microsecond)
}

// honestClients is a producer and a worker of the queue "honest", with a connection
// each, that send one request at a time.
type honestClients struct {
	t                *testing.T
	producer, worker *rawClient
	jobs             int // completed
	repeated         int // repeated QUESTs
}

func newHonest(t *testing.T, ctx context.Context, edge string) *honestClients {
	h := &honestClients{t: t, producer: dialRaw(t, ctx, edge), worker: dialRaw(t, ctx, edge)}
	h.producer.must(overhop.TAddQueue, overhop.Fields{"name": "honest"})
	h.worker.must(overhop.TSubscribe, overhop.Fields{"q": "honest", "credits": 1})
	return h
}

// layBait enqueues a job with a large body in a paused queue and returns its JID.
func (h *honestClients) layBait() (jid string) {
	h.producer.must(overhop.TAddQueue, overhop.Fields{"name": "lure"})
	h.producer.must(overhop.TPause, overhop.Fields{"q": "lure"})
	ok := h.producer.must(overhop.TEnqueue, overhop.Fields{"q": "lure", "job_payload": bytes.Repeat([]byte("x"), 256<<10)})
	jid, _ = ok.Get("jid").Str()
	return jid
}

// work enqueues and runs n jobs, one after the other, and returns how long each took.
func (h *honestClients) work(n int) (took []time.Duration) {
	h.t.Helper()
	for range n {
		began := time.Now()
		key := uuid.NewString() // makes repetitions the same job
		ok := h.producer.must(overhop.TEnqueue, overhop.Fields{"q": "honest", "key": key, "job_payload": overhop.Fields{"n": h.jobs}})
		jid, _ := ok.Get("jid").Str()
		for {
			q := h.worker.quest()
			got, _ := q.Get("jid").Str()
			done := overhop.Fields{"jid": got, "tok": q.Get("tok"), "credits": 1}
			_, code := h.worker.ask(overhop.TDone, done)
			if got == jid && code == "" {
				break
			}
			h.repeated++ // another dispatch of a job whose first one was too slow
		}
		h.jobs++
		took = append(took, time.Since(began))
	}
	return took
}

// check requires that the cluster counts each job once, as completed.
func (h *honestClients) check() {
	h.t.Helper()
	stats := h.producer.must(overhop.TQStats, overhop.Fields{"q": "honest"}).Get("stats")
	for state, count := range stats.Pairs() {
		got, _ := count.Int()
		want := int64(0)
		if string(state) == "completed" {
			want = int64(h.jobs)
		}
		if got != want {
			h.t.Errorf("%d honest jobs are %s, want %d", got, state, want)
		}
	}
}

// nodeUsage is the resource usage of a node: memory in KiB, and lines of log.
type nodeUsage struct {
	rss, connections  int64
	goroutines, lines int
}

func (h *honestClients) measure(n *procs.Node) (m nodeUsage) {
	h.t.Helper()
	status := h.producer.must(overhop.TStatus, nil)
	m.rss, _ = status.Get("memory").Get("vm_rss_kb").Int()
	anonymous, _ := status.Get("pools").Get("anonymous_total").Int()
	workers, _ := status.Get("pools").Get("workers_total").Int()
	m.connections = anonymous + workers
	m.lines = h.lines(n)
	answer, err := http.Get("http://" + n.Profile + "/debug/pprof/goroutine?debug=1")
	if err != nil {
		h.t.Fatal(err)
	}
	defer answer.Body.Close()
	first, _ := bufio.NewReader(answer.Body).ReadString('\n') // "goroutine profile: total 42"
	m.goroutines, err = strconv.Atoi(string(bytes.TrimSpace([]byte(first[len("goroutine profile: total"):]))))
	if err != nil {
		h.t.Fatal(err)
	}
	return m
}

func (h *honestClients) lines(n *procs.Node) int {
	text, err := os.ReadFile(n.LogFile)
	if err != nil {
		h.t.Fatal(err)
	}
	return bytes.Count(text, []byte("\n"))
}

// rawClient sends one request at a time over one connection.
type rawClient struct {
	t      *testing.T
	ctx    context.Context
	nc     net.Conn
	in     *frame.Reader
	rid    int
	quests []overhop.Raw // received between answers
}

func dialRaw(t *testing.T, ctx context.Context, edge string) *rawClient {
	t.Helper()
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", edge)
	if err != nil {
		t.Fatal(err)
	}
	context.AfterFunc(ctx, func() { nc.Close() })
	c := &rawClient{t: t, ctx: ctx, nc: nc, in: frame.NewReader(nc, overhop.MaxFrameLimit)}
	c.must(overhop.THello, overhop.Fields{"ext": []string{overhop.Delivery}})
	c.must(overhop.TRegister, nil)
	return c
}

// must repeats a request while the answer is UNAVAILABLE, and requires an OK.
func (c *rawClient) must(t int64, p overhop.Fields) overhop.Raw {
	c.t.Helper()
	ok, code := c.ask(t, p)
	if code != "" {
		c.t.Fatalf("t=%d is answered %s", t, code)
	}
	return ok
}

func (c *rawClient) ask(t int64, p overhop.Fields) (ok overhop.Raw, code overhop.Code) {
	c.t.Helper()
	for code = overhop.CodeUnavailable; code == overhop.CodeUnavailable; {
		c.rid++
		b, _ := overhop.AppendFields(nil, t, strconv.Itoa(c.rid), p)
		if _, err := c.nc.Write(b); err != nil {
			c.t.Fatal(cmp.Or(c.ctx.Err(), err))
		}
		e := c.next()
		for e.RID == overhop.PushRID {
			if e.T == overhop.TQuest {
				c.quests = append(c.quests, e.P)
			}
			e = c.next()
		}
		text, _ := e.P.Get("code").Str()
		ok, code = e.P, overhop.Code(text)
	}
	return ok, code
}

// quest waits for the next QUEST.
func (c *rawClient) quest() overhop.Raw {
	c.t.Helper()
	for len(c.quests) == 0 {
		if e := c.next(); e.T == overhop.TQuest {
			c.quests = append(c.quests, e.P)
		}
	}
	q := c.quests[0]
	c.quests = c.quests[1:]
	return q
}

func (c *rawClient) next() overhop.Envelope {
	c.t.Helper()
	b, err := c.in.Next()
	if err != nil {
		c.t.Fatalf("the connection of the honest client: %v", cmp.Or(c.ctx.Err(), err))
	}
	e, err := overhop.ParseEnvelope(slices.Clone(b))
	if err != nil {
		c.t.Fatal(err)
	}
	return e
}
