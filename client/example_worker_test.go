package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/client"
)

var discard = slog.New(slog.DiscardHandler)

// A worker has a handler for each type of job.
func ExampleHandle() {
	ctx, c, end := example()
	defer end()
	w := c.Worker()
	w.Concurrency = 4
	client.Handle(w, func(ctx context.Context, job *client.Job[SendMail]) (Sent, error) {
		return Sent{ID: fmt.Sprint(job.Args.To, ", attempt ", job.Attempt)}, nil
	}, client.Queue("handled"))
	runWorker(ctx, w)

	sent, err := client.Call[Sent](ctx, c, SendMail{To: "ann"}, client.Queue("handled"))
	fmt.Println(sent.ID, err)
	// Output: ann, attempt 1 <nil>
}

// An untyped handler decodes the params itself.
func ExampleWorker_Handle() {
	ctx, c, end := example()
	defer end()
	w := c.Worker()
	w.Handle("sums", "add", func(ctx context.Context, job *client.JobInfo) (any, error) {
		var numbers []int
		if err := job.Decode(&numbers); err != nil {
			return nil, client.Permanent(err)
		}
		sum := 0
		for _, n := range numbers {
			sum += n
		}
		return sum, nil
	})
	runWorker(ctx, w)

	id, err := c.Enqueue(ctx, client.Spec{Queue: "sums", Function: "add", Params: []int{1, 2, 3}})
	if err != nil {
		log.Fatal(err)
	}
	sum, err := client.Await[int](ctx, c, id)
	fmt.Println(sum, err)
	// Output: 6 <nil>
}

// Middleware runs around every handler of a worker.
func ExampleWorker_Use() {
	ctx, c, end := example()
	defer end()
	w := c.Worker()
	w.Use(func(next client.HandlerFunc) client.HandlerFunc {
		return func(ctx context.Context, job *client.JobInfo) (any, error) {
			fmt.Println("begin", job.Function)
			result, err := next(ctx, job)
			fmt.Println("end", err)
			return result, err
		}
	})
	client.Handle(w, func(ctx context.Context, job *client.Job[SendMail]) (Sent, error) {
		return Sent{ID: "x"}, nil
	}, client.Queue("traced"))
	runWorker(ctx, w)

	_, err := client.Call[Sent](ctx, c, SendMail{}, client.Queue("traced"))
	fmt.Println(err)
	// Output:
	// begin send_mail
	// end <nil>
	// <nil>
}

// Stop lets the running jobs finish.
func ExampleWorker_Stop() {
	ctx, c, end := example()
	defer end()
	w := c.Worker()
	started := make(chan struct{})
	client.Handle(w, func(ctx context.Context, job *client.Job[SendMail]) (Sent, error) {
		close(started)
		time.Sleep(10 * time.Millisecond)
		return Sent{ID: "finished"}, nil
	}, client.Queue("stopped"))
	runWorker(ctx, w)

	id, err := client.Enqueue(ctx, c, SendMail{}, client.Queue("stopped"))
	if err != nil {
		log.Fatal(err)
	}
	<-started
	fmt.Println(w.Stop(ctx))
	sent, err := client.Await[Sent](ctx, c, id)
	fmt.Println(sent.ID, err)
	// Output:
	// <nil>
	// finished <nil>
}

// RetryAfter fails the attempt and chooses when the next one starts.
func ExampleRetryAfter() {
	ctx, c, end := example()
	defer end()
	w := c.Worker()
	client.Handle(w, func(ctx context.Context, job *client.Job[SendMail]) (Sent, error) {
		if job.Attempt == 1 {
			return Sent{}, fmt.Errorf("greylisted: %w", client.RetryAfter(time.Millisecond))
		}
		return Sent{ID: fmt.Sprint("attempt ", job.Attempt)}, nil
	}, client.Queue("greylisted"))
	runWorker(ctx, w)

	sent, err := client.Call[Sent](ctx, c, SendMail{}, client.Queue("greylisted"))
	fmt.Println(sent.ID, err)
	// Output: attempt 2 <nil>
}

// Snooze gives the attempt back.
func ExampleSnooze() {
	ctx, c, end := example()
	defer end()
	w := c.Worker()
	var open atomic.Bool
	client.Handle(w, func(ctx context.Context, job *client.Job[SendMail]) (Sent, error) {
		if !open.Swap(true) {
			return Sent{}, fmt.Errorf("the office is closed: %w", client.Snooze(time.Millisecond))
		}
		return Sent{ID: fmt.Sprint("attempt ", job.Attempt)}, nil
	}, client.Queue("office"))
	runWorker(ctx, w)

	sent, err := client.Call[Sent](ctx, c, SendMail{}, client.Queue("office"))
	fmt.Println(sent.ID, err)
	// Output: attempt 1 <nil>
}

// Permanent makes the job a dead letter without another attempt.
func ExamplePermanent() {
	ctx, c, end := example()
	defer end()
	w := c.Worker()
	client.Handle(w, func(ctx context.Context, job *client.Job[SendMail]) (Sent, error) {
		return Sent{}, client.Permanent(errors.New("no such user"))
	}, client.Queue("bounced"))
	runWorker(ctx, w)

	_, err := client.Call[Sent](ctx, c, SendMail{}, client.Queue("bounced"))
	var failed *client.JobError
	fmt.Println(errors.As(err, &failed), failed.Message, failed.Attempts)
	// Output: true no such user 1
}

