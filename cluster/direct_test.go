package cluster

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/job"
)

// TestDirect_Packed checks that jobs published to yard.jobs share messages and keep their ids
// and keys, and that each is acknowledged as by a stream, with its sequence and as a duplicate if
// it is one.
func TestDirect_Packed(t *testing.T) {
	c := startSingle(t)
	nc := connectClient(t, c.Server)
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(1000))
	if err != nil {
		t.Fatal(err)
	}
	const n = 600
	key := func(i int) string {
		if i%3 == 0 {
			return ""
		}
		return fmt.Sprintf("order %d", i)
	}
	acks := make([]jetstream.PubAckFuture, n)
	for i := range n {
		m := &nats.Msg{Subject: "yard.jobs.mail", Data: jobBody(i), Header: nats.Header{}}
		if key(i) != "" {
			m.Header.Set("Nats-Msg-Id", key(i))
		}
		if i == 1 {
			m.Header.Set("Yard-Delay", "1h")
		}
		if acks[i], err = js.PublishMsgAsync(m); err != nil {
			t.Fatal(err)
		}
	}
	stored, messages := map[string]job.Record{}, map[uint64]bool{}
	for _, r := range readAll(t, c.Server, 0, n) {
		messages[r.Seq] = true
		spec, err := job.ParseSpec(r.Body)
		if err != nil {
			t.Fatalf("%s: %v", r.Body, err)
		}
		if stored[string(spec.Params)].Key != "" {
			t.Errorf("%s is stored twice", spec.Params)
		}
		stored[string(spec.Params)] = r
		if delayed := spec.DelayMS != nil; delayed != (string(spec.Params) == params(t, 1)) {
			t.Errorf("%s: delayed %t", r.Body, delayed)
		}
	}
	seqs := make([]uint64, n)
	for i, future := range acks {
		select {
		case ack := <-future.Ok():
			seqs[i] = ack.Sequence
		case err := <-future.Err():
			t.Fatal(err)
		}
		r := stored[params(t, i)]
		id, err := job.KeyID("mail", r.Key)
		if err != nil || r.Seq != seqs[i] {
			t.Fatalf("job %d is acknowledged at %d and stored as %+v", i, seqs[i], r)
		}
		want, _ := job.KeyID("mail", key(i))
		if got := job.KeyOf(r.Body, "mail", id); got != key(i) || key(i) != "" && id != want {
			t.Errorf("job %d has key %q and id %s", i, got, id)
		}
	}
	if len(messages) > n/2 {
		t.Errorf("%d jobs are in %d messages", n, len(messages))
	}

	ack := func(queue, key, body string) *jetstream.PubAck {
		t.Helper()
		ack, err := js.Publish(t.Context(), "yard.jobs."+queue, []byte(body), jetstream.WithMsgID(key))
		if err != nil {
			t.Fatal(err)
		}
		return ack
	}
	first := ack("mail", "again", `{"params":{}}`)
	if a := ack("mail", "again", `{"params":{}}`); !a.Duplicate || a.Sequence != first.Sequence || a.Stream != "YARD_JOBS_0" {
		t.Errorf("published again: %+v, first %+v", a, first)
	}
	if a := ack("post", "again", `{"params":{}}`); a.Duplicate {
		t.Errorf("in another queue: %+v", a)
	}
	for i, alone := range []struct{ queue, body string }{{"mail", `{"params":`}, {"no@queue", `{}`}, {"mail", "{\n\"params\":{}}"}} {
		own := fmt.Sprint("own ", i)
		a := ack(alone.queue, own, alone.body)
		records, err := c.Reader.Read(t.Context(), 0, a.Sequence, 1)
		if err != nil || len(records) != 1 || records[0].Key != own || records[0].Queue != alone.queue || string(records[0].Body) != alone.body {
			t.Errorf("%+v: stored as %+v, %v", alone, records, err)
		}
	}
}

// params returns the params of the job i of jobBody.
func params(t *testing.T, i int) string {
	t.Helper()
	spec, err := job.ParseSpec(jobBody(i))
	if err != nil {
		t.Fatal(err)
	}
	return string(spec.Params)
}

// TestDirect_SentWithConnect checks that a client that sends everything in one write, without
// waiting for the server, has its jobs stored and its request answered.
func TestDirect_SentWithConnect(t *testing.T) {
	c := startSingle(t)
	const n = 100
	text := "CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true,\"protocol\":1}\r\n" +
		"SUB replies 1\r\n"
	for i := range n {
		body := fmt.Sprintf(`{"params":{"n":%d}}`, i)
		text += fmt.Sprintf("PUB yard.jobs.mail replies %d\r\n%s\r\n", len(body), body)
	}
	url := strings.TrimPrefix(c.ClientURL(), "nats://")
	conn, err := net.Dial("tcp", url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(text + "PING\r\n")); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	stored, r := 0, bufio.NewReader(conn)
	for stored < n {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("%d of %d jobs are acknowledged: %v", stored, n, err)
		}
		if strings.HasPrefix(line, `{"stream":"YARD_JOBS_`) {
			stored++
		}
	}
	if records := readAll(t, c.Server, 0, n); len(records) != n {
		t.Errorf("%d records are stored, want %d", len(records), n)
	}
}
