package overhop_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
)

// A worker registers a handler for each queue, with the number of jobs that may
// run at once. Run connects, and stays connected, until ctx ends.
func ExampleWorker() {
	ctx, stop := context.WithTimeout(context.Background(), 200*time.Millisecond) // use signal.NotifyContext in a program
	defer stop()
	w := overhop.Worker{Nodes: []string{"127.0.0.1:9876", "127.0.0.1:9877"}, CreateQueues: true}
	w.Dial = exampleNode // for this example only
	w.Handle("mail", 4, func(ctx context.Context, q *overhop.Quest) (overhop.Raw, error) {
		var mail struct{ To string }
		if err := overhop.Unmarshal(q.Payload, &mail); err != nil {
			return nil, &overhop.FailError{Message: err.Error(), Final: true}
		}
		fmt.Println("to", mail.To)
		return overhop.Marshal(map[string]any{"sent": true})
	})
	if err := w.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: to ann
}

// A producer submits jobs and can wait for their results.
func ExampleProducer() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	p := overhop.Producer{Nodes: []string{"127.0.0.1:9876", "127.0.0.1:9877"}}
	p.Dial = exampleNode // for this example only
	defer p.Close()
	jid, err := p.Enqueue(ctx, overhop.Enqueue{Queue: "mail", Payload: overhop.Fields{"To": "ann"}.Raw()})
	if err != nil {
		log.Fatal(err)
	}
	end, err := p.Wait(ctx, jid)
	var receipt struct {
		Sent bool `json:"sent"`
	}
	if err == nil {
		err = overhop.Unmarshal(end.Result, &receipt)
	}
	fmt.Println(receipt.Sent, err)
	// Output: true <nil>
}

// exampleNode returns a connection to a node that has one job.
func exampleNode(context.Context, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	go serveExample(ours)
	return theirs, nil
}
