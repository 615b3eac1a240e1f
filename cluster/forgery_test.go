package cluster

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/cluster/wire"
	"github.com/yardmaster-dev/yardmaster/job"
)

// forge makes the server publish a message of a client to a subject that the client may
// not publish to: the client stores it in a stream of its own, and names the subject
// wherever JetStream sends what is stored, or an answer, to a subject of the caller's
// choice.
func forge(t *testing.T, nc *nats.Conn, stored *nats.Msg, subject string) {
	t.Helper()
	js, err := nc.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.AddStream(&nats.StreamConfig{Name: "OWN", Subjects: []string{"own.>"}, AllowDirect: true}); err != nil {
		t.Fatal(err)
	}
	stored.Subject = "own.message"
	if _, err := js.PublishMsg(stored); err != nil {
		t.Fatal(err)
	}
	for request, body := range map[string]string{
		subjects.APIDirectGet + "OWN":        `{"seq":1}`,
		"$JS.API.STREAM.MSG.GET.OWN":         `{"seq":1}`,
		"own.other":                          `answered by an acknowledgement`,
		"$JS.API.CONSUMER.CREATE.OWN.puller": `{"stream_name":"OWN","config":{"name":"puller","ack_policy":"none"}}`,
	} {
		if err := nc.PublishRequest(request, subject, []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.PublishRequest(subjects.APIDirectGet+"OWN", subject, []byte(`{"seq":1,"no_hdr":true}`)); err != nil {
		t.Fatal(err)
	}
	if _, err := js.AddConsumer("OWN", &nats.ConsumerConfig{Name: "pusher", DeliverSubject: subject, AckPolicy: nats.AckNonePolicy}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a consumer to pull from", func() error { _, err := js.ConsumerInfo("OWN", "puller"); return err })
	if err := nc.PublishRequest("$JS.API.CONSUMER.MSG.NEXT.OWN.puller", subject, []byte("1")); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
}

// TestTail_IgnoresForgedRecords checks that a client cannot make the authority take
// a message of another stream for the lane's next record, and skip an accepted job.
func TestTail_IgnoresForgedRecords(t *testing.T) {
	c := startSingle(t)
	received := make(chan job.Record, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- c.Reader.Tail(ctx, func(r job.Record) { received <- r }) }()
	nc := connectClient(t, c.Server)
	header := nats.Header{
		subjects.HeaderStream: {subjects.LaneStream(0)}, subjects.HeaderSubject: {subjects.LaneSubject(0, subjects.DirectPublish, "mail")},
		subjects.HeaderSequence: {"1000"}, subjects.HeaderTime: {time.Now().UTC().Format(time.RFC3339Nano)}, "Nats-Last-Sequence": {"999"},
	}
	seen := map[uint64]bool{}
	publish := func() { // a job with misleading headers of its own
		t.Helper()
		eventually(t, "a directly published record on the tail", func() error {
			m := nats.NewMsg("yard.jobs.mail")
			m.Header, m.Data = header, jobBody(7)
			if _, err := nc.RequestMsg(m, time.Second); err != nil {
				return err
			}
			select {
			case r := <-received:
				seen[r.Seq] = true
				return nil
			case <-time.After(50 * time.Millisecond):
				return errors.New("nothing received")
			}
		})
	}
	publish() // the tail is open
	forge(t, nc, &nats.Msg{Header: header, Data: jobBody(8)}, subjects.Tail+".0.mail")
	for range 10 {
		publish()
	}
	for seq := range seen {
		if seq >= 1000 {
			t.Errorf("received a forged record %d", seq)
		}
	}
	records, err := c.Reader.Read(t.Context(), 0, 1, 100)
	if err != nil || len(records) < 11 {
		t.Fatalf("%d records, %v", len(records), err)
	}
	for i, r := range records {
		if r.Seq != uint64(i+1) {
			t.Errorf("record %d has sequence %d", i+1, r.Seq)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// TestFleet_IgnoresClients checks that a client cannot send messages as a node.
func TestFleet_IgnoresClients(t *testing.T) {
	c := startSingle(t)
	notices, requests := make(chan []job.Record, 100), make(chan string, 100)
	startServing(t, "the node's verbs", func(ctx context.Context) error {
		return c.Fleet.Serve(ctx, Handlers{
			Notice: func(r []job.Record) { notices <- r },
			Request: map[string]func(context.Context, []byte) ([]byte, error){"propose": func(_ context.Context, body []byte) ([]byte, error) {
				requests <- string(body)
				return nil, nil
			}},
		})
	}, func() error {
		_, err := c.Fleet.Request(t.Context(), "solo", "propose", []byte("true"))
		return err
	})
	nc := connectClient(t, c.Server)
	forged := []job.Record{{Queue: "forged"}}
	forge(t, nc, &nats.Msg{Data: wire.Encode(&forged)}, subjects.NodeSubject("solo", verbNotice))
	js, err := nc.JetStream()
	if err == nil {
		err = js.DeleteStream("OWN")
	}
	if err != nil {
		t.Fatal(err)
	}
	forge(t, nc, &nats.Msg{Data: []byte("forged")}, subjects.NodeSubject("solo", "propose"))
	if err := c.Fleet.Notify("solo", []job.Record{{Queue: "true"}}); err != nil {
		t.Fatal(err)
	}
	if got := <-notices; len(got) != 1 || got[0].Queue != "true" {
		t.Errorf("received the notice %+v of a client", got)
	}
	if _, err := c.Fleet.Request(t.Context(), "solo", "propose", []byte("true")); err != nil {
		t.Fatal(err)
	}
	for len(requests) > 0 {
		if got := <-requests; got != "true" {
			t.Errorf("received the request %q of a client", got)
		}
	}
}
