package cluster

import (
	"errors"
	"strings"
	"testing"
	"time"

	"yardmaster/job"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A node that is shut refuses on every road at once, with the reason; and takes
// jobs again when it is opened.
func TestShut(t *testing.T) {
	c := alone(t)
	nc, err := nats.Connect(c.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	plain := func() error {
		_, err := js.Publish(within(t, 5*time.Second), JobsSubject("mail"), body(1))
		return err
	}
	if err := plain(); err != nil {
		t.Fatalf("before: %v", err)
	}
	c.Shut("no room", false)
	_, err = c.PublishWait(within(t, 5*time.Second), "mail", "k", time.Time{}, body(2))
	var later *job.UnavailableError
	if !errors.As(err, &later) || later.Reason != "no room" || later.RetryAfter != shutDelay {
		t.Errorf("a node's publish: %v", err)
	}
	eventually(t, "a plain publish is refused", func() error {
		begun := time.Now()
		var refused *jetstream.APIError
		if err := plain(); !errors.As(err, &refused) || refused.Code != 503 || !strings.Contains(refused.Description, "no room") {
			return errors.Join(errors.New("want 503 and the reason"), err)
		}
		if took := time.Since(begun); took > 2*time.Second {
			t.Errorf("it took %s", took)
		}
		return nil
	})
	c.Shut("", true)
	eventually(t, "a plain publish is taken", plain)
	if _, err = c.PublishWait(within(t, 5*time.Second), "mail", "k", time.Time{}, body(2)); err != nil {
		t.Errorf("after: %v", err)
	}
}

func TestLaneStates_RouteElsewhere(t *testing.T) {
	s := newLaneStates(&Cluster{cfg: Config{Node: "n1", Peers: []Peer{{Node: "n1"}, {Node: "n2"}, {Node: "n3"}}}})
	s.c.SetLanes(3)
	now := time.Now()
	s.lead(now, func(lane uint8) bool { return lane == 0 })
	if got := s.routeElsewhere(now); got != 1 {
		t.Errorf("route %d; want lane 1, which another leads", got)
	}
	s.silent(1, now)
	if got := s.routeElsewhere(now); got != 2 {
		t.Errorf("route %d; want lane 2, which answers", got)
	}
	s.silent(2, now)
	if got := s.routeElsewhere(now); got != shutOff {
		t.Errorf("route %d; want none", got)
	}
	if got := s.answering(); got != 1 {
		t.Errorf("%d lanes answer; want the one that is led here", got)
	}
}

func TestSpread_OwnerOf(t *testing.T) {
	members := []string{"n1", "n2", "n3"}
	for lane, want := range []string{"n1", "n3", "n3"} {
		if got := ownerOf(lane, members, []string{"n1", "n3"}); got != want {
			t.Errorf("lane %d goes to %s; want %s", lane, got, want)
		}
	}
}
