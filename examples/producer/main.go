// Command producer enqueues a job at regular intervals over Overhop: a minimal
// producer that loses no jobs. With a node and a worker running,
//
//	go run ./examples/producer --queue mail --function echo --every 1s
//
// Several functions are used in turn. A job counts as accepted when a node has
// answered. Until then it is submitted again under the same key, if necessary
// to another node, and remains one job.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
)

// reportAfter is how long one job is submitted before a warning is logged.
const reportAfter = 10 * time.Second

// options holds the flags.
type options struct {
	nodes, functions, queue, tokenFile, name string
	every                                    time.Duration
	jobs                                     int
}

func main() {
	var o options
	flag.StringVar(&o.nodes, "addr", "127.0.0.1:9876", "nodes to connect to, `host:port`, separated by commas")
	flag.StringVar(&o.queue, "queue", "mail", "`queue` to enqueue into; it must exist, workers create theirs")
	flag.StringVar(&o.functions, "function", "echo", "`functions` to use in turn, separated by commas")
	flag.DurationVar(&o.every, "every", time.Second, "`time` between two jobs")
	flag.IntVar(&o.jobs, "jobs", 0, "`number` of jobs to enqueue; 0: until stopped")
	flag.StringVar(&o.tokenFile, "token-file", "", "`file` that contains the token that the nodes require")
	flag.StringVar(&o.name, "name", "producer", "`name` that begins every key; it must be unique among the queue's producers")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := produce(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "producer:", err)
		os.Exit(1)
	}
}

// produce enqueues jobs until ctx ends, or the requested number is accepted.
func produce(ctx context.Context, o options) (err error) {
	p := overhop.Producer{Nodes: strings.Split(o.nodes, ","), Name: o.name}
	if o.tokenFile != "" {
		text, err := os.ReadFile(o.tokenFile)
		if err != nil {
			return fmt.Errorf("read --token-file: %w", err)
		}
		p.Token = strings.TrimSpace(string(text))
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	tick := time.NewTicker(o.every)
	defer tick.Stop()
	// Keys contain the start time, so that a restarted producer does not reuse
	// old ones.
	startTime := time.Now().UnixNano()
	functions := strings.Split(o.functions, ",")
	for n := 1; o.jobs == 0 || n <= o.jobs; n++ {
		e := overhop.Enqueue{
			Queue: o.queue, Function: functions[n%len(functions)], Key: fmt.Sprintf("%s-%d-%d", o.name, startTime, n),
			Payload: overhop.AppendValue(nil, overhop.Fields{"n": n}),
		}
		if err := enqueueUntilAccepted(ctx, &p, e); err != nil {
			return err
		}
		if n == 1 || n%60 == 0 {
			slog.Info("jobs accepted", "count", n, "queue", o.queue)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// enqueueUntilAccepted submits a job until a node has accepted it, or until ctx
// ends, which is not an error. It retries after refusals as well: the queue may
// be created later, or the token corrected.
func enqueueUntilAccepted(ctx context.Context, p *overhop.Producer, e overhop.Enqueue) error {
	for ctx.Err() == nil {
		tryCtx, cancel := context.WithTimeout(ctx, reportAfter)
		_, err := p.Enqueue(tryCtx, e)
		cancel()
		if err == nil || errors.Is(err, overhop.ErrNotSendable) {
			return err
		}
		if ctx.Err() == nil {
			slog.Warn("job not accepted yet", "key", e.Key, "err", err)
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
	return nil
}
