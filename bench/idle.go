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

	"yardmaster/drill/yard"
)

// Workers that have nothing to do: each is registered and has one credit for a
// queue without jobs.
const (
	idleWorkers = 5000
	atOnce      = 64 // of them that connect at the same time
)

// openIdle connects idle workers to a node. After an error none is left.
func openIdle(ctx context.Context, n *yard.Node, workers int) ([]*wire, error) {
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

// footprint is what a node's process holds.
type footprint struct {
	resident int64 // bytes in the machine's memory
	inUse    int64 // bytes of Go's heap and stacks after a collection
	files    int   // descriptors
}

// perWorker is what one of n workers adds.
func (f footprint) perWorker(before footprint, n int) (residentKiB, inUseKiB, files float64) {
	per := func(grown int64) float64 { return float64(grown) / float64(n) }
	return per(f.resident-before.resident) / 1024, per(f.inUse-before.inUse) / 1024, per(int64(f.files - before.files))
}

// footprintOf collects a node's garbage and looks at what is left.
func footprintOf(ctx context.Context, n *yard.Node) (f footprint, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.Profile+"/debug/pprof/heap?gc=1&debug=1", nil)
	if err != nil {
		return f, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return f, fmt.Errorf("ask %s for its memory: %w", n.Name, err)
	}
	defer answer.Body.Close()
	if f.inUse, err = readInUse(answer.Body); err != nil {
		return f, fmt.Errorf("read the memory of %s: %w", n.Name, err)
	}
	http.DefaultClient.CloseIdleConnections()
	f.resident, f.files = n.Memory(), n.Descriptors()
	return f, nil
}

// readInUse adds up heap and stacks from the text form of Go's heap profile,
// whose end has lines such as "# HeapInuse = 123" and "# Stack = 45 / 67".
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
		return 0, errors.New("it does not say what is in use")
	}
	return sum, lines.Err()
}

// idleCost is what an idle worker costs its node.
type idleCost struct{ residentKiB, inUseKiB, files float64 }

// measureIdle takes a fresh node each time, because memory that was once in use
// stays with a process for a while.
func (b *bench) measureIdle(ctx context.Context, dir string) (idleCost, error) {
	y, err := b.freshYard(ctx, dir, yard.Options{Nodes: 1, Profile: true})
	if err != nil {
		return idleCost{}, err
	}
	defer y.close()
	n := y.Nodes[0]
	first, err := openIdle(ctx, n, atOnce) // what the first workers wake is no worker's
	if err != nil {
		return idleCost{}, err
	}
	defer closeWires(first)
	if err := y.awaitRoom(ctx, atOnce); err != nil {
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
	if err := y.awaitRoom(ctx, atOnce+idleWorkers); err != nil {
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
