package client_test

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/client"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// exampleNode returns the address of the worker port of the node to which the examples
// connect, and a function that stops the node. The node starts at the first call.
var exampleNode = sync.OnceValues(func() (addr string, stop func()) {
	cl, stop := clustertest.StartAlone(1, clustertest.RetryAfter(10*time.Millisecond))
	return cl.Members[0].Node().Addresses().Overhop, stop
})

var exampleRan bool

// TestMain stops the node of the examples at the end.
func TestMain(m *testing.M) {
	code := m.Run()
	if exampleRan {
		_, stop := exampleNode()
		stop()
	}
	os.Exit(code)
}

// startNode returns the address of the worker port of a node in this process.
func startNode() string {
	exampleRan = true
	addr, _ := exampleNode()
	return addr
}

// example returns a context and a client for an example, which must call end when it ends.
func example() (ctx context.Context, c *client.Client, end func()) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	c, err := client.Open(ctx, client.Options{Nodes: []string{startNode()}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	return ctx, c, func() {
		cancel()
		_ = c.Close() // always nil
	}
}

// runWorker runs a worker until ctx ends.
func runWorker(ctx context.Context, w *client.Worker) {
	go func() {
		if err := w.Run(ctx); err != nil {
			panic(err)
		}
	}()
}
