package cluster

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/lanes"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"

	"github.com/nats-io/nats.go"
)

// BenchmarkPublish_SingleNode measures how fast a node that runs alone accepts
// jobs, one at a time and many at a time.
func BenchmarkPublish_SingleNode(b *testing.B) {
	for _, window := range []int{1, 8, 64, 2000} {
		b.Run(fmt.Sprintf("window=%d", window), func(b *testing.B) {
			c := startSingle(b)
			benchPublish(b, c.Server, window)
		})
	}
}

func benchPublish(b *testing.B, c *Server, window int) {
	b.ResetTimer()
	publishMany(b, c, "k", b.N, window)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
}

func publishMany(b *testing.B, c *Server, prefix string, n, window int) {
	slots := make(chan struct{}, window)
	var wg sync.WaitGroup
	text := make([]byte, 256)
	for i := range n {
		slots <- struct{}{}
		wg.Add(1)
		c.Publisher.Publish("mail", fmt.Sprintf("%s-%d", prefix, i), time.Now(), text, func(_ lanes.Ack, err error) {
			if err != nil {
				b.Error(err)
			}
			<-slots
			wg.Done()
		})
	}
	wg.Wait()
}

// BenchmarkPublish_ThreeNodes publishes through three members in one process, to
// measure what the publisher costs in addition to JetStream.
func BenchmarkPublish_ThreeNodes(b *testing.B) {
	nodes := startCluster(b)
	each := b.N/3 + 1
	var wg sync.WaitGroup
	b.ResetTimer()
	for _, n := range nodes {
		wg.Go(func() { publishMany(b, n.Server, n.cfg.Node, each, 4000) })
	}
	wg.Wait()
	b.ReportMetric(float64(3*each)/b.Elapsed().Seconds(), "jobs/s")
}

// BenchmarkEnqueue_SingleNode measures enqueue requests from a client to the
// reply.
func BenchmarkEnqueue_SingleNode(b *testing.B) {
	c := startSingle(b)
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- c.Serve(ctx, Service{Name: "yard-api", Version: "1.0.0", Endpoints: []Endpoint{{
			Endpoint: api.Endpoint{Name: "enqueue", Subject: api.SubjectEnqueue + ".*"}, HandleAsync: func(r *Request) {
				c.Publisher.Publish(r.Token(), r.Header(subjects.HeaderMsgID), time.Now(), r.Data, func(lanes.Ack, error) { _ = r.Respond([]byte(`{}`)) })
			},
		}}})
	}()
	nc, err := nats.Connect(c.ClientURL())
	if err != nil {
		b.Fatal(err)
	}
	defer nc.Close()
	eventually(b, "the service", func() error {
		_, err := nc.Request("yard.enqueue.mail", jobBody(0), time.Second)
		return err
	})
	slots := make(chan struct{}, 2000)
	inbox := nats.NewInbox()
	if _, err := nc.Subscribe(inbox, func(*nats.Msg) { <-slots }); err != nil {
		b.Fatal(err)
	}
	text := make([]byte, 256)
	b.ResetTimer()
	for i := range b.N {
		slots <- struct{}{}
		m := &nats.Msg{Subject: "yard.enqueue.mail", Reply: inbox, Data: text, Header: nats.Header{subjects.HeaderMsgID: []string{fmt.Sprint(i)}}}
		if err := nc.PublishMsg(m); err != nil {
			b.Fatal(err)
		}
	}
	for range cap(slots) { // wait for all replies
		slots <- struct{}{}
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
	cancel()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
}
