// Command producer enqueues a job every now and then over Overhop's TCP
// protocol: the smallest producer that loses nothing. With a node and a worker
// running,
//
//	go run ./examples/producer --queue mail --function echo --every 1s
//
// Several functions take turns. A job counts as handed over when a node has
// answered; until then it is offered again under the same key, to another node
// if need be, and stays one job.
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

	"yardmaster/edge/overhop"
)

// patience is how long one job is offered before the producer says so and
// goes on offering it.
const patience = 10 * time.Second

// options are the flags.
type options struct {
	nodes, functions, queue, tokenFile, name string
	every                                    time.Duration
	jobs                                     int
}

func main() {
	var o options
	flag.StringVar(&o.nodes, "addr", "127.0.0.1:9876", "edges to connect to, `host:port` with commas between")
	flag.StringVar(&o.queue, "queue", "mail", "`queue` to enqueue into; it has to exist, a worker adds it")
	flag.StringVar(&o.functions, "function", "echo", "`functions` that take turns, with commas between")
	flag.DurationVar(&o.every, "every", time.Second, "`time` between two jobs")
	flag.IntVar(&o.jobs, "jobs", 0, "`number` of jobs to enqueue; 0: until stopped")
	flag.StringVar(&o.tokenFile, "token-file", "", "`file` that holds the token which the edges ask of their clients")
	flag.StringVar(&o.name, "name", "producer", "`name` that begins every key: unlike those of other producers of the queue")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := produce(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "producer:", err)
		os.Exit(1)
	}
}

// produce enqueues until ctx ends, or the jobs are handed over.
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
	// A producer that starts anew must not give old keys to new jobs.
	life := time.Now().UnixNano()
	functions := strings.Split(o.functions, ",")
	for n := 1; o.jobs == 0 || n <= o.jobs; n++ {
		e := overhop.Enqueue{
			Queue: o.queue, Function: functions[n%len(functions)], Key: fmt.Sprintf("%s-%d-%d", o.name, life, n),
			Payload: overhop.AppendValue(nil, overhop.Fields{"n": n}),
		}
		if err := handOver(ctx, &p, e); err != nil {
			return err
		}
		if n == 1 || n%60 == 0 {
			slog.Info("jobs are accepted", "jobs", n, "queue", o.queue)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// handOver offers a job until a node has accepted it or ctx ends, which is no
// error. An edge that refuses is asked again as well: its queue may come to be,
// and a token may be set right.
func handOver(ctx context.Context, p *overhop.Producer, e overhop.Enqueue) error {
	for ctx.Err() == nil {
		try, cancel := context.WithTimeout(ctx, patience)
		_, err := p.Enqueue(try, e)
		cancel()
		if err == nil || errors.Is(err, overhop.ErrNotSendable) {
			return err
		}
		if ctx.Err() == nil {
			slog.Warn("job is not accepted yet", "key", e.Key, "err", err)
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
	return nil
}
