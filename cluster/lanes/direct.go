package lanes

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"
)

// closedRetryAfter is after how long a caller that a closed intake has refused may retry.
// Disk space is not freed within moments.
const closedRetryAfter = 5 * time.Second

// forwardTimeout is how long a direct publish that was forwarded may take: as long as
// clients of NATS wait for it by default. It cannot be sent to another lane, and a client
// that gets no reply publishes again.
const forwardTimeout = 5 * time.Second

// directPublishes stores what clients of this node publish to yard.jobs.*, in the place of a stream.
type directPublishes struct {
	local     *embedded.Server
	publisher *Publisher
	state     *laneStates
}

// serve maps yard.jobs.* to a subject that only this node receives, and
// subscribes to it. A mapping exists on this server only, also for open connections.
func (d *directPublishes) serve() error {
	subject := subjects.LocalSubject(d.local.Config.Node, subjects.Jobs)
	sub, err := d.local.Direct.Conn.Subscribe(subject+".*", d.receive)
	if err != nil {
		return err
	}
	if err := sub.SetPendingLimits(-1, maxHeldBytes); err != nil {
		return err
	}
	if err := d.local.Direct.Conn.Flush(); err != nil { // the server must know it before publishes are mapped to it
		return err
	}
	acc, err := d.local.NATS.LookupAccount(embedded.AccountYard)
	if err != nil {
		return err
	}
	return acc.AddWeightedMappings(subjects.Jobs+".*", server.NewMapDest(subject+".$1", 100))
}

// receive stores a direct publish in a lane, or refuses it. It answers like the lane's stream.
func (d *directPublishes) receive(m *nats.Msg) {
	if subjects.IsReserved(m.Reply) {
		m.Reply = "" // what the yard uses itself gets no answers
	}
	now, closed := time.Now(), d.publisher.closedReason() != ""
	lane := d.state.directRoute(now)
	if closed && d.publisher.othersAccept.Load() {
		lane = d.state.remoteRoute(now)
	} else if closed || d.publisher.load.refusal() != "" {
		lane = noLane
	}
	if lane == noLane {
		d.refuse(m, d.refusal())
		return
	}
	queue := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	if record, ok := recordOf(m, queue); ok && !closed {
		d.publisher.Publish(queue, record.Key, now, record.Body, func(a Ack, err error) { d.answer(m, a, err) })
		return
	}
	d.forward(m, queue, uint8(lane))
}

// recordOf returns the record of the job that m asks for, with what m gives in headers, and the
// job's id as its key. ok is false if the record cannot share a message with others: m asks the
// stream for more than to store it, or it is invalid and must be rejected on its own.
func recordOf(m *nats.Msg, queue string) (record job.Record, ok bool) {
	for name := range m.Header {
		if name != subjects.HeaderMsgID && !slices.Contains(streams.ProducerHeaderNames, name) {
			return record, false
		}
	}
	body, key, err := job.ReadDirect(queue, m.Header.Get(subjects.HeaderMsgID), m.Data, streams.ProducerHeaders(m.Header.Get))
	if err != nil || !job.Packable("", body) || job.ValidQueue(queue) != nil {
		return record, false
	}
	record.Body = body
	if key == "" {
		record.Key = uuid.Must(uuid.NewV7()).String()
		return record, true
	}
	id, err := job.KeyID(queue, key)
	if err != nil {
		return record, false
	}
	record.Key, record.Body = id.String(), job.WithKey(record.Body, key)
	return record, true
}

