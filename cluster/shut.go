package cluster

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"yardmaster/job"
)

// shutDelay is when a refused caller may ask again: disks do not empty by
// themselves.
const shutDelay = 5 * time.Second

// Shut has this node take no jobs in, whichever way they come, and say why; ""
// opens it again. What is under way already goes on. Plain publishes go to a lane
// that another member leads if others may take them, and are else refused in
// JetStream's own words.
func (c *Cluster) Shut(why string, others bool) {
	c.publisher.others.Store(others)
	c.publisher.shut.Store(&why)
}

// whyShut is why no job is taken in; "" if jobs are.
func (p *publisher) whyShut() string {
	if why := p.shut.Load(); why != nil {
		return *why
	}
	return ""
}

func shutError(why string) error { return &job.UnavailableError{Reason: why, RetryAfter: shutDelay} }

// subjectShut is where plain publishes are mapped to that nobody is to store.
func (r *router) subjectShut() string { return localSubject(r.c.cfg.Node, "yard.shut") }

// refusePlain answers plain publishes while the node is shut, as a stream would
// that has no room.
func (r *router) refusePlain() error {
	_, err := r.c.api.nc.Subscribe(r.subjectShut()+".*", func(m *nats.Msg) {
		if m.Reply == "" {
			return // its publisher hears nothing of any stream
		}
		why := r.c.publisher.whyShut()
		if why == "" {
			why = "the node has just been shut for a moment"
		}
		answer, err := json.Marshal(map[string]any{"stream": "", "seq": 0, "error": map[string]any{
			"code": 503, "err_code": codeInsufficient, "description": fmt.Sprintf("%s; try again in %s", why, shutDelay),
		}})
		if err == nil {
			err = m.Respond(answer)
		}
		if err != nil {
			r.c.log.Debug("a refusal is not sent", "error", err)
		}
	})
	return err
}

// codeInsufficient is JetStream's for a lack of room.
const codeInsufficient = 10023

// Frozen tells why this node's JetStream writes no more until its server is
// started anew; "" if it writes. A full disk does that: it has the server disable
// JetStream, or a stream refuse what comes after the write that failed.
func (c *Cluster) Frozen() string {
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

// Answering is how many lanes take jobs, as far as this node has seen.
func (c *Cluster) Answering() int { return c.publisher.state.answering() }

func (s *laneStates) answering() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.c.Lanes() {
		if !s.lane[i].foreign && (s.lane[i].led || s.lane[i].down.IsZero()) {
			n++
		}
	}
	return n
}
