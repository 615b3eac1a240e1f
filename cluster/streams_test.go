package cluster

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"yardmaster/job"
)

// A leader that was cut off leads nobody, though it says for a while that it
// does.
func TestHasQuorum(t *testing.T) {
	replica := func(active time.Duration, current bool) *jetstream.PeerInfo {
		return &jetstream.PeerInfo{Active: active, Current: current}
	}
	heard, quiet := replica(time.Second, true), replica(quorumQuiet+1, true)
	never, now := replica(0, false), replica(0, true)
	behind := replica(time.Second, false)
	for name, c := range map[string]struct {
		leader   string
		replicas []*jetstream.PeerInfo
		want     bool
	}{
		"all":             {"n1", []*jetstream.PeerInfo{heard, heard}, true},
		"one of two":      {"n1", []*jetstream.PeerInfo{quiet, heard}, true},
		"heard right now": {"n1", []*jetstream.PeerInfo{quiet, now}, true},
		"one is behind":   {"n1", []*jetstream.PeerInfo{behind, heard}, true},
		"only behind":     {"n1", []*jetstream.PeerInfo{behind, quiet}, false},
		"none":            {"n1", []*jetstream.PeerInfo{quiet, quiet}, false},
		"never heard":     {"n1", []*jetstream.PeerInfo{quiet, never}, false},
		"one copy":        {"n1", nil, true},
		"no leader":       {"", []*jetstream.PeerInfo{heard, heard, heard}, false},
	} {
		if got := hasQuorum(&jetstream.ClusterInfo{Leader: c.leader, Replicas: c.replicas}); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if !hasQuorum(nil) {
		t.Error("a server that runs alone has no majority")
	}
}

// A job that one lane has no room for goes to another, and is refused once
// there is none.
func TestRefused_FullLane(t *testing.T) {
	c := alone(t).Cluster
	c.SetLanes(3)
	full := &apiError{Code: 503, ErrCode: codeStoreFailed, Description: "maximum bytes exceeded"}
	for _, lanes := range []struct {
		left int // lanes that seem to answer, but for the one that is full
		want string
	}{{1, ""}, {0, "maximum bytes exceeded"}} {
		p := &publisher{c: c, state: newLaneStates(c)}
		for lane := lanes.left; lane < 3; lane++ {
			p.state.silent(uint8(lane), time.Now().Add(time.Minute))
		}
		type end struct {
			ack Ack
			err error
		}
		ended := make(chan end, 1)
		d := &delivery{p: p, queue: "mail", key: "k", body: body(1), born: time.Now(), lane: 2, done: func(a Ack, err error) { ended <- end{a, err} }}
		p.refused(d, full)
		got := <-ended
		var later *job.UnavailableError
		switch {
		case lanes.want == "" && (got.err != nil || got.ack.Lane != 0 || got.ack.Seq == 0):
			t.Errorf("with another lane: %+v, %v", got.ack, got.err)
		case lanes.want != "" && (!errors.As(got.err, &later) || !strings.Contains(later.Reason, lanes.want) || later.RetryAfter != full.delay()):
			t.Errorf("with no other lane: %v", got.err)
		}
	}
}
