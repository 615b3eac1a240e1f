package lanes

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"
)

// TestWatchLoad_SlowAuthority checks what a node does while nothing is ingested: it delays
// the acknowledgements of jobs from all sources, then refuses jobs before they are published,
// and accepts them at once when they are ingested again.
func TestWatchLoad_SlowAuthority(t *testing.T) {
	l := startLane(t)
	p := New(l)
	if err := p.Open(); err != nil {
		t.Fatal(err)
	}
	for _, q := range []*ackQueue{p.load.small, p.load.large} {
		go q.run(t.Context())
	}
	nc, err := nats.Connect(l.NATS.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	direct := func() (*jetstream.PubAck, time.Duration, error) {
		began := time.Now()
		ack, err := js.Publish(t.Context(), subjects.Jobs+".mail", []byte("{}"), jetstream.WithExpectStream(subjects.LaneStream(0)), jetstream.WithRetryAttempts(0))
		return ack, time.Since(began), err
	}
	ofNode := func() time.Duration {
		acked, began := make(chan error, 1), time.Now()
		p.Publish("mail", "", time.Now(), []byte("{}"), func(_ Ack, err error) {
			p.DelayAck(false, func() { acked <- err })
		})
		if err := <-acked; err != nil {
			t.Fatal(err)
		}
		return time.Since(began)
	}
	began := time.Now()
	update := func(after time.Duration) Pressure {
		p.load.update(began.Add(after))
		return p.Pressure()
	}
	lastStored := func() (last uint64) {
		s, err := js.Stream(t.Context(), subjects.LaneStream(0))
		if err != nil {
			t.Fatal(err)
		}
		return s.CachedInfo().State.LastSeq
	}

	update(0)
	if ack, _, err := direct(); err != nil || ack.Sequence != 1 {
		t.Fatalf("without load: %+v, %v", ack, err)
	}
	ofNode()
	update(0)
	pressure := update(850 * time.Millisecond)
	if pressure.Delay != 300*time.Millisecond || p.IngestLag() != 850*time.Millisecond || len(pressure.Warnings()) != 1 {
		t.Fatalf("with lag: %+v", pressure)
	}
	ack, took, err := direct()
	if err != nil || ack.Sequence != 3 || ack.Duplicate || ack.Stream != subjects.LaneStream(0) || took < 300*time.Millisecond {
		t.Errorf("direct publish: %+v after %s, %v", ack, took, err)
	}
	if took := ofNode(); took < 300*time.Millisecond {
		t.Errorf("node's publish acknowledged after %s", took)
	}
	if _, err := js.Publish(t.Context(), subjects.Jobs+".mail", nil, jetstream.WithExpectStream("other")); err == nil {
		t.Error("the headers of a direct publish are lost")
	}
	if err := p.CheckLoad(); err != nil {
		t.Errorf("refused already: %v", err)
	}

	update(RefuseLag)
	stored := lastStored()
	var later *job.UnavailableError
	if err := p.CheckLoad(); !errors.As(err, &later) || later.RetryAfter != overloadRetryAfter || !strings.Contains(later.Reason, "faster than the authority ingests") {
		t.Errorf("node's publish: %v", err)
	}
	var refused *jetstream.APIError
	if _, _, err := direct(); !errors.As(err, &refused) || refused.Code != 503 || !strings.Contains(refused.Description, "try again in 2s") {
		t.Errorf("direct publish: %v", err)
	}
	if now := lastStored(); now != stored || p.RefusedForLoad() != 2 {
		t.Errorf("stored %d and then %d, %d refused", stored, now, p.RefusedForLoad())
	}

	p.SetIngested([]uint64{stored})
	if pressure := update(RefuseLag + time.Second); pressure.Delay != 0 || pressure.Refusal != "" || p.CheckLoad() != nil {
		t.Errorf("after ingesting: %+v", pressure)
	}
	if _, _, err := direct(); err != nil { // without a delay, which is 0
		t.Errorf("direct publish: %v", err)
	}
	p.SetIngested([]uint64{stored + 1})
	update(RefuseLag + 2*time.Second)
	if ack, _, err := direct(); err != nil || ack.Sequence != stored+2 {
		t.Errorf("direct publish: %+v, %v", ack, err)
	}
}

// TestWatchLoad_NamesLane checks that the cause of a delay names the lane that fills.
func TestWatchLoad_NamesLane(t *testing.T) {
	p, _ := slowLane(t)
	p.load.lane.Store(&Fill{86, 100})
	p.load.update(time.Now())
	if causes := p.Pressure().Causes; len(causes) != 1 || !strings.HasPrefix(causes[0], "lane 1 is 86 % full") {
		t.Errorf("causes %q", causes)
	}
}
