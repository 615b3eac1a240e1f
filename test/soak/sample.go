package soak

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/test/drill"
	"github.com/yardmaster-dev/yardmaster/test/procstat"
)

// sampler records what can be measured from outside, and the statuses of the nodes.
type sampler struct {
	cluster  *drill.Cluster
	js       jetstream.JetStream
	load     *load
	work     *jobWork
	table    *jobTable
	refusals *refusalLog
	bounds   *boundCounter
	out      *recorder

	before   jobSums
	beforeAt time.Duration
	lag      atomic.Int64 // the largest of a status since the last sample
}

// statusTimeout bounds the wait for one status. A node that does not answer in time is
// shown as such.
const statusTimeout = 3 * time.Second

// watch asks a node for its status every second until ctx ends, and records the reasons
// that it shows.
func (s *sampler) watch(ctx context.Context, n *drill.Node) {
	var nc *nats.Conn
	defer func() {
		if nc != nil {
			nc.Close()
		}
	}()
	for backoff.Sleep(ctx, time.Second) == nil {
		if nc == nil {
			nc, _ = nats.Connect(n.URL(), nats.Timeout(time.Second), nats.NoReconnect(), nats.DontRandomize())
		}
		status, err := statusOf(ctx, nc)
		if err != nil {
			if ctx.Err() == nil {
				s.refusals.show([]string{n.Name + " does not answer"})
			}
			if nc != nil {
				nc.Close()
				nc = nil
			}
			continue
		}
		if reasons := reasonsOf(&status); len(reasons) > 0 {
			s.refusals.show(reasons)
		}
		lag := int64(0)
		for _, l := range status.Lanes {
			lag += int64(l.Lag)
		}
		s.lag.Store(max(s.lag.Load(), lag)) // a lost update is repeated within a second
	}
}

