package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/client"
)

// SendMail is the job of the examples.
type SendMail struct {
	To   string `json:"to"`
	Text string `json:"text"`
}

func (SendMail) Kind() string  { return "send_mail" }
func (SendMail) Queue() string { return "mail" }

// Sent is its result.
type Sent struct {
	ID string `json:"id"`
}

// The quickstart: a worker, a job, and its result.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.Connect(ctx, startNode())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	w := c.Worker()
	client.Handle(w, func(ctx context.Context, job *client.Job[SendMail]) (Sent, error) {
		fmt.Println("sending to", job.Args.To)
		return Sent{ID: "mail-1"}, nil
	})
	go w.Run(ctx)

	sent, err := client.Call[Sent](ctx, c, SendMail{To: "ann", Text: "hello"})
	fmt.Println(sent.ID, err)
	// Output:
	// sending to ann
	// mail-1 <nil>
}

// Resize is a job that names the type of its result.
type Resize struct {
	Image string `json:"image"`
	Width int    `json:"width"`
}

func (Resize) Kind() string      { return "resize" }
func (Resize) Queue() string     { return "images" }
func (Resize) Returns() (r Size) { return }

// Size is that type.
type Size struct{ Width, Height int }

// Args that name the type of the result need not be told it again.
func ExampleDo() {
	ctx, c, end := example()
	defer end()
	w := c.Worker()
	client.Handle(w, func(_ context.Context, job *client.Job[Resize]) (Size, error) {
		return Size{job.Args.Width, job.Args.Width * 3 / 4}, nil
	})
	go w.Run(ctx)

	size, err := client.Do(ctx, c, Resize{Image: "cat.png", Width: 640})
	fmt.Println(size.Height, err)
	// Output: 480 <nil>
}

// A job under a key is enqueued once, however often the call is repeated.
func ExampleEnqueue() {
	ctx, c, end := example()
	defer end()
	first, err := client.Enqueue(ctx, c, SendMail{To: "ann"}, client.Key("welcome-ann"), client.Delay(time.Hour))
	if err != nil {
		log.Fatal(err)
	}
	second, err := client.Enqueue(ctx, c, SendMail{To: "ann"}, client.Key("welcome-ann"), client.Delay(time.Hour))
	fmt.Println(first == second, err)
	// Output: true <nil>
}

