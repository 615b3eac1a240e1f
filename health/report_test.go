package health

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/consensus"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
)

// Without an answer of the authority, readiness has the reason.
func TestReadiness_NoAuthority(t *testing.T) {
	s := scheduler.New(scheduler.Config{Node: "n1", Members: []string{"n1"}}, nil, nil, nil, nil, slog.New(slog.DiscardHandler))
	r := NewReporter(ReporterConfig{
		Now:    func(l *ledger.Ledger) time.Time { return l.Now() },
		Tenure: s.Status, Skew: func() []string { return nil },
		Raft:      func() consensus.Status { return consensus.Status{Leader: "n2"} },
		Authority: func() (string, bool) { return "", false },
	})
	if l := r.localAuthorityStatus(t.Context()); !strings.HasPrefix(l.Error, "this node holds the lease and does not decide yet") {
		t.Errorf("a node without a tenure: %+v", l)
	}
	if why := r.AuthorityStatus(t.Context()).Error; !strings.HasPrefix(why, "no authority is known") {
		t.Error(why)
	}
}

// A node that accepts no jobs has a reason, and one that does has none.
func TestAcceptingJobs(t *testing.T) {
	lane := func(leader string, full bool) laneState {
		return laneState{LaneStatus: api.LaneStatus{Leader: leader}, full: full}
	}
	led := []laneState{{}, lane("n2", false)}
	for _, c := range []struct {
		sound     error
		lanes     []laneState
		accepting bool
		why       string
	}{
		{nil, led, true, ""},
		{nil, led[:1], false, "no lane has a leader that this node hears: it accepts no jobs until one has"},
		{nil, []laneState{{}, lane("n2", true)}, false, ""}, // the authority reports that
		{nil, []laneState{lane("n1", false), lane("n2", true)}, true, ""},
		{errors.New("JetStream is not healthy: x"), led, false, "JetStream is not healthy: x: this node accepts no jobs until it is; others may"},
		{nil, nil, false, ""},
	} {
		if accepting, why := acceptingJobs(c.sound, c.lanes); accepting != c.accepting || strings.Join(why, "\n") != c.why {
			t.Errorf("%v, %v: %t because %q", c.sound, c.lanes, accepting, why)
		}
	}
}

// streamsNotMade is true from the first entry until the authority has created the streams.
func TestStreamsNotMade(t *testing.T) {
	l := ledger.New()
	at := ledger.Stamp{Index: 1, Term: 1, At: time.Unix(1, 0)}
	for i, step := range []struct {
		command ledger.Command
		unmade  bool
	}{
		{nil, false},
		{&ledger.Lead{Owner: "n1", Until: time.Unix(11, 0)}, true},
		{&ledger.Bootstrap{Secret: []byte{1}, Lanes: []string{"L0"}}, true},
		{&ledger.Bootstrap{StreamsCreated: true}, false},
	} {
		if step.command != nil {
			if r := l.Apply(at, []ledger.Command{step.command}); r[0].Err != nil {
				t.Fatal(r[0].Err)
			}
			at.Index, at.Epoch = at.Index+1, l.Authority().Epoch
		}
		if got := streamsNotMade(l); got != step.unmade {
			t.Errorf("after step %d: %t", i, got)
		}
	}
}

// A yard that is ready warns of a member that is down, or that the authority does not know,
// except the node itself, and not of any while the authority is silent.
func TestDownWarnings(t *testing.T) {
	raft := consensus.Status{Leader: "n1", Members: []consensus.MemberInfo{{Name: "n1"}, {Name: "n2"}, {Name: "n3"}}}
	nodes := []api.NodeStatus{{Name: "n1", Silent: true}, {Name: "n2", Silent: true}}
	r := &Reporter{cfg: ReporterConfig{Node: "n1"}}
	got := strings.Join(r.downWarnings(memberStatuses(raft, &scheduler.AuthorityStatus{Nodes: nodes})), "\n")
	if strings.Count(got, "\n") != 1 || !strings.HasPrefix(got, "member n2 is down: start it") || !strings.Contains(got, "\nmember n3 is down") {
		t.Errorf("%q", got)
	}
	if got := r.downWarnings(memberStatuses(raft, &scheduler.AuthorityStatus{Error: "no answer"})); got != nil {
		t.Errorf("without the authority: %q", got)
	}
}
