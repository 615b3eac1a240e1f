package bench

import (
	"context"
	"fmt"
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
	// steadyHighest is the last part of the warm-up, in which the highest rate is measured.
	steadyHighest = 5 * time.Minute
	// steadyUnsettled is how many jobs are unfinished during the warm-up: enough to keep every
	// part of the cluster busy.
	steadyUnsettled = 8192
	// steadyTrial is how long each rate is tried, and steadyStart the p99 of starts up to which
	// the cluster keeps up with it.
	steadyTrial = time.Minute
	steadyStart = time.Second
	// steadyStore makes streams reach their bounds during the warm-up.
	steadyStore = "YARD_NATS_MAX_STORE_BYTES=2147483648"
)

// steadyTrials are the rates that are tried, as shares of the rate of a saturated cluster.
var steadyTrials = []float64{1, 0.9, 0.8, 0.7, 0.6, 0.5}

// measureTime measures a cluster that runs steadyShare of its highest rate for some minutes.
// During the warm-up the cluster is saturated by producers that wait for it, so that it keeps and
// forgets as much as at any later time. The highest rate is then that of producers who do not
// wait, as far as the cluster keeps up with them: see steadyTrials. That is lower, because their
// jobs come one by one.
func (b *bench) measureTime(t *task, minutes []int, add func(int, *Point)) {
	cl := b.newClusterForRound(t, procs.Options{Nodes: 3, Env: []string{steadyStore}})
	length := time.Duration(minutes[len(minutes)-1]) * time.Minute
	var sampled error
	cl.overhop(t, queuePlain, enqueued(queuePlain), true, func(t *task, l *load) {
		l.saturate(t, steadyUnsettled, forTime(steadyWarmUp-steadyHighest))
		before := l.settled.Load()
		l.saturate(t, steadyUnsettled, forTime(steadyHighest))
		saturated := float64(l.settled.Load()-before) / steadyHighest.Seconds()
		b.logf("  %d jobs/s in the last %s of a saturated warm-up of %s", int(saturated), steadyHighest, steadyWarmUp)
		highest := l.highestRate(t, saturated, b.logf)
		rate := int(steadyShare * highest)
		b.logf("  highest rate %d jobs/s; now %d jobs/s", int(highest), rate)

		ctx, stop := context.WithCancel(t)
		var sampling sync.WaitGroup
		defer sampling.Wait()
		defer stop()
		began := time.Now()
		sampling.Go(func() { sampled = must.Try(func() { cl.sample(ctx, l, began, minutes, add) }) })
		l.openLoop(t, rate, during(length))
		sampling.Wait()
	})
	must.Do(sampled)
}

// highestRate returns the first of steadyTrials that the cluster keeps up with, given the rate
// of the saturated cluster.
func (l *load) highestRate(t *task, saturated float64, logf func(string, ...any)) float64 {
	for _, share := range steadyTrials {
		must.Do(l.awaitEnds(t))
		l.takeLatencies()
		rate := share * saturated
		l.openLoop(t, int(rate), during(steadyTrial))
		p99 := time.Duration(quantile(l.takeLatencies(), 0.99) * float64(time.Millisecond))
		logf("  %d jobs/s: start p99 %s", int(rate), p99.Round(time.Millisecond))
		if p99 <= steadyStart {
			must.Do(l.awaitEnds(t))
			l.takeLatencies()
			return rate
		}
	}
	must.Do(fmt.Errorf("the cluster keeps up with none of %v of %d jobs/s", steadyTrials, int(saturated)))
	return 0
}

// sample adds a point for each of these minutes of a load that began at a time.
func (c *benchCluster) sample(ctx context.Context, l *load, began time.Time, minutes []int, add func(int, *Point)) {
	for _, minute := range minutes {
		end := began.Add(time.Duration(minute) * time.Minute)
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
