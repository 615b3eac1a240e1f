package jobs

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/spf13/cobra"
)

// waitRequest names the job to wait for.
type waitRequest struct {
	id, queue string        // as in the request
	accepted  bool          // the same command enqueued the job
	timeout   time.Duration // 0 means no limit
}

// waitPollTimeout is how long a node waits in one request.
const waitPollTimeout = 20 * time.Second

// await blocks until a job has ended and shows it. It returns an error if the job
// has not completed, or has not ended within w.timeout.
func await(ctx context.Context, env *command.Env, w waitRequest) error {
	limited := ctx
	if w.timeout > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, w.timeout)
		defer cancel()
	}
	reportCtx, stop := context.WithCancel(limited)
	var reporter sync.WaitGroup
	reporter.Go(func() { reportWaiting(reportCtx, env, w) })
	answer, err := awaitReply(limited, env, w)
	stop()
	reporter.Wait()
	switch {
	case err != nil && ctx.Err() != nil:
		return w.interrupted()
	case err != nil && limited.Err() != nil:
		return w.tooLong()
	case err != nil:
		return err
	}
	j, err := connect.Decode[api.Job](answer, nil)
	if err != nil {
		return err
	}
	if err := command.Print(env, answer, jobTable); err != nil {
		return err
	}
	if j.State != job.Completed.String() {
		return usererror.Failed
	}
	return nil
}

// awaitAccepted is like await, for a job that this command has enqueued. It shows
// the id first, so that it is known if the wait is interrupted.
func awaitAccepted(ctx context.Context, env *command.Env, made api.EnqueueReply, timeout time.Duration) error {
	fmt.Fprintln(env.Err, "yardmaster: accepted as", made.ID)
	return await(ctx, env, waitRequest{id: made.ID.String(), queue: made.Queue, accepted: true, timeout: timeout})
}

// awaitReply repeats the request until the job has ended or ctx is done, and
// returns the job.
func awaitReply(ctx context.Context, env *command.Env, w waitRequest) ([]byte, error) {
	for {
		wait := waitPollTimeout
		if end, limited := ctx.Deadline(); limited {
			wait = min(wait, time.Until(end))
		}
		request := map[string]any{"id": w.id, "queue": w.queue, "timeout_ms": max(wait.Milliseconds(), 1)}
		answer, err := env.SendWithin(ctx, wait+env.Timeout, api.Subject("job-wait"), request)
		refused := connect.Refused(err, api.CodeTimeout, api.CodeUnavailable)
		if refused == nil {
			return answer, err
		}
		if err := pause(ctx, refused.RetryAfter); err != nil {
			return nil, err
		}
	}
}

// reportInterval is the interval between checks why a job does not run.
const reportInterval = 2 * time.Second

// reportWaiting writes to standard error why a job does not run, whenever the
// reason changes, until ctx is done.
func reportWaiting(ctx context.Context, env *command.Env, w waitRequest) {
	last := ""
	for pause(ctx, reportInterval) == nil {
		j, err := connect.Decode[api.Job](env.Send(ctx, api.Subject("job-show"), command.JobRequest(w.id, w.queue)))
		if refused := connect.Refused(err, api.CodeUnavailable); refused != nil {
			j.Because = refused.Text
		} else if err != nil {
			continue // the wait itself reports the error
		}
		if j.Because != last && j.Because != "" {
			env.Note("job %s does not run yet: %s", w.id, j.Because)
		}
		last = j.Because
	}
}

// interrupted returns the error of a wait that was interrupted.
func (w waitRequest) interrupted() error {
	msg := fmt.Sprintf("interrupted while waiting for job %s", w.id)
	if w.accepted {
		msg = fmt.Sprintf("interrupted; job %s is accepted and has not ended yet", w.id)
	}
	return usererror.New(msg, fmt.Sprintf("the job continues; '%s' waits for it again", w.waitCommand()))
}

// tooLong returns the error of a wait that exceeded its timeout.
func (w waitRequest) tooLong() error {
	return usererror.New(fmt.Sprintf("job %s is not known to have ended within %s", w.id, w.timeout), fmt.Sprintf("the job continues; '%s' waits until it ends", w.waitCommand()))
}

// waitCommand returns the command that waits for the same job.
func (w waitRequest) waitCommand() string {
	if w.accepted || w.queue == "" { // then id is a job id, which needs no queue
		return "yardmaster job wait " + w.id
	}
	return "yardmaster job wait " + w.id + " --queue " + w.queue
}

// validateFor returns a usage error if --for is given and not positive.
func validateFor(c *cobra.Command, d time.Duration) error {
	if c.Flags().Changed("for") && d <= 0 {
		return usererror.Usage(c, "--for is %s: must be more than 0", d)
	}
	return nil
}

// pause waits for d, but at least 100 ms, or until ctx is done, and returns the
// error of ctx.
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
