package cluster

import (
	"fmt"
	"sync"
	"testing"
	"time"
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
