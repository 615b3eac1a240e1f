package cluster

import (
	"bytes"
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

// forgeTail makes the server publish a client's message and a lane's record to tails, in
// all ways that pass some of the checks of a record on a tail.
func forgeTail(t *testing.T, nc *nats.Conn, header nats.Header, body []byte) {
	t.Helper()
	tail := subjects.Tail + ".0.mail"
	forge(t, nc, &nats.Msg{Header: header, Data: body}, tail)
	js, err := nc.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	// Streams of the client that store the message under a subject of the lane, or its tail.
	for name, subject := range map[string]string{"LIKE_LANE": subjects.LaneSubject(0, subjects.DirectPublish, "mail"), "LIKE_TAIL": tail} {
		own := "forged." + name
		if _, err := js.AddStream(&nats.StreamConfig{
			Name: name, Subjects: []string{own}, AllowDirect: true, SubjectTransform: &nats.SubjectTransformConfig{Source: own, Destination: subject},
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := js.PublishMsg(&nats.Msg{Subject: own, Header: header, Data: body}); err != nil {
			t.Fatal(err)
		}
		if err := nc.PublishRequest(subjects.APIDirectGet+name, tail, []byte(`{"seq":1}`)); err != nil {
			t.Fatal(err)
		}
		if _, err := js.AddConsumer(name, &nats.ConsumerConfig{Durable: "puller", AckPolicy: nats.AckNonePolicy}); err != nil {
			t.Fatal(err)
		}
		if err := nc.PublishRequest("$JS.API.CONSUMER.MSG.NEXT."+name+".puller", tail, []byte("1")); err != nil {
			t.Fatal(err)
		}
	}
	// A record of the lane, as one of another queue.
	if _, err := nc.Request(subjects.APIDirectGet+subjects.LaneStream(0), []byte(`{"seq":1}`), patience); err != nil {
		t.Fatal(err)
	}
	if err := nc.PublishRequest(subjects.APIDirectGet+subjects.LaneStream(0), subjects.Tail+".0.other", []byte(`{"seq":1}`)); err != nil {
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
	check := func(r job.Record) {
		if r.Seq >= 1000 || r.Queue != "mail" || !bytes.Equal(r.Body, jobBody(7)) {
			t.Errorf("received the forged record %d of queue %s: %s", r.Seq, r.Queue, r.Body)
		}
	}
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
				check(r)
				return nil
			case <-time.After(50 * time.Millisecond):
				return errors.New("nothing received")
			}
		})
	}
	publish() // the tail is open
	forgeTail(t, nc, header, jobBody(8))
	for range 10 {
		publish()
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
	for len(received) > 0 {
		check(<-received)
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
