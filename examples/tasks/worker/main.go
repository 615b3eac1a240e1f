// Command worker runs the jobs of package tasks until it gets a signal. Its arguments are
// addresses of nodes.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/yardmaster-dev/yardmaster/client"
	"github.com/yardmaster-dev/yardmaster/examples/tasks"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c, err := client.Connect(ctx, os.Args[1:]...)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	w := c.Worker()
	w.Concurrency = 10
	w.Queues = map[string]int{"images": 3}
	client.Handle(w, tasks.DeliverEmail)
	client.Handle(w, new(tasks.ImageProcessor).Resize)
	if err := w.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
