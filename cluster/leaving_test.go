package cluster

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// Clients are told to go, and those that are quiet are let go; the node itself goes
// on.
func TestDismiss(t *testing.T) {
	c := alone(t)
	told, gone := make(chan struct{}), make(chan struct{}, 1)
	quietOne, err := nats.Connect(c.ClientURL(), nats.NoReconnect(),
		nats.LameDuckModeHandler(func(*nats.Conn) { close(told) }), nats.ClosedHandler(func(*nats.Conn) { gone <- struct{}{} }))
	if err != nil {
		t.Fatal(err)
	}
	defer quietOne.Close()
	began := time.Now()
	if err := c.Dismiss(within(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < quietClient {
		t.Errorf("it was let go after %s, before it could be called quiet", took)
	}
	for what, heard := range map[string]chan struct{}{"was told to go": told, "was let go": gone} {
		select {
		case <-heard:
		case <-within(t, 10*time.Second).Done():
			t.Errorf("nobody %s", what)
		}
	}
	if _, err := c.PublishWait(within(t, 5*time.Second), "mail", "", time.Now(), body(0)); err != nil {
		t.Errorf("the node's own connections are gone as well: %v", err)
	}
}
