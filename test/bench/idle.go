package bench

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/must"
	"github.com/yardmaster-dev/yardmaster/test/procstat"
)

// The idle workers: each is registered and has one credit for a queue without jobs.
const (
	idleWorkers = 5000
	atOnce      = 64 // workers that connect concurrently
)

// openIdle connects idle workers to a node.
func openIdle(t *task, n *procs.Node, workers int) []*wire {
	wires, faults := make([]*wire, workers), make([]error, atOnce)
	var connecting sync.WaitGroup
	for first := range atOnce {
		connecting.Go(func() {
			for i := first; i < workers && faults[first] == nil; i += atOnce {
				wires[i], faults[first] = dialIdle(t, n.Edge)
			}
		})
	}
	connecting.Wait()
	t.cleanup(func() { closeWires(wires) })
	must.Do(errors.Join(faults...))
	return wires
}

// dialIdle connects one idle worker.
func dialIdle(ctx context.Context, addr string) (*wire, error) {
	w, err := dialWorker(ctx, addr)
	if err != nil {
		return nil, err
	}
	if err := w.subscribe(queueIdle, 1); err != nil {
		w.nc.Close()
		return nil, err
	}
	return w, nil
}

func closeWires(wires []*wire) {
	for _, w := range wires {
		if w != nil {
			w.nc.Close()
		}
	}
}

// footprint is the resource usage of a node's process.
type footprint struct {
	resident int64 // resident memory in bytes
	inUse    int64 // bytes of Go's heap and stacks in use after a collection
	files    int   // open descriptors
}

// perWorker returns the growth since before, divided by n workers.
func (f footprint) perWorker(before footprint, n int) (residentKiB, inUseKiB, files float64) {
	per := func(grown int64) float64 { return float64(grown) / float64(n) }
	return per(f.resident-before.resident) / 1024, per(f.inUse-before.inUse) / 1024, per(int64(f.files - before.files))
}

// footprintOf triggers a garbage collection in a node and reads its footprint.
func footprintOf(t *task, n *procs.Node) (f footprint) {
	request := must.Get(http.NewRequestWithContext(t, http.MethodGet, "http://"+n.Profile+"/debug/pprof/heap?gc=1&debug=1", nil))
	answer := must.Get(http.DefaultClient.Do(request))
	defer answer.Body.Close()
	f.inUse = must.Get(readInUse(answer.Body))
	http.DefaultClient.CloseIdleConnections()
	p := procstat.PID(n.PID())
	f.resident, f.files = p.Memory(), p.Descriptors()
	return f
}

// readInUse adds up heap and stacks from the text form of Go's heap profile, which
// ends with lines such as "# HeapInuse = 123" and "# Stack = 45 / 67".
func readInUse(profile io.Reader) (sum int64, err error) {
	found := 0
	lines := bufio.NewScanner(profile)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, value, ok := strings.Cut(strings.TrimPrefix(lines.Text(), "# "), " = ")
		if !ok || name != "HeapInuse" && name != "Stack" {
			continue
		}
		value, _, _ = strings.Cut(value, " ")
		bytes, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += bytes
		found++
	}
	if found != 2 && lines.Err() == nil {
		return 0, errors.New("the profile has no HeapInuse or no Stack")
	}
	return sum, lines.Err()
}

// idleCost is the cost of one idle worker for its node.
type idleCost struct{ residentKiB, inUseKiB, files float64 }

// measureIdle measures the cost of idle workers on a new node, because a process keeps
// memory for a while after use.
func (b *bench) measureIdle(t *task) (c idleCost) {
	cl := b.newClusterForRound(t, procs.Options{Nodes: 1, Profile: true})
	n := cl.Nodes[0]
	openIdle(t, n, atOnce) // do not count what the first workers allocate once
	cl.awaitCapacity(t, atOnce)
	before := footprintOf(t, n)
	openIdle(t, n, idleWorkers)
	cl.awaitCapacity(t, atOnce+idleWorkers)
	c.residentKiB, c.inUseKiB, c.files = footprintOf(t, n).perWorker(before, idleWorkers)
	return c
}
