package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/procstat"
)

// The idle workers: each is registered and has one credit for a queue without jobs.
const (
	idleWorkers = 5000
	atOnce      = 64 // workers that connect concurrently
)

// openIdle connects idle workers to a node. After an error it leaves no connection.
func openIdle(ctx context.Context, n *procs.Node, workers int) ([]*wire, error) {
	wires, faults := make([]*wire, workers), make([]error, atOnce)
	var connecting sync.WaitGroup
	for first := range atOnce {
		connecting.Go(func() {
			for i := first; i < workers && faults[first] == nil; i += atOnce {
				wires[i], faults[first] = dialIdle(ctx, n.Edge)
			}
		})
	}
	connecting.Wait()
	if err := errors.Join(faults...); err != nil {
		closeWires(wires)
		return nil, fmt.Errorf("connect %d workers to %s: %w", workers, n.Name, err)
	}
	return wires, nil
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
func footprintOf(ctx context.Context, n *procs.Node) (f footprint, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.Profile+"/debug/pprof/heap?gc=1&debug=1", nil)
	if err != nil {
		return f, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return f, fmt.Errorf("request the memory profile of %s: %w", n.Name, err)
	}
	defer answer.Body.Close()
	if f.inUse, err = readInUse(answer.Body); err != nil {
		return f, fmt.Errorf("read the memory profile of %s: %w", n.Name, err)
	}
	http.DefaultClient.CloseIdleConnections()
	p := procstat.PID(n.PID())
	f.resident, f.files = p.Memory(), p.Descriptors()
	return f, nil
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
func (b *bench) measureIdle(ctx context.Context, dir string) (idleCost, error) {
	cl, err := b.newClusterForRound(ctx, dir, procs.Options{Nodes: 1, Profile: true})
	if err != nil {
		return idleCost{}, err
	}
	defer cl.close()
	n := cl.Nodes[0]
	first, err := openIdle(ctx, n, atOnce) // do not count what the first workers allocate once
	if err != nil {
		return idleCost{}, err
	}
	defer closeWires(first)
	if err := cl.awaitCapacity(ctx, atOnce); err != nil {
		return idleCost{}, err
	}
	before, err := footprintOf(ctx, n)
	if err != nil {
		return idleCost{}, err
	}
	wires, err := openIdle(ctx, n, idleWorkers)
	if err != nil {
		return idleCost{}, err
	}
	defer closeWires(wires)
	if err := cl.awaitCapacity(ctx, atOnce+idleWorkers); err != nil {
		return idleCost{}, err
	}
	after, err := footprintOf(ctx, n)
	if err != nil {
		return idleCost{}, err
	}
	var c idleCost
	c.residentKiB, c.inUseKiB, c.files = after.perWorker(before, idleWorkers)
	return c, nil
}
