package cluster

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/job"
)

// TestHasQuorum checks that a leader that was cut off has no quorum, although it
// still claims to lead for a while.
func TestHasQuorum(t *testing.T) {
	replica := func(active time.Duration, current bool) *jetstream.PeerInfo {
		return &jetstream.PeerInfo{Active: active, Current: current}
	}
	connected, silent := replica(time.Second, true), replica(replicaContactTimeout+1, true)
	never, now := replica(0, false), replica(0, true)
	behind := replica(time.Second, false)
	for name, c := range map[string]struct {
		leader   string
		replicas []*jetstream.PeerInfo
		want     bool
	}{
		"all":                  {"n1", []*jetstream.PeerInfo{connected, connected}, true},
		"one of two":           {"n1", []*jetstream.PeerInfo{silent, connected}, true},
		"in contact right now": {"n1", []*jetstream.PeerInfo{silent, now}, true},
		"one is behind":        {"n1", []*jetstream.PeerInfo{behind, connected}, true},
		"only behind":          {"n1", []*jetstream.PeerInfo{behind, silent}, false},
		"none":                 {"n1", []*jetstream.PeerInfo{silent, silent}, false},
		"never in contact":     {"n1", []*jetstream.PeerInfo{silent, never}, false},
		"one replica":          {"n1", nil, true},
		"no leader":            {"", []*jetstream.PeerInfo{connected, connected, connected}, false},
	} {
		if got := hasQuorum(&jetstream.ClusterInfo{Leader: c.leader, Replicas: c.replicas}); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if !hasQuorum(nil) {
		t.Error("a server that runs alone has no quorum")
	}
}

// TestPublish_FullLane checks that a job that does not fit into one lane goes to
// another, and is refused if none has space.
func TestPublish_FullLane(t *testing.T) {
	c := startSingle(t).Server
	c.local.setLanes(3)
	full := &apiError{Code: 503, ErrCode: codeStoreFailed, Description: "maximum bytes exceeded"}
	for _, lanes := range []struct {
		left int // lanes that seem to answer, other than the full one
		want string
	}{{1, ""}, {0, "maximum bytes exceeded"}} {
		p := &Publisher{local: c.local, state: &laneStates{local: c.local}}
		for lane := lanes.left; lane < 3; lane++ {
			p.state.markNoAnswer(uint8(lane), time.Now().Add(time.Minute))
		}
		type end struct {
			ack Ack
			err error
		}
		ended := make(chan end, 1)
		d := &pendingPublish{p: p, queue: "mail", key: "k", body: jobBody(1), started: time.Now(), lane: 2, done: func(a Ack, err error) { ended <- end{a, err} }}
		p.handleError(d, full)
		got := <-ended
		var later *job.UnavailableError
		switch {
		case lanes.want == "" && (got.err != nil || got.ack.Lane != 0 || got.ack.Seq == 0):
			t.Errorf("with another lane: %+v, %v", got.ack, got.err)
		case lanes.want != "" && (!errors.As(got.err, &later) || !strings.Contains(later.Reason, lanes.want) || later.RetryAfter != full.retryAfter()):
			t.Errorf("with no other lane: %v", got.err)
		}
	}
}
