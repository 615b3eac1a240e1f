// Command enqueue enqueues three jobs: one that starts at once, one for tomorrow, and one
// with other options. Its arguments are addresses of nodes.
package main

import (
	"context"
	"log"
	"os"
	"time"

	"github.com/yardmaster-dev/yardmaster/client"
	"github.com/yardmaster-dev/yardmaster/examples/tasks"
)

func main() {
	ctx := context.Background()
	c, err := client.Connect(ctx, os.Args[1:]...)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	welcome := tasks.EmailDelivery{UserID: 42, TemplateID: "welcome"}
	id, err := client.Enqueue(ctx, c, welcome)
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("enqueued %s", id)

	id, err = client.Enqueue(ctx, c, welcome, client.Delay(24*time.Hour))
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("enqueued %s", id)

	id, err = client.Enqueue(ctx, c, tasks.ImageResize{SourceURL: "https://example.com/cat.jpg"},
		tasks.ImageResizeOptions(client.MaxAttempts(11), client.Timeout(3*time.Minute))...)
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("enqueued %s", id)
}
