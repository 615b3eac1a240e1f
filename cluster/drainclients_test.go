package cluster

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// TestDrainClients checks that clients are notified and disconnected when they are
// idle, while the node's own connections stay open.
func TestDrainClients(t *testing.T) {
	c := startSingle(t)
	notified, disconnected := make(chan struct{}), make(chan struct{}, 1)
	idleClient, err := nats.Connect(c.ClientURL(), nats.NoReconnect(),
		nats.LameDuckModeHandler(func(*nats.Conn) { close(notified) }), nats.ClosedHandler(func(*nats.Conn) { disconnected <- struct{}{} }))
	if err != nil {
		t.Fatal(err)
	}
	defer idleClient.Close()
	began := time.Now()
	if err := c.DrainClients(withDeadline(t, patience)); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < idleClientAfter {
		t.Errorf("disconnected after %s, before it was idle", took)
	}
	for what, event := range map[string]chan struct{}{"notified": notified, "disconnected": disconnected} {
		select {
		case <-event:
		case <-withDeadline(t, patience).Done():
			t.Errorf("client not %s", what)
		}
	}
	if _, err := publishWait(withDeadline(t, patience), c.Publisher, "mail", "", time.Now(), jobBody(0)); err != nil {
		t.Errorf("the node's own connections are closed: %v", err)
	}
}