// The context of a handler ends when the job must stop, and StopReason says why.
func ExampleStopReason() {
	ctx, c, end := example()
	defer end()
	w, stopped := c.Worker(), make(chan error, 1)
	client.Handle(w, func(ctx context.Context, job *client.Job[SendMail]) (Sent, error) {
		<-ctx.Done()
		stopped <- client.StopReason(ctx)
		return Sent{}, ctx.Err()
	}, client.Queue("slow"))
	runWorker(ctx, w)

	if _, err := client.Enqueue(ctx, c, SendMail{}, client.Queue("slow"), client.Timeout(200*time.Millisecond)); err != nil {
		log.Fatal(err)
	}
	fmt.Println(<-stopped)
	// Output: the deadline of the attempt has passed
}

// Progress is shown by the job until it has ended.
func ExampleJobInfo_Progress() {
	ctx, c, end := example()
	defer end()
	w, reported, seen := c.Worker(), make(chan struct{}), make(chan struct{})
	client.Handle(w, func(ctx context.Context, job *client.Job[SendMail]) (Sent, error) {
		err := job.Progress(ctx, 40, map[string]string{"step": "connect"})
		close(reported)
		<-seen
		return Sent{}, err
	}, client.Queue("progress"))
	runWorker(ctx, w)

	id, err := client.Enqueue(ctx, c, SendMail{}, client.Queue("progress"))
	if err != nil {
		log.Fatal(err)
	}
	<-reported
	job, err := c.Jobs().Get(ctx, id)
	fmt.Println(*job.Progress.Percent, string(job.Progress.Data), err)
	close(seen)
	// Output: 40 {"step":"connect"} <nil>
}

// The logger of a job adds to the job's log.
func ExampleJobInfo_Logger() {
	ctx, c, end := example()
	defer end()
	w := c.Worker()
	client.Handle(w, func(ctx context.Context, job *client.Job[SendMail]) (Sent, error) {
		job.Logger(ctx).Warn("mailbox nearly full", "used", 0.95)
		return Sent{ID: "logged"}, nil
	}, client.Queue("logged"))
	runWorker(ctx, w)

	sent, err := client.Call[Sent](ctx, c, SendMail{}, client.Queue("logged"))
	fmt.Println(sent.ID, err)
	// Output: logged <nil>
}

// Jobs are listed page by page while the loop runs.
func ExampleJobs_List() {
	ctx, c, end := example()
	defer end()
	for _, to := range []string{"ann", "bob"} {
		if _, err := client.Enqueue(ctx, c, SendMail{To: to}, client.Queue("listed"), client.Delay(time.Hour)); err != nil {
			log.Fatal(err)
		}
	}
	for job, err := range c.Jobs().List(ctx, api.JobListRequest{Queues: []string{"listed"}, Order: api.OrderOldest}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(job.Function, job.State)
	}
	// Output:
	// send_mail delayed
	// send_mail delayed
}

// A waiting or delayed job is changed, or cancelled.
func ExampleJobs_Cancel() {
	ctx, c, end := example()
	defer end()
	id, err := client.Enqueue(ctx, c, SendMail{}, client.Queue("cancelled"), client.Delay(time.Hour))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(c.Jobs().Set(ctx, id, client.JobSettings{Priority: new(9)}))
	fmt.Println(c.Jobs().Cancel(ctx, id, "not needed any more"))
	// Output:
	// delayed <nil>
	// cancelled <nil>
}

// At most three jobs of a queue run at once, in the whole cluster.
func ExampleQueues_Set() {
	ctx, c, end := example()
	defer end()
	if err := c.Queues().Create(ctx, "narrow"); err != nil {
		log.Fatal(err)
	}
	queue, err := c.Queues().Set(ctx, api.QueueChange{Name: "narrow", Limit: api.SetTo[int64](3)})
	fmt.Println(*queue.Limit, queue.State, err)
	// Output: 3 running <nil>
}

// A cron entry enqueues a job at every tick.
func ExampleAddCron() {
	ctx, c, end := example()
	defer end()
	entry, err := client.AddCron(ctx, c, api.CronChange{Name: "greeting", Schedule: "0 8 * * MON", Zone: "Europe/Berlin"}, SendMail{To: "all"})
	fmt.Println(entry.Queue, entry.State, err)
	// Output: mail running <nil>
}

// A dead letter is read, and its job runs again when its cause is gone.
func ExampleDeadLetters_Requeue() {
	ctx, c, end := example()
	defer end()
	w := c.Worker()
	var repaired atomic.Bool
	client.Handle(w, func(ctx context.Context, job *client.Job[SendMail]) (Sent, error) {
		if !repaired.Load() {
			return Sent{}, client.Permanent(errors.New("the server is gone"))
		}
		return Sent{ID: "delivered"}, nil
	}, client.Queue("letters-to-fix"))
	runWorker(ctx, w)
	id, err := client.Enqueue(ctx, c, SendMail{To: "ann"}, client.Queue("letters-to-fix"))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := client.Await[Sent](ctx, c, id); err == nil {
		log.Fatal("the job has completed")
	}
	repaired.Store(true)
	for requeued := 0; requeued == 0; time.Sleep(10 * time.Millisecond) { // the letter is stored a moment after the end
		results, err := c.DeadLetters().Requeue(ctx, api.DeadLetterRequest{Queue: "letters-to-fix"})
		if err != nil {
			log.Fatal(err)
		}
		requeued = len(results.Items)
	}
	sent, err := client.Await[Sent](ctx, c, id)
	fmt.Println(sent.ID, err)
	// Output: delivered <nil>
}
