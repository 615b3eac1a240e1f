package lanes

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"
)

// The local subjects of this node that yard.jobs.* is mapped to while publishes are refused,
// and while their acknowledgements are delayed.
const (
	refusedPublishes = "yard.shut"
	slowPublishes    = "yard.slow"
)

// closedRetryAfter is after how long a caller that a closed intake has refused may retry.
// Disk space is not freed within moments.
const closedRetryAfter = 5 * time.Second

// forwardTimeout is how long a direct publish that was forwarded may take: as long as
// clients of NATS wait for it by default. It cannot be sent to another lane, and a client
// that gets no reply publishes again.
const forwardTimeout = 5 * time.Second

// localSubject returns a subject that only this node receives, without its queue.
func (r *router) localSubject(name string) string {
	return subjects.LocalSubject(r.local.Config.Node, name)
}

// serveDirectPublishes subscribes to the direct publishes that are refused or forwarded.
func (r *router) serveDirectPublishes() error {
	_, err := r.local.API.Conn.Subscribe(r.localSubject(refusedPublishes)+".*", func(m *nats.Msg) { r.refuse(m, r.refusal()) })
	_, slowErr := r.local.Ingest.Conn.Subscribe(r.localSubject(slowPublishes)+".*", r.forward)
	return errors.Join(err, slowErr)
}

// refusal returns why direct publishes are refused.
func (r *router) refusal() *job.UnavailableError {
	if reason := r.publisher.closedReason(); reason != "" {
		return &job.UnavailableError{Reason: reason, RetryAfter: closedRetryAfter}
	}
	if later := r.publisher.load.refuse(); later != nil {
		return later
	}
	return &job.UnavailableError{Reason: "the node's intake was closed for a moment", RetryAfter: time.Second}
}

// refuse answers a direct publish as a full stream would.
func (r *router) refuse(m *nats.Msg, why *job.UnavailableError) {
	if m.Reply == "" || subjects.IsReserved(m.Reply) {
		return // this publisher does not wait for an acknowledgement
	}
	reply, err := json.Marshal(map[string]any{"stream": "", "seq": 0, "error": map[string]any{
		"code": 503, "err_code": embedded.CodeNoResources, "description": fmt.Sprintf("%s; try again in %s", why.Reason, why.RetryAfter),
	}})
	if err == nil {
		err = m.Respond(reply)
	}
	if err != nil {
		r.local.Log.Debug("refusal of a direct publish not sent", "err", err)
	}
}

// forward sends a direct publish to the best lane, so that the node receives the lane's
// reply and can delay it. The message is otherwise the same, with all its headers.
func (r *router) forward(m *nats.Msg) {
	lane := r.state.directRoute(time.Now())
	if lane == noLane {
		r.refuse(m, r.refusal())
		return
	}
	if r.publisher.load.refusal() != "" {
		r.refuse(m, r.refusal())
		return
	}
	queue := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	forwarded := &nats.Msg{Subject: subjects.LaneSubject(uint8(lane), subjects.DirectPublish, queue), Header: m.Header, Data: m.Data}
	var token uint64
	if m.Reply != "" && !subjects.IsReserved(m.Reply) {
		if err := r.publisher.inFlight.reserve(m.Size()); err != nil {
			r.refuse(m, err)
			return
		}
		reply := &forwardedReply{router: r, lane: uint8(lane), to: m.Reply, size: m.Size(), sent: time.Now()}
		forwarded.Reply, token = r.local.Ingest.Expect(reply, time.Now().Add(forwardTimeout), false)
	}
	if err := r.local.Ingest.Conn.PublishMsg(forwarded); err != nil {
		r.local.Log.Debug("direct publish not forwarded", "err", err)
		if r.local.Ingest.Cancel(token) {
			r.publisher.inFlight.release(m.Size())
		}
	}
}

// forwardedReply passes a lane's reply to a direct publish to the client, after the present
// delay of acknowledgements.
type forwardedReply struct {
	router *router
	lane   uint8
	to     string // the client's reply subject
	size   int    // of the publish, in bytes
	sent   time.Time
}

// Receive implements [embedded.ReplyHandler]. A client that gets no reply publishes again.
func (f *forwardedReply) Receive(m *nats.Msg) bool {
	defer f.router.publisher.inFlight.release(f.size)
	if m == nil {
		f.router.publisher.inFlight.late()
		return true
	}
	reply := &nats.Msg{Subject: f.to, Header: m.Header, Data: m.Data}
	answer := func() {
		if err := f.router.local.Ingest.Conn.PublishMsg(reply); err != nil {
			f.router.local.Log.Debug("reply to a direct publish not sent", "err", err)
		}
	}
	ack, err := embedded.ParsePubAck(m.Data)
	if err != nil {
		answer()
		return true
	}
	f.router.publisher.inFlight.answered(time.Since(f.sent))
	raise(&f.router.publisher.load.stored[f.lane], ack.Seq)
	f.router.publisher.DelayAck(false, answer)
	return true
}