// statusOf asks for a status over a connection to one node.
func statusOf(ctx context.Context, nc *nats.Conn) (status api.Status, err error) {
	if nc == nil {
		return status, nats.ErrConnectionClosed
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	m, err := nc.RequestWithContext(ctx, api.SubjectStatus, []byte("{}"))
	if err != nil {
		return status, err
	}
	return status, json.Unmarshal(m.Data, &status)
}

// take records one sample.
func (s *sampler) take(ctx context.Context, at time.Duration) {
	s.out.start(at)
	s.takeLoad(at)
	files := s.takeNodes(ctx)
	ctx, cancel := context.WithTimeout(ctx, 2*statusTimeout)
	defer cancel()
	streams, err := listStreams(ctx, s.js)
	if err != nil {
		return // no member leads the streams at present
	}
	s.bounds.observe(streams)
	total := 0.0
	for _, name := range slices.Sorted(maps.Keys(streams)) {
		stream := streams[name]
		if !strings.HasPrefix(name, "YARD_") {
			continue
		}
		total += float64(stream.Bytes)
		s.out.set(name, name+" content", "bytes", judgeDisk, float64(stream.Bytes)).Bound = float64(max(stream.MaxBytes, 0))
		s.out.set(name, name+" files", "bytes", judgeDisk, files[name])
	}
	s.out.set("All streams", "All streams", "bytes", judgeDisk, total)
}

// takeLoad records rates, latencies and lag.
func (s *sampler) takeLoad(at time.Duration) {
	now := s.table.totals()
	seconds := max((at - s.beforeAt).Seconds(), 0.001)
	perSecond := func(name string, now, before int) {
		s.out.set("Jobs", "Jobs "+name, "/s", notJudged, float64(now-before)/seconds)
	}
	perSecond("submitted", now.Submitted, s.before.Submitted)
	perSecond("accepted", now.Accepted, s.before.Accepted)
	perSecond("ended", now.Completed+now.Dead, s.before.Completed+s.before.Dead)
	s.before, s.beforeAt = now, at
	latency := func(panel string, h *histogram) {
		quantiles, _ := h.take(0.5, 0.99)
		s.out.set(panel, panel+" p50", " ms", judgeFast, quantiles[0])
		s.out.set(panel, panel+" p99", " ms", judgeSlow, quantiles[1])
	}
	latency("Due to accepted", &s.load.acks)
	latency("Due to started", &s.work.starts)
	s.out.set("Records not ingested", "Records not ingested", "", judgeLag, float64(s.lag.Swap(0)))
	waiting := float64(now.Open) - float64(s.load.pausedIn.Load())
	s.out.set("Jobs not ended", "Jobs not ended", "", judgeLag, waiting)
}

// takeNodes records the resources of each node, except memory of one that is down. It
// returns the size of the files of each stream on the node that has the most.
func (s *sampler) takeNodes(ctx context.Context) (files map[string]float64) {
	files = make(map[string]float64)
	var all sync.WaitGroup
	usage := make([]nodeUsage, len(s.cluster.Nodes))
	for i, n := range s.cluster.Nodes {
		all.Go(func() { usage[i] = usageOf(ctx, n) })
	}
	all.Wait()
	for i, n := range s.cluster.Nodes {
		u := &usage[i]
		set := func(panel, unit string, rule levelRule, value float64) {
			s.out.set(panel, panel+" "+n.Name, unit, rule, value)
		}
		set("Resident memory", "bytes", ofOneNode, u.resident)
		set("Go heap in use", "bytes", ofOneNode, u.heap)
		set("Goroutines", "", ofOneNode, u.goroutines)
		set("Open files", "", ofOneNode, u.files)
		set("Disk", "bytes", judgeLedger, u.disk)
		set("Raft log and snapshots", "bytes", judgeLedger, u.raft)
		set("Raft logs of streams", "bytes", judgeDisk, u.streamRaft)
		s.bounds.snapshots(n.Name, u.snapshots)
		for name, size := range u.streams {
			files[name] = max(files[name], size)
		}
	}
	sum := func(what, unit string, rule levelRule, of func(*nodeUsage) float64) {
		total := 0.0 // NaN if a node is down
		for i := range usage {
			total += of(&usage[i])
		}
		s.out.set("All nodes: "+what, "All nodes: "+what, unit, rule, total)
	}
	sum("resident memory", "bytes", judgeMemory, func(u *nodeUsage) float64 { return u.resident })
	sum("Go heap in use", "bytes", judgeMemory, func(u *nodeUsage) float64 { return u.heap })
	sum("goroutines", "", judgeCount, func(u *nodeUsage) float64 { return u.goroutines })
	sum("open files", "", judgeCount, func(u *nodeUsage) float64 { return u.files })
	return files
}

// nodeUsage is what one node uses; NaN is unknown.
type nodeUsage struct {
	resident, heap, goroutines, files float64
	disk, raft, streamRaft            float64            // bytes of the data, of the ledger's Raft log and of those of streams
	streams                           map[string]float64 // bytes of the files of each stream
	snapshots                         []string           // names of the ledger's
}

func usageOf(ctx context.Context, n *drill.Node) (u nodeUsage) {
	u.addDirectory(n.DataDir)
	u.resident, u.heap, u.goroutines, u.files = math.NaN(), math.NaN(), math.NaN(), math.NaN()
	if !n.Running() {
		return u
	}
	p := procstat.PID(n.PID())
	if memory := p.Memory(); memory > 0 {
		u.resident, u.files = float64(memory), float64(p.Descriptors())
	}
	values := scrape(ctx, n, "go_memstats_heap_inuse_bytes", "go_goroutines")
	u.heap, u.goroutines = values[0], values[1]
	return u
}

// ballastFile is reserved space of a fixed size, which the node frees when the disk is full.
const ballastFile = "ballast"

// addDirectory adds the sizes of the files in a node's data directory.
func (u *nodeUsage) addDirectory(dir string) {
	u.streams = make(map[string]float64)
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error { // files may be removed meanwhile
		if err != nil || path == dir {
			return nil
		}
		below := strings.Split(path[len(dir)+1:], string(filepath.Separator))
		inRaft := below[0] == "raft"
		if entry.IsDir() {
			if inRaft && len(below) == 3 && below[1] == "snapshots" && !strings.HasSuffix(path, ".tmp") {
				u.snapshots = append(u.snapshots, entry.Name())
			}
			return nil
		}
		info, err := entry.Info()
		if err != nil || entry.Name() == ballastFile {
			return nil
		}
		size := float64(info.Size())
		u.disk += size
		switch i := slices.Index(below, "streams"); {
		case inRaft:
			u.raft += size
		case slices.Contains(below, "_js_"):
			u.streamRaft += size
		case i >= 0 && i+1 < len(below):
			u.streams[below[i+1]] += size
		}
		return nil
	})
}

// scrape returns metrics without labels of a node, NaN for those that it does not have.
func scrape(ctx context.Context, n *drill.Node, names ...string) (values []float64) {
	values = slices.Repeat([]float64{math.NaN()}, len(names))
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.HTTP+"/metrics", nil)
	if err != nil {
		return values
	}
	request.Header.Set("Authorization", "Bearer "+drill.Token)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return values
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if i := slices.Index(names, name); i >= 0 {
			if v, err := strconv.ParseFloat(value, 64); err == nil {
				values[i] = v
			}
		}
	}
	return values
}

// progress returns a line about the state of the run.
func (s *sampler) progress(at time.Duration) string {
	last := func(name string) string {
		series := s.out.byName[name]
		if series == nil || len(series.Values) == 0 {
			return "–"
		}
		return series.text(series.Values[len(series.Values)-1])
	}
	return fmt.Sprintf("%6s  %s submitted, %s accepted, %s ended; accepted after %s / %s, started after %s / %s; lag %s, not ended %s; streams %s",
		at.Round(time.Second), last("Jobs submitted"), last("Jobs accepted"), last("Jobs ended"),
		last("Due to accepted p50"), last("Due to accepted p99"), last("Due to started p50"), last("Due to started p99"),
		last("Records not ingested"), last("Jobs not ended"), last("All streams"))
}
