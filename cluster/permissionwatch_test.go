package cluster

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/cluster/streams"
)

// TestClient_Forbidden checks that a client without permission gets an error at
// once instead of a timeout.
func TestClient_Forbidden(t *testing.T) {
	opts := &server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true}
	opts.Users = []*server.User{{Username: "shop", Password: "pw", Permissions: &server.Permissions{
		Publish: &server.SubjectPermission{Allow: []string{"yard.enqueue.mail"}}, Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX_shop.>"}},
	}}, {Username: "node", Password: "pw"}}
	srv, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	if !srv.ReadyForConnections(10 * time.Second) {
		t.Fatal("no server")
	}
	dial := func(inbox string) *Client {
		c, err := Dial(t.Context(), srv.ClientURL(), DialOptions{User: "shop", Password: "pw", InboxPrefix: inbox, Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	c := dial("_INBOX_shop")
	node, err := nats.Connect(srv.ClientURL(), nats.UserInfo("node", "pw"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(node.Close)
	if _, err := node.Subscribe("yard.enqueue.mail", func(m *nats.Msg) { _ = m.Respond([]byte("{}")) }); err != nil {
		t.Fatal(err)
	}
	if err := node.Flush(); err != nil {
		t.Fatal(err)
	}
	if answer, err := c.Request(t.Context(), "yard.enqueue.mail", nil); err != nil || string(answer) != "{}" {
		t.Errorf("permitted request: %q, %v", answer, err)
	}
	wants := func(what, subject string, err error) {
		t.Helper()
		if forbidden := (*ForbiddenError)(nil); !errors.As(err, &forbidden) || forbidden.Subject != subject {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err = dial("_INBOX_other").Request(t.Context(), "yard.enqueue.mail", nil)
	if forbidden := (*ForbiddenError)(nil); !errors.As(err, &forbidden) {
		t.Errorf("inbox of another user: %v", err)
	}
	_, err = c.Request(t.Context(), "yard.status", nil)
	wants("a question", "yard.status", err)
	err = c.History(t.Context(), time.Time{}, false, func(streams.Batch) error { return nil })
	if forbidden := (*ForbiddenError)(nil); !errors.As(err, &forbidden) {
		t.Errorf("history: %v", err)
	}
}

// TestPermissionWatch_OwnSubject checks that a permission error only ends the
// request for its subject.
func TestPermissionWatch_OwnSubject(t *testing.T) {
	f := &permissionWatch{requests: map[*watchedRequest]struct{}{}}
	a, doneA := f.watch(t.Context(), "a")
	b, doneB := f.watch(t.Context(), "b")
	f.onError(nil, nil, fmt.Errorf("%w: Permissions Violation for Publish to %q", nats.ErrPermissionViolation, "a"))
	if a.Err() == nil || b.Err() != nil {
		t.Errorf("context of a: %v, of b: %v", a.Err(), b.Err())
	}
	if err := doneA(context.Canceled); err.Error() != "this user may not use a" {
		t.Errorf("a: %v", err)
	}
	if err := doneB(nil); err != nil || len(f.requests) != 0 {
		t.Errorf("b: %v, %d requests left", err, len(f.requests))
	}
}
