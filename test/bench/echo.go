package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/freeport"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// ping and pong are the messages of the echo floor. The process that answers only
// counts bytes and does not parse them.
var (
	ping = overhop.AppendMessage(nil, overhop.TPing, "1", overhop.EmptyMap)
	pong = overhop.AppendPong(nil, "1", time.Date(2026, 1, 1, 0, 0, 0, 123456789, time.UTC))
)

// echo listens on addr and answers every ping with the same pong until ctx ends.
func echo(ctx context.Context, addr string) error {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("listen for pings: %w", err)
	}
	var open sync.WaitGroup
	defer open.Wait()
	defer context.AfterFunc(ctx, func() { ln.Close() })()
	for {
		nc, err := ln.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		open.Go(func() {
			defer context.AfterFunc(ctx, func() { nc.Close() })()
			defer nc.Close()
			request := make([]byte, len(ping))
			for {
				if _, err := io.ReadFull(nc, request); err != nil {
					return
				}
				if _, err := nc.Write(pong); err != nil {
					return
				}
			}
		})
	}
}

// echoPeer is the process of the echo floor.
type echoPeer struct {
	*procs.Process
	addr string
}

// startEcho starts an echo process and waits until it listens.
func startEcho(t *task, binary string) *echoPeer {
	addr := must.Get(freeport.Addresses(1))[0]
	e := &echoPeer{t.start("echo", t.dir, nil, peerOptions{Name: "echo", Echo: addr}.command(binary)), addr}
	t.await("the echo listens", func() error {
		w, err := dialWire(t, addr)
		if err == nil {
			w.nc.Close()
		}
		return err
	}, e.Process)
	return e
}

func (e *echoPeer) dial(ctx context.Context) (*wire, error) { return dialWire(ctx, e.addr) }

// pingPong measures round trips per second over n connections, each with one request
// at a time.
func pingPong(t *task, n int, d time.Duration, cpu func() time.Duration, dial func(context.Context) (*wire, error)) round {
	var wires []*wire
	defer func() {
		for _, w := range wires {
			w.nc.Close()
		}
	}()
	for range n {
		w := must.Get(dial(t))
		wires = append(wires, w)
	}
	counts, faults := make([]int, n), make([]error, n)
	m := startMeter(cpu)
	began := time.Now()
	var callers sync.WaitGroup
	for i, w := range wires {
		callers.Go(func() { counts[i], faults[i] = w.trips(t, ping, overhop.TPong, began.Add(d)) })
	}
	callers.Wait()
	took := time.Since(began)
	sum := 0
	for _, count := range counts {
		sum += count
	}
	must.Do(errors.Join(faults...))
	return m.end(round{value: float64(sum) / took.Seconds()})
}