// Options choose when a job starts and how it is tried.
func ExampleEnqueue_options() {
	ctx, c, end := example()
	defer end()
	id, err := client.Enqueue(ctx, c, SendMail{To: "bob"},
		client.Queue("newsletter"), client.Priority(2), client.Delay(24*time.Hour),
		client.MaxAttempts(3), client.RetryEvery(time.Minute), client.Timeout(30*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	job, err := c.Jobs().Get(ctx, id)
	fmt.Println(job.Queue, job.State, job.Priority, job.MaxAttempts, err)
	// Output: newsletter delayed 2 3 <nil>
}

// Invoice has options that hold for all of its jobs.
type Invoice struct {
	Number string `json:"number"`
}

func (Invoice) Kind() string { return "send_invoice" }

func (i Invoice) DefaultOptions() []client.Option {
	return []client.Option{client.Queue("invoices"), client.Key(i.Number), client.Priority(7), client.MaxAttempts(20)}
}

// A type's default options hold unless a call has others.
func ExampleArgs() {
	ctx, c, end := example()
	defer end()
	id, err := client.Enqueue(ctx, c, Invoice{Number: "2026-17"}, client.Priority(2))
	if err != nil {
		log.Fatal(err)
	}
	job, err := c.Jobs().Get(ctx, id)
	fmt.Println(job.Queue, job.Key, job.Priority, job.MaxAttempts, err)
	// Output: invoices 2026-17 2 20 <nil>
}

// Many jobs are enqueued without waiting for one before the next, with an answer each.
func ExampleEnqueueMany() {
	ctx, c, end := example()
	defer end()
	mails := []SendMail{{To: "ann"}, {To: "bob"}, {To: "eve"}}
	for i, answer := range client.EnqueueMany(ctx, c, mails, client.Queue("many"), client.Delay(time.Hour)) {
		fmt.Println(mails[i].To, answer.ID != "", answer.Err)
	}
	// Output:
	// ann true <nil>
	// bob true <nil>
	// eve true <nil>
}

// A unique key admits one job at a time.
func ExampleUnique() {
	ctx, c, end := example()
	defer end()
	report := SendMail{To: "boss", Text: "the report"}
	first, err := client.Enqueue(ctx, c, report, client.Unique("report", time.Hour), client.Delay(time.Hour))
	if err != nil {
		log.Fatal(err)
	}
	_, err = client.Enqueue(ctx, c, report, client.Unique("report", time.Hour))
	var refused *client.Error
	if errors.Is(err, client.ErrConflict) && errors.As(err, &refused) {
		fmt.Println("there is one already:", refused.JobID == first)
	}
	// Output: there is one already: true
}

// With UseExisting, Enqueue returns the id of the job that holds the unique key.
func ExampleOnConflict() {
	ctx, c, end := example()
	defer end()
	options := []client.Option{client.UniqueUntil("digest", "end"), client.OnConflict(client.UseExisting), client.Delay(time.Hour)}
	first, err := client.Enqueue(ctx, c, SendMail{To: "ann"}, options...)
	if err != nil {
		log.Fatal(err)
	}
	second, err := client.Enqueue(ctx, c, SendMail{To: "ann"}, options...)
	fmt.Println(first == second, err)
	// Output: true <nil>
}

// A rate limit key refuses a job until the time is over.
func ExampleRateLimit() {
	ctx, c, end := example()
	defer end()
	reset := SendMail{To: "ann", Text: "your new password"}
	limit := client.RateLimit("reset-ann", time.Hour)
	if _, err := client.Enqueue(ctx, c, reset, limit, client.Delay(time.Hour)); err != nil {
		log.Fatal(err)
	}
	_, err := client.Enqueue(ctx, c, reset, limit)
	var refused *client.Error
	if errors.Is(err, client.ErrRateLimited) && errors.As(err, &refused) {
		fmt.Println("again in about", refused.RetryAfter.Round(time.Hour))
	}
	// Output: again in about 1h0m0s
}

// A debounce key replaces a job that has not started.
func ExampleDebounce() {
	ctx, c, end := example()
	defer end()
	for _, text := range []string{"draft", "final"} {
		id, err := client.Enqueue(ctx, c, SendMail{To: "ann", Text: text}, client.Debounce("edit-7", time.Hour))
		if err != nil {
			log.Fatal(err)
		}
		var mail SendMail
		err = c.Params(ctx, id, &mail)
		fmt.Println(mail.Text, err)
	}
	// Output:
	// draft <nil>
	// final <nil>
}

// Call waits for the result. The error of a job that has failed says why.
func ExampleCall() {
	ctx, c, end := example()
	defer end()
	w := c.Worker()
	client.Handle(w, func(ctx context.Context, job *client.Job[SendMail]) (Sent, error) {
		if !strings.Contains(job.Args.To, "@") {
			return Sent{}, client.Permanent(client.Coded(errors.New("no address"), "BAD_TO", nil))
		}
		return Sent{ID: job.Args.To}, nil
	}, client.Queue("checked"))
	runWorker(ctx, w)

	sent, err := client.Call[Sent](ctx, c, SendMail{To: "ann@example.org"}, client.Queue("checked"))
	fmt.Println(sent.ID, err)
	_, err = client.Call[Sent](ctx, c, SendMail{To: "ann"}, client.Queue("checked"))
	var failed *client.JobError
	if errors.As(err, &failed) {
		fmt.Println(failed.Code, failed.Message, failed.Attempts)
	}
	// Output:
	// ann@example.org <nil>
	// BAD_TO no address 1
}

// A job may be enqueued by one program and awaited by another.
func ExampleAwait() {
	ctx, c, end := example()
	defer end()
	id, err := client.Enqueue(ctx, c, SendMail{To: "ann"}, client.Queue("awaited"))
	if err != nil {
		log.Fatal(err)
	}
	w := c.Worker()
	client.Handle(w, func(ctx context.Context, job *client.Job[SendMail]) (Sent, error) {
		return Sent{ID: "mail-7"}, nil
	}, client.Queue("awaited"))
	runWorker(ctx, w)

	sent, err := client.Await[Sent](ctx, c, id)
	fmt.Println(sent.ID, err)
	// Output: mail-7 <nil>
}

// A client reports what it cannot reach.
func ExampleConnect() {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_, err := client.Open(ctx, client.Options{Nodes: []string{"127.0.0.1:1"}, Log: discard})
	fmt.Println(errors.Is(err, context.DeadlineExceeded), strings.Contains(err.Error(), "127.0.0.1:1"))
	// Output: true true
}

// Jobs of any params need no type. They are also how a job of an RRQ runner is enqueued.
func ExampleClient_Enqueue() {
	ctx, c, end := example()
	defer end()
	id, err := c.Enqueue(ctx, client.Spec{
		Queue: "images", Function: "resize", Params: map[string]any{"width": 640}, RunAt: time.Now().Add(time.Hour),
	})
	if err != nil {
		log.Fatal(err)
	}
	job, err := c.Jobs().Get(ctx, id)
	fmt.Println(job.Function, string(job.Params), err)
	// Output: resize {"width":640} <nil>
}
