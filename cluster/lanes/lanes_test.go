package lanes

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"
)

// TestPendingPublish_StaysUnknown checks that a final error is still ErrUnknown if
// an earlier attempt may have been stored.
func TestPendingPublish_StaysUnknown(t *testing.T) {
	var got error
	d := &pendingPublish{p: &Publisher{inFlight: newInFlight()}, maybeStored: true, done: func(_ Ack, err error) { got = err }}
	d.finish(Ack{}, &job.UnavailableError{Reason: "full"})
	if !errors.Is(got, streams.ErrUnknown) {
		t.Errorf("after a refusal: %v", got)
	}
	if d.finish(Ack{}, nil); got != nil {
		t.Errorf("after a success: %v", got)
	}
}

// TestPublish_FullLane checks that a job that does not fit into one lane goes to
// another, and is refused if none has space.
func TestPublish_FullLane(t *testing.T) {
	l := startLane(t)
	l.SetLanes(3)
	l.Config.RouteListen = "127.0.0.1:1" // as in a cluster
	full := &embedded.APIError{Code: 503, ErrCode: 10077, Description: "maximum bytes exceeded"}
	for _, tt := range []struct {
		left int // lanes that seem to answer, other than the full one
		want string
	}{{1, ""}, {0, "lane 2 refuses jobs: maximum bytes exceeded; 'yardmaster status' shows"}} {
		p := New(l)
		for lane := tt.left; lane < 3; lane++ {
			p.state.markDown(uint8(lane), time.Now().Add(time.Minute))
		}
		type end struct {
			ack Ack
			err error
		}
		ended := make(chan end, 1)
		d := &pendingPublish{p: p, queue: "mail", key: "k", body: []byte("{}"), started: time.Now(), lane: 2, done: func(a Ack, err error) { ended <- end{a, err} }}
		p.handleError(d, full)
		got := <-ended
		var later *job.UnavailableError
		switch {
		case tt.want == "" && (got.err != nil || got.ack.Lane != 0 || got.ack.Seq == 0):
			t.Errorf("with another lane: %+v, %v", got.ack, got.err)
		case tt.want != "" && (!errors.As(got.err, &later) || !strings.Contains(later.Reason, tt.want) || later.RetryAfter != 5*time.Second):
			t.Errorf("with no other lane: %v", got.err)
		}
	}
}

// TestPublish_Outstanding checks that a publish that has ended does not count against
// the limits, however it ended.
func TestPublish_Outstanding(t *testing.T) {
	p := New(startLane(t))
	for i, body := range [][]byte{[]byte("{}"), make([]byte, 400<<10), []byte("{}")} {
		ended := make(chan error, 1)
		p.Publish("mail", "", time.Now(), body, func(_ Ack, err error) { ended <- err })
		if err := <-ended; (err != nil) != (i == 1) {
			t.Errorf("publish %d: %v", i, err)
		}
	}
	if n, held := p.inFlight.count.Load(), p.inFlight.bytes.Load(); n != 0 || held != 0 {
		t.Errorf("%d publishes and %d bytes still count", n, held)
	}
}

// slowLane starts a server with two lanes, of which only the second seems to answer. That
// one has no stream: the test receives its messages, and answers them.
func slowLane(t *testing.T) (p *Publisher, received <-chan *nats.Msg) {
	t.Helper()
	l := startLane(t)
	l.SetLanes(2)
	l.Config.RouteListen = "127.0.0.1:1" // as in a cluster
	p = New(l)
	p.state.markDown(0, time.Now().Add(time.Minute))
	messages := make(chan *nats.Msg, 1)
	if _, err := l.API.Conn.ChanSubscribe(subjects.LaneSubject(1, "*", "*"), messages); err != nil {
		t.Fatal(err)
	}
	if err := l.API.Conn.Flush(); err != nil {
		t.Fatal(err)
	}
	return p, messages
}

// TestPublish_SlowLane checks that a job whose lane is late goes to another one, unless the
// lane takes that long for all jobs.
func TestPublish_SlowLane(t *testing.T) {
	for _, c := range []struct {
		usual time.Duration // of the lane's acknowledgements
		want  uint8         // lane that stores the job
	}{{10 * time.Millisecond, 0}, {500 * time.Millisecond, 1}} {
		p, received := slowLane(t)
		for range 64 {
			p.state.noteAnswer(1, c.usual)
		}
		ended := make(chan Ack, 1)
		p.Publish("mail", "k", time.Now(), []byte("{}"), func(a Ack, err error) {
			if err != nil {
				t.Error(err)
			}
			ended <- a
		})
		m := <-received
		p.state.markHealthy(0)
		p.local.Ingest.Expire(time.Now().Add(laneTimeout + 100*time.Millisecond))
		if err := m.Respond([]byte(`{"stream":"YARD_JOBS_1","seq":7}`)); err != nil {
			t.Fatal(err)
		}
		if a := <-ended; a.Lane != c.want {
			t.Errorf("a lane that usually takes %s: stored in lane %d, want %d", c.usual, a.Lane, c.want)
		}
	}
}