// answer answers a direct publish that the node has published in its place. A client that gets
// no answer publishes again.
func (d *directPublishes) answer(m *nats.Msg, a Ack, err error) {
	var later *job.UnavailableError
	switch {
	case m.Reply == "":
	case err == nil:
		reply := strconv.AppendUint(append(append([]byte(`{"stream":"`), subjects.LaneStream(a.Lane)...), `", "seq":`...), a.Seq, 10)
		if a.Duplicate {
			reply = append(reply, `,"duplicate": true`...)
		}
		answer := &nats.Msg{Subject: m.Reply, Data: append(reply, '}')} // without m and its body
		d.publisher.DelayAck(false, func() { d.send(answer) })
	case errors.Is(err, streams.ErrUnknown):
	case errors.As(err, &later):
		d.refuse(m, later)
	default:
		d.refuse(m, &job.UnavailableError{Reason: err.Error(), RetryAfter: time.Second})
	}
}

// send sends the answer to a direct publish.
func (d *directPublishes) send(reply *nats.Msg) {
	if err := d.local.Direct.Conn.PublishMsg(reply); err != nil {
		d.local.Log.Debug("answer to a direct publish not sent", "err", err)
	}
}

// refusal returns why direct publishes are refused.
func (d *directPublishes) refusal() *job.UnavailableError {
	if reason := d.publisher.closedReason(); reason != "" {
		return &job.UnavailableError{Reason: reason, RetryAfter: closedRetryAfter}
	}
	if later := d.publisher.load.refuse(); later != nil {
		return later
	}
	return &job.UnavailableError{Reason: "the node's intake was closed for a moment", RetryAfter: time.Second}
}

// refuse answers a direct publish as a full stream would.
func (d *directPublishes) refuse(m *nats.Msg, why *job.UnavailableError) {
	if m.Reply == "" {
		return // this publisher does not wait for an acknowledgement
	}
	reply, err := json.Marshal(map[string]any{"stream": "", "seq": 0, "error": map[string]any{
		"code": 503, "err_code": embedded.CodeNoResources, "description": fmt.Sprintf("%s; try again in %s", why.Reason, duration.Format(why.RetryAfter)),
	}})
	if err == nil {
		d.send(&nats.Msg{Subject: m.Reply, Data: reply})
	}
}

// forward sends a direct publish to a lane. The message is the same, with all its headers.
func (d *directPublishes) forward(m *nats.Msg, queue string, lane uint8) {
	forwarded := &nats.Msg{Subject: subjects.LaneSubject(lane, subjects.DirectPublish, queue), Header: m.Header, Data: m.Data}
	var token uint64
	if m.Reply != "" {
		if err := d.publisher.inFlight.reserve(m.Size()); err != nil {
			d.refuse(m, err)
			return
		}
		reply := &forwardedReply{direct: d, lane: lane, to: m.Reply, size: m.Size(), sent: time.Now()}
		forwarded.Reply, token = d.local.Ingest.Expect(reply, time.Now().Add(forwardTimeout), false)
	}
	if err := d.local.Ingest.Conn.PublishMsg(forwarded); err != nil {
		d.local.Log.Debug("direct publish not forwarded", "err", err)
		if d.local.Ingest.Cancel(token) {
			d.publisher.inFlight.release(m.Size())
		}
	}
}

// forwardedReply passes a lane's reply to a direct publish to the client, after the present
// delay of acknowledgements.
type forwardedReply struct {
	direct *directPublishes
	lane   uint8
	to     string // the client's reply subject
	size   int    // of the publish, in bytes
	sent   time.Time
}

// Receive implements [embedded.ReplyHandler]. A client that gets no reply publishes again.
func (f *forwardedReply) Receive(m *nats.Msg) bool {
	defer f.direct.publisher.inFlight.release(f.size)
	if m == nil {
		f.direct.publisher.inFlight.late()
		return true
	}
	reply := &nats.Msg{Subject: f.to, Header: m.Header, Data: m.Data}
	answer := func() { f.direct.send(reply) }
	ack, err := embedded.ParsePubAck(m.Data)
	if err != nil {
		answer()
		return true
	}
	f.direct.publisher.inFlight.answered(time.Since(f.sent))
	raise(&f.direct.publisher.load.stored[f.lane], ack.Seq)
	f.direct.publisher.DelayAck(false, answer)
	return true
}
