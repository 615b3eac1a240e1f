package wallclock

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
)

// connect connects a client to a node. Jobs that it is sent arrive at quests. stop ends the connection.
func (y *yard) connect(n *procs.Node, quests chan overhop.Quest) (c *overhop.Client, stop func()) {
	y.t.Helper()
	ctx, cancel := context.WithCancel(y.ctx)
	c, err := overhop.Dial(ctx, n.Edge, overhop.Options{OnQuest: func(q overhop.Quest) { quests <- q }})
	if err != nil {
		y.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	return c, func() { cancel(); <-ended }
}

// beat extends the lease of a job and checks that its deadline, by the node's wall clock, is at most
// timeout away, and not nearer than least.
func (y *yard) beat(what string, n *procs.Node, c *overhop.Client, q *overhop.Quest, least, timeout time.Duration) {
	y.t.Helper()
	ok, err := c.Call(y.ctx, overhop.TBeat, overhop.Fields{"jid": q.JID, "tok": q.Token[:]}.Raw())
	if err != nil {
		y.t.Fatalf("%s: %v", what, err)
	}
	text, _ := ok.Get("deadline").Str()
	deadline, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		y.t.Fatalf("%s: %v", what, err)
	}
	if left := time.Until(deadline.Add(-y.ahead[n.Name])); left < least || left > timeout {
		y.t.Errorf("%s: the deadline is in %s by the node's clock, want %s to %s", what, left, least, timeout)
	}
}

// TestYard_Deadline checks the deadline of a job whose worker moves to a member with another clock, and
// whose node's clock is set while it runs.
func TestYard_Deadline(t *testing.T) {
	y := newYard(t, 3)
	y.launch()
	y.ask("yard.api.v1.queue.add", `{"name":"q"}`, new(any))
	const timeout, least = 10 * time.Minute, 7 * time.Minute
	from, to := y.Nodes[0], y.Nodes[1]
	y.set(time.Hour, to)

	quests := make(chan overhop.Quest, 1)
	c, stop := y.connect(from, quests)
	if _, err := c.Subscribe(y.ctx, "q", 1); err != nil {
		t.Fatal(err)
	}
	y.enqueue(fmt.Sprintf(`{"params":{},"timeout_ms":%d}`, timeout.Milliseconds()))
	var q overhop.Quest
	select {
	case q = <-quests:
	case <-y.ctx.Done():
		t.Fatal("the job does not start")
	}
	if _, err := c.Call(y.ctx, overhop.TAck, overhop.Fields{"jid": q.JID, "tok": q.Token[:]}.Raw()); err != nil {
		t.Fatal(err)
	}
	y.beat("at first", from, c, &q, least, timeout)
	y.set(-time.Hour, from)
	y.beat("set back", from, c, &q, least, timeout)
	stop()
	for _, ahead := range []time.Duration{time.Hour, -time.Hour, 0} {
		c, stop = y.connect(to, quests)
		y.beat("moved to another member", to, c, &q, least, timeout)
		y.set(ahead, to)
		y.beat("after its clock was set", to, c, &q, least, timeout)
		stop()
	}
	c, stop = y.connect(from, quests)
	y.beat("moved back", from, c, &q, least, timeout)
	done := make(chan error, 1)
	c.Done(&q, nil, 0, func(_ overhop.Raw, err error) { done <- err })
	if err := <-done; err != nil {
		t.Error(err)
	}
	stop()
}
