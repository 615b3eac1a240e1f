package lanes

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"
)

// closedRetryAfter is after how long a refused caller may retry. Disk space is not
// freed within moments.
const closedRetryAfter = 5 * time.Second

// SetIntakeClosed makes this node refuse new jobs from all sources with the given
// reason; "" opens the intake again. Publishes in flight complete. If othersAccept
// is true, direct publishes are routed to a lane that another member leads;
// otherwise they are refused with a JetStream error.
func (p *Publisher) SetIntakeClosed(reason string, othersAccept bool) {
	p.othersAccept.Store(othersAccept)
	p.closedFor.Store(&reason)
}

// closedReason returns why the intake is closed, "" if it is open.
func (p *Publisher) closedReason() string {
	if reason := p.closedFor.Load(); reason != nil {
		return *reason
	}
	return ""
}

// closedError returns the error of a publish while the intake is closed.
func closedError(reason string) error {
	return &job.UnavailableError{Reason: reason, RetryAfter: closedRetryAfter}
}

// closedIntakeSubject returns the subject that direct publishes are mapped to
// while they are refused.
func (r *router) closedIntakeSubject() string {
	return subjects.LocalSubject(r.local.Config.Node, "yard.shut")
}

// refuseDirectPublishes subscribes to the closed intake's subject and answers
// publishes as a full stream would.
func (r *router) refuseDirectPublishes() error {
	_, err := r.local.API.Conn.Subscribe(r.closedIntakeSubject()+".*", func(m *nats.Msg) {
		if m.Reply == "" {
			return // this publisher does not wait for an acknowledgement
		}
		reason := r.publisher.closedReason()
		if reason == "" {
			reason = "the node's intake was closed for a moment"
		}
		reply, err := json.Marshal(map[string]any{"stream": "", "seq": 0, "error": map[string]any{
			"code": 503, "err_code": embedded.CodeNoResources, "description": fmt.Sprintf("%s; try again in %s", reason, closedRetryAfter),
		}})
		if err == nil {
			err = m.Respond(reply)
		}
		if err != nil {
			r.local.Log.Debug("refusal of a direct publish not sent", "err", err)
		}
	})
	return err
}

// AvailableLanes returns the number of lanes that accept jobs, as far as this node
// knows.
func (p *Publisher) AvailableLanes() int { return p.state.availableCount() }

func (s *laneStates) availableCount() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.local.Lanes() {
		if !s.lane[i].mismatched && (s.lane[i].led || s.lane[i].downUntil.IsZero()) {
			n++
		}
	}
	return n
}
