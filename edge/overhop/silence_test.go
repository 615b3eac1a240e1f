package overhop

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A silent node is given up while it owes an answer, and only then.
func TestClient_Silence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newFakeCluster(t)
		c, ended := connect(t, y, Options{})
		time.Sleep(time.Hour)
		if _, err := c.Call(t.Context(), TPing, EmptyMap); err != nil {
			t.Fatalf("after an hour of peace: %v", err)
		}
		y.setAnswer(func(n *fakeNode, e Envelope) (func(), bool) { return nil, true })
		begin := time.Now()
		if _, err := c.Call(t.Context(), TPing, EmptyMap); !errors.Is(err, ErrClosed) || !strings.Contains(err.Error(), "sent nothing") {
			t.Errorf("%v", err)
		}
		if took := time.Since(begin); took < responseTimeout || took > responseTimeout+time.Second {
			t.Errorf("given up after %s", took)
		}
		if err := <-ended; err == nil {
			t.Error("run ended well")
		}
	})
}

// A node that hangs is left long before the network would report an error: it
// accepts connections and sends nothing.
func TestWorker_SilentNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newFakeCluster(t)
		w := Worker{Nodes: []string{"n1", "n2"}, Dial: y.dial, Log: discardLog, ShutdownGrace: time.Millisecond}
		w.Handle("mail", 2, waitHandler(nil))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		dead := y.node(0)
		dead.quest(1, nil)
		y.setAnswer(func(n *fakeNode, e Envelope) (func(), bool) { return nil, n.addr == dead.addr })
		time.Sleep(12 * time.Second)
		n := y.node(y.count() - 1)
		if n.addr == dead.addr {
			t.Error("the worker did not try another node")
		}
		n.onlyMessage(TSubscribe)
		if got := n.messages(TBeat); len(got) == 0 {
			t.Error("the running job was not moved")
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A node that is alive is not left because it owes answers while the yard
// commits something.
func TestWorker_SlowNode(t *testing.T) {
	handler := func(ctx context.Context, q *Quest) (Raw, error) {
		if q.JID == "mail:2" {
			<-ctx.Done() // its BEATs wait behind the end of the first
		}
		return nil, nil
	}
	runWorker(t, handler, func(y *fakeCluster) {
		var owed []Envelope
		slow := true
		y.setAnswer(func(n *fakeNode, e Envelope) (func(), bool) {
			held := n.index == 0 && slow && (e.T == TDone || len(owed) > 0) // answers come in order
			if held {
				owed = append(owed, e)
			}
			return nil, held
		})
		n := y.node(0)
		n.quest(1, nil)
		q := n.quest(2, nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		slow = false
		if len(owed) < 2 {
			t.Fatalf("the node owes %d answers, want a DONE's and a BEAT's at least", len(owed))
		}
		for _, e := range owed {
			n.defaultAnswer(e)
		}
		n.expectBalance(1)
		n.push(TRecall, Fields{"jid": q.JID, "tok": q.Token[:], "reason": "CANCELLED", "grace_ms": 0})
		n.expectBalance(2)
		if got := n.messages(TDone); len(got) != 2 {
			t.Errorf("the node received %d DONEs, want 2: the worker has left it", len(got))
		}
		for i := 1; i < y.count(); i++ {
			if got := y.node(i).messages(TRegister); len(got) > 0 {
				t.Error("the worker registered a second time")
			}
		}
	})
}

// Any reaction of a node in time is a sign of life.
func TestNodeDialer_Alive(t *testing.T) {
	quits := func(n *fakeNode, _ Envelope) (func(), bool) { return func() { n.nc.Close() }, true }
	for name, c := range map[string]struct {
		refuse error
		answer func(*fakeNode, Envelope) (func(), bool)
		want   bool
		took   time.Duration
	}{
		"answers":      {nil, nil, true, 0},
		"hangs up":     {nil, quits, true, 0},
		"says nothing": {nil, func(*fakeNode, Envelope) (func(), bool) { return nil, true }, false, probeTimeout},
		"is not there": {errors.New("connection refused"), nil, false, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			y := newFakeCluster(t)
			y.dialErr = func(string) error { return c.refuse }
			y.setAnswer(c.answer)
			begin := time.Now()
			if got := newNodeDialer([]string{"n1"}, y.dial, nil).alive(t.Context(), "n1"); got != c.want || time.Since(begin) != c.took {
				t.Errorf("a node that %s: %t after %s", name, got, time.Since(begin))
			}
		})
	}
}