// TestPublish_NoAnswer checks that publishes without an answer count as slow: the lane gets
// more time, and the limit of publishes in flight is lowered.
func TestPublish_NoAnswer(t *testing.T) {
	p, _ := slowLane(t)
	const jobs = 64
	p.inFlight.count.Add(minInFlight + jobs)
	for range jobs {
		var got error
		now := time.Now()
		d := &pendingPublish{p: p, queue: "mail", started: now.Add(-time.Minute), lane: 1, done: func(_ Ack, err error) { got = err }}
		if expire(p, d, now.Add(-laneTimeout)); !errors.Is(got, streams.ErrUnknown) {
			t.Fatalf("a job without an answer: %v", got)
		}
	}
	if got := p.state.timeout(1); got < 2*laneTimeout {
		t.Errorf("the lane gets %s to answer", got)
	}
	p.inFlight.tick(time.Now())
	if p.inFlight.lowered() == 0 || p.CheckLoad() == nil {
		t.Errorf("limit of publishes in flight %d, CheckLoad: %v", p.inFlight.limit.Load(), p.CheckLoad())
	}
}

// expire lets a job that was sent to lane d.lane at a time get no answer.
func expire(p *Publisher, d *pendingPublish, sent time.Time) {
	k := &p.packers[d.lane]
	k.inFlight++
	(&laneReply{packer: k, jobs: []*pendingPublish{d}, sent: sent}).Receive(nil)
}

// TestPublish_NoAnswerAlone checks the same of a node that runs alone, and that its jobs do not
// wait for longer than a publish may take.
func TestPublish_NoAnswerAlone(t *testing.T) {
	p := New(startLane(t))
	const jobs = 64
	p.inFlight.count.Add(minInFlight + jobs)
	for range jobs {
		var got error
		sent := time.Now().Add(-2 * laneTimeout)
		d := &pendingPublish{p: p, queue: "mail", started: sent.Add(-time.Minute), done: func(_ Ack, err error) { got = err }}
		if expire(p, d, sent); !errors.Is(got, streams.ErrUnknown) {
			t.Fatalf("a job without an answer: %v", got)
		}
	}
	if got, most := p.state.timeout(0), p.local.Config.PublishTimeout; got != most {
		t.Errorf("the lane gets %s to answer, want %s", got, most)
	}
	if p.inFlight.tick(time.Now()); p.inFlight.lowered() == 0 {
		t.Error("the limit of publishes in flight is not lowered")
	}
}

// TestPublish_FewGetNoAnswer checks that jobs still go to a second lane soon if a lane does
// not answer while few are in flight.
func TestPublish_FewGetNoAnswer(t *testing.T) {
	p, _ := slowLane(t)
	for range 64 {
		p.inFlight.count.Add(1)
		now := time.Now()
		d := &pendingPublish{p: p, queue: "mail", started: now.Add(-time.Minute), lane: 1, done: func(Ack, error) {}}
		expire(p, d, now.Add(-laneTimeout))
	}
	if got := p.state.timeout(1); got != laneTimeout {
		t.Errorf("the lane gets %s to answer", got)
	}
}

// TestForward_SlowLane checks that the client of a direct publish that passes the node gets
// the lane's acknowledgement although it takes seconds.
func TestForward_SlowLane(t *testing.T) {
	p, received := slowLane(t)
	replies := make(chan *nats.Msg, 1)
	if _, err := p.local.API.Conn.ChanSubscribe("_INBOX.late", replies); err != nil {
		t.Fatal(err)
	}
	p.direct.forward(&nats.Msg{Reply: "_INBOX.late", Data: []byte("{}")}, "mail", 1)
	m := <-received
	p.local.Ingest.Expire(time.Now().Add(4 * time.Second))
	if n := p.inFlight.count.Load(); n != 1 {
		t.Fatalf("%d publishes are in flight after four seconds, want 1", n)
	}
	if err := m.Respond([]byte(`{"stream":"YARD_JOBS_1","seq":7}`)); err != nil {
		t.Fatal(err)
	}
	<-replies
}

