package bench

import (
	"context"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/test/must"
	"github.com/yardmaster-dev/yardmaster/test/procstat"
)

// The charts of the curve of time.
const (
	chartSteadyStart = "Start of a job"
	chartSteadyRate  = "Jobs ended"
	chartDisk        = "Data directory of a node"
)

// Parameters of the curve of time.
const (
	steadyShare = 0.8 // of the highest rate
	// steadyWarmUp is the time after which a node forgets as many ids as it adds.
	steadyWarmUp = ledger.DedupeHorizon + time.Minute
	// steadyStore makes streams reach their bounds during the warm-up.
	steadyStore = "YARD_NATS_MAX_STORE_BYTES=2147483648"
)

// measureTime measures a cluster that runs steadyShare of its highest rate for some minutes,
// after the warm-up. The load is enqueued whether or not the cluster keeps up.
func (b *bench) measureTime(t *task, minutes []int, add func(int, *Point)) {
	cl := b.newClusterForRound(t, procs.Options{Nodes: 3, Env: []string{steadyStore}})
	highest := b.rounds(t, func(t *task) round {
		return cl.overhop(t, queuePlain, enqueued(queuePlain), false, b.async)
	})
	rate := int(steadyShare * highest.Value)
	b.logf("  highest rate %d jobs/s; %s at %d jobs/s before the first minute", int(highest.Value), steadyWarmUp, rate)
	length := steadyWarmUp + time.Duration(minutes[len(minutes)-1])*time.Minute
	var sampled error
	cl.overhop(t, queuePlain, enqueued(queuePlain), true, func(t *task, l *load) {
		ctx, stop := context.WithCancel(t)
		var sampling sync.WaitGroup
		defer sampling.Wait()
		defer stop()
		sampling.Go(func() { sampled = must.Try(func() { cl.sample(ctx, l, minutes, add) }) })
		l.openLoop(t, rate, during(length))
		sampling.Wait()
	})
	must.Do(sampled)
}

// sample adds a point for each of these minutes of a load after the warm-up.
func (c *benchCluster) sample(ctx context.Context, l *load, minutes []int, add func(int, *Point)) {
	for _, minute := range minutes {
		end := l.began.Add(steadyWarmUp + time.Duration(minute)*time.Minute)
		must.Do(backoff.Sleep(ctx, time.Until(end.Add(-time.Minute))))
		l.takeLatencies()
		ended := l.settled.Load()
		must.Do(backoff.Sleep(ctx, time.Until(end)))
		add(minute, c.steadyPoint(l, int(l.settled.Load()-ended)))
	}
}

// steadyPoint returns a point of the curve of time: the jobs that have started since the
// latencies were last taken, the number that has ended, and what each node uses.
func (c *benchCluster) steadyPoint(l *load, ended int) *Point {
	p := &Point{}
	took := l.takeLatencies()
	p.set(chartSteadyStart, "p50", milliseconds, quantile(took, 0.5))
	p.set(chartSteadyStart, "p99", milliseconds, quantile(took, 0.99))
	p.set(chartSteadyRate, "", jobsPerSecond, float64(ended)/time.Minute.Seconds())
	for _, n := range c.Nodes {
		p.set(chartResident, n.Name, "MB", float64(procstat.PID(n.PID()).Memory())/1e6)
		p.set(chartDisk, n.Name, "MB", float64(must.Get(sizeOf(n.DataDir)))/1e6)
	}
	return p
}

// sizeOf returns the sizes of the files below a directory, without those that are removed
// meanwhile.
func sizeOf(dir string) (sum int64, err error) {
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return nil
		}
		if info, err := entry.Info(); err == nil {
			sum += info.Size()
		}
		return nil
	})
	return sum, err
}
