package cluster

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// TestSetIntakeClosed checks that a node with a closed intake refuses jobs from
// all sources at once, with the reason, and accepts jobs again when the intake is
// opened.
func TestSetIntakeClosed(t *testing.T) {
	c := startSingle(t)
	nc, err := nats.Connect(c.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	direct := func() error {
		_, err := js.Publish(withDeadline(t, 5*time.Second), subjects.Jobs+".mail", jobBody(1))
		return err
	}
	if err := direct(); err != nil {
		t.Fatalf("before: %v", err)
	}
	c.Publisher.SetIntakeClosed("no room", false)
	_, err = publishWait(withDeadline(t, patience), c.Publisher, "mail", "k", time.Time{}, jobBody(2))
	var later *job.UnavailableError
	if !errors.As(err, &later) || later.Reason != "no room" || later.RetryAfter != 5*time.Second {
		t.Errorf("a node's publish: %v", err)
	}
	eventually(t, "a direct publish to be refused", func() error {
		begun := time.Now()
		var refused *jetstream.APIError
		if err := direct(); !errors.As(err, &refused) || refused.Code != 503 || !strings.Contains(refused.Description, "no room") {
			return errors.Join(errors.New("want 503 and the reason"), err)
		}
		if took := time.Since(begun); took > 2*time.Second {
			t.Errorf("it took %s", took)
		}
		return nil
	})
	c.Publisher.SetIntakeClosed("", true)
	eventually(t, "a direct publish to be accepted", direct)
	if _, err = publishWait(withDeadline(t, patience), c.Publisher, "mail", "k", time.Time{}, jobBody(2)); err != nil {
		t.Errorf("after: %v", err)
	}
}
