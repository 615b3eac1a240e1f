package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/lanes"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// startServing runs start until the test ends, and blocks until listens returns
// nil.
func startServing(t *testing.T, what string, start func(ctx context.Context) error, listens func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", what, err)
		}
	})
	eventually(t, what, listens)
}

func TestFleet(t *testing.T) {
	c := startSingle(t)
	f := c.Fleet
	unreachable := make(chan error, 1)
	f.AssignAsync("solo", job.AssignmentBatch{}, func(_ []job.Answer, err error) { unreachable <- err })
	wantErr(t, <-unreachable, ErrNodeUnreachable)

	recalls, notices := make(chan job.Recall, 10), make(chan []job.Record, 10)
	numbers := make(chan uint64, 1000)
	startServing(t, "fleet", func(ctx context.Context) error {
		return f.Serve(ctx, Handlers{
			Assign: func(b job.AssignmentBatch, reply func([]job.Answer)) {
				numbers <- b.Number
				answers := make([]job.Answer, len(b.Assignments))
				for i := range answers {
					answers[i] = job.Taken
				}
				go reply(answers) // ends before the test, which waits for all answers
			},
			Report: func(r job.Report, reply func(job.ReportAck)) {
				reply(job.ReportAck{Epoch: 9, Settled: make([]job.Settled, len(r.Outcomes))})
			},
			Heartbeat: func(b job.Heartbeat, reply func(job.HeartbeatAck)) {
				reply(job.HeartbeatAck{Epoch: 9, Lease: 6 * time.Second})
			},
			Recall: func(r job.Recall) { recalls <- r },
			Notice: func(r []job.Record) { notices <- r },
			Request: map[string]func(context.Context, []byte) ([]byte, error){
				"echo": func(_ context.Context, b []byte) ([]byte, error) { return b, nil },
				"fail": func(context.Context, []byte) ([]byte, error) { return nil, job.ErrJobNotFound },
			},
		})
	}, func() error {
		_, err := f.Request(withDeadline(t, time.Second), "solo", "echo", nil)
		return err
	})

	var wg sync.WaitGroup
	for n := range uint64(200) {
		wg.Add(1)
		f.AssignAsync("solo", job.AssignmentBatch{Epoch: 9, Number: n, Assignments: make([]job.Assignment, 3)}, func(a []job.Answer, err error) {
			defer wg.Done()
			if err != nil || len(a) != 3 || a[2] != job.Taken {
				t.Errorf("batch %d: %v, %v", n, a, err)
			}
		})
	}
	wg.Wait()
	for n := range uint64(200) {
		if got := <-numbers; got != n {
			t.Fatalf("received batch %d, want %d", got, n)
		}
	}
	report := job.Report{Node: "solo", Outcomes: []job.Outcome{{N: 1, Status: job.Success}}}
	if ack, err := f.Report(withDeadline(t, patience), "solo", report); err != nil || len(ack.Settled) != 1 || ack.Epoch != 9 {
		t.Fatalf("report: %+v, %v", ack, err)
	}
	if ack, err := f.Heartbeat(withDeadline(t, patience), "solo", job.Heartbeat{Node: "solo"}); err != nil || ack.Lease != 6*time.Second {
		t.Fatalf("heartbeat: %+v, %v", ack, err)
	}
	if err := f.Recall("solo", job.Recall{N: 3, Reason: job.RecallLease}); err != nil {
		t.Fatal(err)
	}
	if r := <-recalls; r.N != 3 || r.Reason != job.RecallLease {
		t.Fatalf("recall: %+v", r)
	}
	if err := f.Notify("solo", []job.Record{{Queue: "mail", Body: jobBody(1)}}); err != nil {
		t.Fatal(err)
	}
	if r := <-notices; len(r) != 1 || r[0].Queue != "mail" {
		t.Fatalf("notice: %+v", r)
	}
	var apiErr *api.Error
	if _, err := f.Request(withDeadline(t, patience), "solo", "fail", nil); !errors.As(err, &apiErr) || apiErr.Code != "404" {
		t.Fatalf("failed request: %v", err)
	}
	// A malformed message is answered with an error.
	m, err := c.local.Fleet.Request(t.Context(), &nats.Msg{Subject: subjects.NodeSubject("solo", verbAssign), Data: []byte("garbage")}, patience)
	if err != nil || parseErrorReply(m) == nil || parseErrorReply(m).Code != "400" {
		t.Fatalf("malformed message: %v", err)
	}
}