// startLane starts a server that runs alone, with its streams.
func startLane(t *testing.T) *embedded.Server {
	t.Helper()
	l, err := embedded.Start(embedded.Config{Node: "solo", Dir: t.TempDir(), ClientListen: "127.0.0.1:0", MaxStore: 1 << 30}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.Close()
		l.Shutdown()
	})
	layout := streams.Layout{Identities: make([]string, 1), Create: true, MaxLaneBytes: 64 << 20}
	if _, err := streams.NewAdmin(l).EnsureStreams(t.Context(), layout); err != nil {
		t.Fatal(err)
	}
	return l
}

// TestPublish_WaitingForFailedLane checks that the jobs that wait for a lane go to another one as
// soon as a message to that lane gets no answer.
func TestPublish_WaitingForFailedLane(t *testing.T) {
	p, received := slowLane(t)
	const jobs = 3
	ended := make(chan Ack, jobs)
	for i := range jobs { // the first is sent, the others wait for its answer
		p.Publish("mail", fmt.Sprint("k", i), time.Now(), []byte("{}"), func(a Ack, err error) {
			if err != nil {
				t.Error(err)
			}
			ended <- a
		})
	}
	<-received
	p.state.markHealthy(0)
	p.local.Ingest.Expire(time.Now().Add(laneTimeout + 100*time.Millisecond))
	for range jobs {
		if a := <-ended; a.Lane != 0 {
			t.Errorf("stored in lane %d", a.Lane)
		}
	}
}

// TestPacker_LongQueue checks that the jobs which wait for a lane are sent in messages within the
// limits, and acknowledged at their own places, if a job comes that has a message of its own; and
// that a job whose time is over fails alone.
func TestPacker_LongQueue(t *testing.T) {
	l := startLane(t)
	p := New(l)
	k := &p.packers[0]
	k.inFlight = maxPackedInFlight // so that jobs wait
	type end struct {
		key string
		ack Ack
		err error
	}
	const waiting = 2*job.MaxPacked + 100
	ended := make(chan end, waiting+2)
	publish := func(key string, body []byte, started time.Time) {
		k.add(&pendingPublish{p: p, queue: "mail", key: key, at: time.Now(), body: body, started: started, done: func(a Ack, err error) { ended <- end{key, a, err} }})
	}
	publish("late", []byte("{}"), time.Now().Add(-time.Hour))
	for i := range waiting {
		publish(fmt.Sprint("k", i), []byte("{}"), time.Now())
	}
	publish("large", make([]byte, 40<<10), time.Now())
	ends := map[string]end{}
	for range waiting + 2 {
		e := <-ended
		ends[e.key] = e
	}
	var later *job.UnavailableError
	if e := ends["late"]; !errors.As(e.err, &later) {
		t.Errorf("the job whose time is over: %+v", e)
	}
	delete(ends, "late")
	reader := streams.NewReader(l)
	for from := uint64(1); ; {
		records, err := reader.Read(t.Context(), 0, from, 100)
		if err != nil {
			t.Fatal(err)
		}
		if len(records) == 0 {
			break
		}
		for _, r := range records {
			if e := ends[r.Key]; e.err != nil || e.ack.Position != r.Position {
				t.Errorf("%s is at %s and was acknowledged at %s: %v", r.Key, r.Position, e.ack.Position, e.err)
			}
			delete(ends, r.Key)
			from = r.Seq + 1
		}
	}
	if len(ends) > 0 {
		t.Errorf("%d acknowledged jobs are not stored", len(ends))
	}
	if k.size != 0 || k.waiting != nil {
		t.Errorf("%d bytes of %d jobs still wait", k.size, len(k.waiting))
	}
}

// TestPacker_AwaitCallers checks that the next message waits for the callers of the last one,
// together with the jobs that came before, and not for callers that do not come back.
func TestPacker_AwaitCallers(t *testing.T) {
	p := New(startLane(t))
	k := &p.packers[0]
	ended := make(chan Ack)
	publish := func() {
		k.add(&pendingPublish{p: p, queue: "mail", body: []byte("{}"), packedSize: 100, started: time.Now(), done: func(a Ack, _ error) { ended <- a }})
	}
	const callers = minReleased
	k.awaited = callers + 1
	for range callers + 1 {
		publish()
	}
	for i := range callers + 1 {
		if a := <-ended; a.Seq != 1 || int(a.Index) != i {
			t.Errorf("job %d is at %s, want all in message 1", i, a.Position)
		}
	}
	publish() // while the answer makes the lane wait, or after that
	if a := <-ended; a.Seq != 2 {
		t.Errorf("the job of the only caller that came back is at %s, want message 2", a.Position)
	}
	k.awaitCallers(minReleased-1, time.Hour)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.awaited != 0 {
		t.Errorf("%d jobs are awaited after the answer to a small message", k.awaited)
	}
}
