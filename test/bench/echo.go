package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/freeport"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
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
func startEcho(ctx context.Context, binary, dir string) (*echoPeer, error) {
	a, err := freeport.Addresses(1)
	if err != nil {
		return nil, err
	}
	o := peerOptions{Name: "echo", Echo: a[0]}
	p, err := procs.StartProcess("peer echo", filepath.Join(dir, "echo.log"), nil, binary, o.args()...)
	if err != nil {
		return nil, err
	}
	e := &echoPeer{p, a[0]}
	up := func() bool {
		w, err := dialWire(ctx, e.addr)
		if err != nil {
			return e.Ended() != nil
		}
		w.nc.Close()
		return true
	}
	if err := errors.Join(until(ctx, waitTimeout, up), e.Ended()); err != nil {
		e.stop()
		return nil, fmt.Errorf("start the echo: %w", err)
	}
	return e, nil
}

func (e *echoPeer) stop() { e.Stop(5 * time.Second) }

func (e *echoPeer) dial(ctx context.Context) (*wire, error) { return dialWire(ctx, e.addr) }

// pingPong measures round trips per second over n connections, each with one request
// at a time.
func pingPong(ctx context.Context, n int, d time.Duration, cpu func() time.Duration, dial func(context.Context) (*wire, error)) (round, error) {
	var wires []*wire
	defer func() {
		for _, w := range wires {
			w.nc.Close()
		}
	}()
	for range n {
		w, err := dial(ctx)
		if err != nil {
			return round{}, err
		}
		wires = append(wires, w)
	}
	counts, faults := make([]int, n), make([]error, n)
	m := startMeter(cpu)
	began := time.Now()
	var callers sync.WaitGroup
	for i, w := range wires {
		callers.Go(func() { counts[i], faults[i] = w.trips(ctx, ping, overhop.TPong, began.Add(d)) })
	}
	callers.Wait()
	took := time.Since(began)
	sum := 0
	for _, count := range counts {
		sum += count
	}
	return m.end(round{value: float64(sum) / took.Seconds()}), errors.Join(faults...)
}
