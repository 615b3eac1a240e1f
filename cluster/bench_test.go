package cluster

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// How fast a node that runs alone takes jobs, one by one and many at a time.
func BenchmarkPublish_Alone(b *testing.B) {
	for _, window := range []int{1, 8, 64, 2000} {
		b.Run(fmt.Sprintf("window=%d", window), func(b *testing.B) {
			c := alone(b)
			benchPublish(b, c.Cluster, window)
		})
	}
}

func benchPublish(b *testing.B, c *Cluster, window int) {
	b.ResetTimer()
	publishMany(b, c, "k", b.N, window)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
}

func publishMany(b *testing.B, c *Cluster, prefix string, n, window int) {
	room := make(chan struct{}, window)
	var wg sync.WaitGroup
	text := make([]byte, 256)
	for i := range n {
		room <- struct{}{}
		wg.Add(1)
		c.Publish("mail", fmt.Sprintf("%s-%d", prefix, i), time.Now(), text, func(_ Ack, err error) {
			if err != nil {
				b.Error(err)
			}
			<-room
			wg.Done()
		})
	}
	wg.Wait()
}

// Three members in one process, jobs through all of them: what the publisher
// costs beside JetStream.
func BenchmarkPublish_Three(b *testing.B) {
	nodes := yard(b)
	each := b.N/3 + 1
	var wg sync.WaitGroup
	b.ResetTimer()
	for _, n := range nodes {
		wg.Go(func() { publishMany(b, n.Cluster, n.Node(), each, 4000) })
	}
	wg.Wait()
	b.ReportMetric(float64(3*each)/b.Elapsed().Seconds(), "jobs/s")
}

// The whole way in by request: a client, the endpoint, the lane, the answer.
func BenchmarkEnqueue_Alone(b *testing.B) {
	c := alone(b)
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- c.Serve(ctx, Service{Name: "yard-api", Version: "1.0.0", Endpoints: []Endpoint{{
			Name: "enqueue", Subject: SubjectEnqueue + ".*", Go: func(r *Request) {
				c.Publish(r.Token(), r.Header(HeaderMsgID), time.Now(), r.Data, func(Ack, error) { _ = r.Respond([]byte(`{}`)) })
			},
		}}})
	}()
	nc, err := nats.Connect(c.ClientURL())
	if err != nil {
		b.Fatal(err)
	}
	defer nc.Close()
	eventually(b, "the service", func() error {
		_, err := nc.Request("yard.enqueue.mail", body(0), time.Second)
		return err
	})
	room := make(chan struct{}, 2000)
	inbox := nats.NewInbox()
	if _, err := nc.Subscribe(inbox, func(*nats.Msg) { <-room }); err != nil {
		b.Fatal(err)
	}
	text := make([]byte, 256)
	b.ResetTimer()
	for i := range b.N {
		room <- struct{}{}
		m := &nats.Msg{Subject: "yard.enqueue.mail", Reply: inbox, Data: text, Header: nats.Header{HeaderMsgID: []string{fmt.Sprint(i)}}}
		if err := nc.PublishMsg(m); err != nil {
			b.Fatal(err)
		}
	}
	for range cap(room) { // full again: every answer has come
		room <- struct{}{}
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
	cancel()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
}
