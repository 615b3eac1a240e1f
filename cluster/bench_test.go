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
	room := make(chan struct{}, window)
	var wg sync.WaitGroup
	text := make([]byte, 256)
	b.ResetTimer()
	for i := range b.N {
		room <- struct{}{}
		wg.Add(1)
		c.Publish("mail", fmt.Sprintf("k%d", i), time.Now(), text, func(_ Ack, err error) {
			if err != nil {
				b.Error(err)
			}
			<-room
			wg.Done()
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
}
