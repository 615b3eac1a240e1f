package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"yardmaster/cluster"
	"yardmaster/job"

	"github.com/spf13/cobra"
)

// waitFor says whose end is awaited.
type waitFor struct {
	id, queue string        // as the request names the job
	accepted  bool          // by this very command
	longest   time.Duration // 0: until the job has ended
}

// waitTurn is how long one request waits at a node.
const waitTurn = 20 * time.Second

// await shows a job once it has ended and ends with code 1 if it has failed,
// or if it takes longer than it may.
func (a *app) await(ctx context.Context, y *yard, w waitFor) error {
	limited := ctx
	if w.longest > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, w.longest)
		defer cancel()
	}
	telling, stop := context.WithCancel(limited)
	var teller sync.WaitGroup
	teller.Go(func() { a.tellWhy(telling, y, w) })
	answer, err := a.awaitAnswer(limited, y, w)
	stop()
	teller.Wait()
	switch {
	case err != nil && ctx.Err() != nil:
		return w.interrupted()
	case err != nil && limited.Err() != nil:
		return w.tooLong()
	case err != nil:
		return err
	}
	var j jobAnswer
	if err := json.Unmarshal(answer, &j); err != nil {
		return unreadable(err)
	}
	if err := print(a, answer, jobTable); err != nil {
		return err
	}
	if j.State != job.Completed.String() {
		return &exitError{exitFailed}
	}
	return nil
}

// awaitAccepted is await for a job that this very command has made. Whoever is
// interrupted while waiting has to know what to ask for.
func (a *app) awaitAccepted(ctx context.Context, y *yard, made enqueueAnswer, longest time.Duration) error {
	fmt.Fprintln(a.Err, "yardmaster: accepted as", made.ID)
	return a.await(ctx, y, waitFor{id: made.ID, queue: made.Queue, accepted: true, longest: longest})
}

// awaitAnswer asks again for as long as the answer is "not yet".
func (a *app) awaitAnswer(ctx context.Context, y *yard, w waitFor) ([]byte, error) {
	for {
		turn := waitTurn
		if end, limited := ctx.Deadline(); limited {
			turn = min(turn, time.Until(end))
		}
		request := map[string]any{"id": w.id, "queue": w.queue, "timeout_ms": max(turn.Milliseconds(), 1)}
		answer, err := y.askWithin(ctx, turn+y.timeout, cluster.SubjectAPI+".job.wait", request)
		var refused *cluster.APIError
		if !errors.As(err, &refused) || refused.Code != "408" && refused.Code != "503" {
			return answer, err
		}
		if err := pause(ctx, refused.RetryAfter); err != nil {
			return nil, err
		}
	}
}

// whyEvery is after how long a job that does not run is asked why, and how
// often then.
const whyEvery = 2 * time.Second

// tellWhy says on standard error why a job does not run, and says it again when
// that changes.
func (a *app) tellWhy(ctx context.Context, y *yard, w waitFor) {
	told := ""
	for pause(ctx, whyEvery) == nil {
		answer, err := y.ask(ctx, cluster.SubjectAPI+".job.show", named(w.id, w.queue))
		var (
			j       jobAnswer
			refused *cluster.APIError
		)
		switch {
		case errors.As(err, &refused) && refused.Code == "503":
			j.Because = refused.Text
		case err != nil || json.Unmarshal(answer, &j) != nil:
			continue // the wait itself tells what is wrong
		}
		if j.Because != told && j.Because != "" {
			fmt.Fprintf(a.Err, "yardmaster: job %s does not run yet: %s\n", w.id, j.Because)
		}
		told = j.Because
	}
}

// interrupted and tooLong say that giving up the wait changes nothing for the
// job.
func (w waitFor) interrupted() error {
	what := fmt.Sprintf("interrupted while waiting for job %s", w.id)
	if w.accepted {
		what = fmt.Sprintf("interrupted; job %s is accepted and has not ended yet", w.id)
	}
	return &problem{what: what, do: fmt.Sprintf("it goes on: '%s' waits again", w.again())}
}

func (w waitFor) tooLong() error {
	return &problem{
		what: fmt.Sprintf("job %s is not known to have ended within %s", w.id, w.longest),
		do:   fmt.Sprintf("it goes on: '%s' waits until it ends", w.again()),
	}
}

// again is the command that waits for the same job.
func (w waitFor) again() string {
	if w.accepted || w.queue == "" { // an id, which needs no queue
		return "yardmaster job wait " + w.id
	}
	return "yardmaster job wait " + w.id + " --queue " + w.queue
}

// validFor checks --for, if it was given.
func validFor(c *cobra.Command, d time.Duration) error {
	if c.Flags().Changed("for") && d <= 0 {
		return usage(c, fmt.Sprintf("--for is %s: must be more than 0", d))
	}
	return nil
}

// pause waits, but never so short that asking again would be a hammer.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(max(d, 100*time.Millisecond))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