func TestServe_MicroService(t *testing.T) {
	c := startSingle(t)
	nc := connectClient(t, c.Server)
	client, err := Dial(t.Context(), c.ClientURL(), DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	_, err = client.Request(withDeadline(t, patience), "yard.status", nil)
	wantErr(t, err, ErrNoNodes)

	startServing(t, "service", func(ctx context.Context) error {
		return c.Serve(ctx, Service{Name: "yard-api", Version: "1.2.3", Description: "the yard", Endpoints: []Endpoint{
			{Endpoint: api.Endpoint{Name: "status", Subject: api.SubjectStatus}, Handle: func(context.Context, *Request) ([]byte, error) { return []byte(`{}`), nil }},
			{Endpoint: api.Endpoint{Name: "job-show", Subject: api.SubjectAPI + ".job.show"}, Handle: func(context.Context, *Request) ([]byte, error) {
				return nil, fmt.Errorf("job %s: %w", "x", job.ErrJobNotFound)
			}},
			{Endpoint: api.Endpoint{Name: "enqueue", Subject: api.SubjectEnqueue + ".*"}, HandleAsync: func(r *Request) {
				c.Publisher.Publish(r.Token(), r.Header(subjects.HeaderMsgID), time.Now(), r.Data, func(a lanes.Ack, err error) {
					if err != nil {
						_ = r.RespondError(err)
						return
					}
					_ = r.Respond(fmt.Appendf(nil, `{"queue":%q,"seq":%d}`, r.Token(), a.Seq))
				})
			}},
		}})
	}, func() error {
		_, err := client.Request(withDeadline(t, time.Second), "yard.status", nil)
		return err
	})
	if got, err := client.Request(withDeadline(t, patience), "yard.enqueue.mail", jobBody(1)); err != nil || string(got) != `{"queue":"mail","seq":1}` {
		t.Fatalf("enqueue: %s, %v", got, err)
	}
	var apiErr *api.Error
	if _, err := client.Request(withDeadline(t, patience), "yard.enqueue."+strings.Repeat("q", 200), jobBody(1)); !errors.As(err, &apiErr) {
		t.Fatalf("bad queue: %v", err)
	}
	if _, err := client.Request(withDeadline(t, patience), "yard.api.v1.job.show", nil); !errors.As(err, &apiErr) || apiErr.Code != "404" ||
		apiErr.Text != "job x: job does not exist" {
		t.Fatalf("unknown job: %v", err)
	}
	for _, again := range []bool{false, true} {
		direct := &nats.Msg{Subject: "yard.jobs.mail", Header: nats.Header{subjects.HeaderMsgID: []string{"k"}}, Data: jobBody(2)}
		if m, err := nc.RequestMsg(direct, patience); err != nil || strings.Contains(string(m.Data), `"duplicate": true`) != again {
			t.Fatalf("direct publish, again %t: %+v, %v", again, m, err)
		}
	}
	m, err := nc.Request("$SRV.STATS.yard-api", nil, patience)
	if err != nil {
		t.Fatal(err)
	}
	var stats micro.Stats
	if err := json.Unmarshal(m.Data, &stats); err != nil {
		t.Fatal(err)
	}
	if stats.Metadata["node"] != "solo" || stats.ID != "solo" || stats.Started.IsZero() || len(stats.Endpoints) != 3 {
		t.Fatalf("stats: %s", m.Data)
	}
	show, enqueue := stats.Endpoints[1], stats.Endpoints[2]
	if show.NumRequests != 1 || show.NumErrors != 1 || show.LastError != "404:job x: job does not exist" {
		t.Errorf("stats of a failed request: %+v", show)
	}
	// The replies were sent after the handler had returned.
	if enqueue.Subject != "yard.enqueue.*" || enqueue.NumRequests != 2 || enqueue.NumErrors != 1 || enqueue.ProcessingTime < 10*time.Microsecond ||
		enqueue.AverageProcessingTime != enqueue.ProcessingTime/2 {
		t.Errorf("stats of a successful request: %+v", enqueue)
	}
}

// TestServe_Panic checks that a handler's panic is an error for the one who asked, and ends nothing else.
func TestServe_Panic(t *testing.T) {
	c := startSingle(t)
	client, err := Dial(t.Context(), c.ClientURL(), DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	startServing(t, "service", func(ctx context.Context) error {
		return c.Serve(ctx, Service{Name: "yard-api", Version: "1.2.3", Endpoints: []Endpoint{
			{Endpoint: api.Endpoint{Name: "status", Subject: api.SubjectStatus}, Handle: func(context.Context, *Request) ([]byte, error) { return []byte(`{}`), nil }},
			{Endpoint: api.Endpoint{Name: "job-show", Subject: api.SubjectAPI + ".job.show"}, Handle: func(context.Context, *Request) ([]byte, error) { panic("show") }},
			{Endpoint: api.Endpoint{Name: "enqueue", Subject: api.SubjectEnqueue + ".*"}, HandleAsync: func(*Request) { panic("enqueue") }},
		}})
	}, func() error {
		_, err := client.Request(withDeadline(t, time.Second), "yard.status", nil)
		return err
	})
	startServing(t, "fleet", func(ctx context.Context) error {
		return c.Fleet.Serve(ctx, Handlers{
			Assign: func(job.AssignmentBatch, func([]job.Answer)) { panic("assign") },
			Request: map[string]func(context.Context, []byte) ([]byte, error){
				"bad": func(context.Context, []byte) ([]byte, error) { panic("bad") },
				"ok":  func(context.Context, []byte) ([]byte, error) { return []byte("ok"), nil },
			},
		})
	}, func() error {
		_, err := c.Fleet.Request(withDeadline(t, time.Second), "solo", "ok", nil)
		return err
	})
	assign := func() error {
		answered := make(chan error, 1)
		c.Fleet.AssignAsync("solo", job.AssignmentBatch{}, func(_ []job.Answer, err error) { answered <- err })
		return <-answered
	}
	for range 2 {
		_, show := client.Request(withDeadline(t, patience), "yard.api.v1.job.show", nil)
		_, enqueue := client.Request(withDeadline(t, patience), "yard.enqueue.mail", jobBody(1))
		_, bad := c.Fleet.Request(withDeadline(t, patience), "solo", "bad", nil)
		for what, err := range map[string]error{"show": show, "enqueue": enqueue, "bad": bad, "assign": assign()} {
			apiErr, ok := errors.AsType[*api.Error](err)
			if !ok || apiErr.Code != api.CodeInternal || !strings.HasSuffix(apiErr.Text, "panic: "+what) {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	if _, err := client.Request(withDeadline(t, patience), "yard.status", nil); err != nil {
		t.Error(err)
	}
}
