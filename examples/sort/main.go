// Command sort enqueues a job in a transaction of a SQLite database, with client/outbox, and
// runs it. It ends with a signal. Its arguments are addresses of nodes. It is a module of its
// own because of the database driver.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"

	_ "modernc.org/sqlite"

	"github.com/yardmaster-dev/yardmaster/client"
	"github.com/yardmaster-dev/yardmaster/client/outbox"
)

// SortArgs are the params of a job that sorts strings.
type SortArgs struct {
	Strings []string `json:"strings"`
}

func (SortArgs) Kind() string { return "sort" }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c, err := client.Connect(ctx, os.Args[1:]...)
	if err != nil {
		log.Fatal(err)
	}
	db, err := sql.Open("sqlite", "file:sort.db?_pragma=busy_timeout(5000)")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := db.Exec(outbox.Schema(outbox.SQLite)); err != nil { // belongs into a migration
		log.Fatal(err)
	}

	forwarder := &outbox.Forwarder{DB: db, Client: c}
	var running sync.WaitGroup
	running.Go(func() { forwarder.Run(ctx) })
	if err := insert(ctx, db); err != nil {
		log.Fatal(err)
	}
	forwarder.Notify()

	w := c.Worker()
	w.Concurrency = 100
	client.Handle(w, Sort)
	if err := w.Run(ctx); err != nil {
		log.Fatal(err)
	}
	running.Wait()
}

// Sort is the handler of the jobs.
func Sort(_ context.Context, job *client.Job[SortArgs]) (any, error) {
	slices.Sort(job.Args.Strings)
	fmt.Println("sorted strings:", job.Args.Strings)
	return nil, nil
}

// insert enqueues a job if the transaction commits.
func insert(ctx context.Context, db *sql.DB) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := outbox.Enqueue(ctx, tx, SortArgs{Strings: []string{"whale", "tiger", "bear"}}); err != nil {
		return err
	}
	return tx.Commit()
}
