package cluster

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/job"
)

// closedRetryAfter is after how long a refused caller may retry. Disk space is not
// freed within moments.
const closedRetryAfter = 5 * time.Second

// SetIntakeClosed makes this node refuse new jobs from all sources with the given
// reason; "" opens the intake again. Publishes in flight complete. If othersAccept
// is true, direct publishes are routed to a lane that another member leads;
// otherwise they are refused with a JetStream error.
func (c *Cluster) SetIntakeClosed(reason string, othersAccept bool) {
	c.publisher.othersAccept.Store(othersAccept)
	c.publisher.closedFor.Store(&reason)
}

// closedReason returns why the intake is closed, "" if it is open.
func (p *publisher) closedReason() string {
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
func (r *router) closedIntakeSubject() string { return localSubject(r.c.cfg.Node, "yard.shut") }

// refuseDirectPublishes subscribes to the closed intake's subject and answers
// publishes as a full stream would.
func (r *router) refuseDirectPublishes() error {
	_, err := r.c.api.nc.Subscribe(r.closedIntakeSubject()+".*", func(m *nats.Msg) {
		if m.Reply == "" {
			return // this publisher does not wait for an acknowledgement
		}
		reason := r.c.publisher.closedReason()
		if reason == "" {
			reason = "the node's intake was closed for a moment"
		}
		reply, err := json.Marshal(map[string]any{"stream": "", "seq": 0, "error": map[string]any{
			"code": 503, "err_code": codeNoResources, "description": fmt.Sprintf("%s; try again in %s", reason, closedRetryAfter),
		}})
		if err == nil {
			err = m.Respond(reply)
		}
		if err != nil {
			r.c.log.Debug("refusal of a direct publish not sent", "err", err)
		}
	})
	return err
}

// WriteFailure returns why this node's JetStream has stopped writing until the
// node restarts, "" if it writes. A full disk causes that: the server disables
// JetStream, or a stream refuses everything after the failed write.
func (c *Cluster) WriteFailure() string {
	if !c.srv.JetStreamEnabled() {
		return "JetStream has stopped, as it does when its disk is full or fails"
	}
	for _, e := range c.srv.Healthz(&server.HealthzOptions{Details: true}).Errors {
		if strings.Contains(e.Error, "write error") {
			return e.Error
		}
	}
	return ""
}

// AvailableLanes returns the number of lanes that accept jobs, as far as this node
// knows.
func (c *Cluster) AvailableLanes() int { return c.publisher.state.availableCount() }

func (s *laneStates) availableCount() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.c.Lanes() {
		if !s.lane[i].mismatched && (s.lane[i].led || s.lane[i].downUntil.IsZero()) {
			n++
		}
	}
	return n
}
