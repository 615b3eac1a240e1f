package jobs

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/durationflag"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/spf13/cobra"
)

// waitFlags are the flags of a verb that makes a job and can wait for its end.
type waitFlags struct {
	given bool          // --wait
	limit time.Duration // --for; 0 means no limit
}

// add adds the flags to c. jobName names the job in their help.
func (f *waitFlags) add(c *cobra.Command, jobName string) {
	c.Flags().BoolVar(&f.given, "wait", false, "wait until "+jobName+" has ended; exit with 1 if it failed")
	durationflag.Var(c.Flags(), &f.limit, "for", 0, "longest `time` to wait with --wait; then exit with 5 (default no limit)")
}

// check returns a usage error if --for is given without --wait or is not positive.
func (f *waitFlags) check(c *cobra.Command) error {
	if c.Flags().Changed("for") && !f.given {
		return usererror.Usage(c, "--for requires --wait")
	}
	return checkFor(c, f.limit)
}

// checkFor returns a usage error if --for is given and limit, its value, is not
// positive.
func checkFor(c *cobra.Command, limit time.Duration) error {
	if c.Flags().Changed("for") && limit <= 0 {
		return usererror.Usage(c, "--for is %s: must be more than 0", duration.Format(limit))
	}
	return nil
}

// waitRequest names the job to wait for.
type waitRequest struct {
	id, queue string        // as in the request
	accepted  bool          // the same command enqueued the job
	limit     time.Duration // longest time to wait; 0 means no limit
}

// waitPollTimeout is how long a node waits in one request.
const waitPollTimeout = 20 * time.Second

// await blocks until a job has ended and shows it; meanwhile it reports on standard
// error why the job does not run. It returns an error if the job has failed, or has not
// ended within w.limit.
func await(ctx context.Context, env *command.Env, w waitRequest) error {
	limited := ctx
	if w.limit > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, w.limit)
		defer cancel()
	}

	reportCtx, stopReport := context.WithCancel(limited)
	var reporter sync.WaitGroup
	reporter.Go(func() { reportWaiting(reportCtx, env, w) })
	reply, err := awaitReply(limited, env, w)
	stopReport()
	reporter.Wait()

	switch {
	case err != nil && ctx.Err() != nil:
		return w.interrupted()
	case err != nil && limited.Err() != nil:
		return w.tooLong()
	case err != nil:
		return err
	}
	ended, err := connect.Decode[api.Job](reply, nil)
	if err != nil {
		return err
	}
	if err := command.Print(env, reply, jobTable); err != nil {
		return err
	}
	if ended.State != job.Completed.String() {
		return usererror.Failed
	}
	return nil
}

// awaitAccepted is like await, for a job that this command has enqueued. It shows the
// job's id first, so that the user knows it if the wait is interrupted. A limit of 0
// means no limit.
func awaitAccepted(ctx context.Context, env *command.Env, accepted api.EnqueueReply, limit time.Duration) error {
	if accepted.Duplicate {
		env.Note("waiting for job %s", accepted.ID)
	} else {
		env.Note("accepted as %s", accepted.ID)
	}
	return await(ctx, env, waitRequest{id: accepted.ID.String(), queue: accepted.Queue, accepted: true, limit: limit})
}

// awaitReply returns the reply that describes a job once the job has ended. It repeats
// the request while a node replies that the job has not ended or that the yard is
// unavailable, until ctx is done.
func awaitReply(ctx context.Context, env *command.Env, w waitRequest) ([]byte, error) {
	for {
		wait := waitPollTimeout
		if end, limited := ctx.Deadline(); limited {
			wait = min(wait, time.Until(end))
		}
		request := map[string]any{"id": w.id, "queue": w.queue, "timeout_ms": max(wait.Milliseconds(), 1)}
		reply, err := env.SendWithin(ctx, wait+env.Timeout, api.Subject("job-wait"), request)
		refused := connect.Refused(err, api.CodeTimeout, api.CodeUnavailable)
		if refused == nil {
			return reply, err
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
	lastReason := ""
	for pause(ctx, reportInterval) == nil {
		shown, err := connect.Decode[api.Job](env.Send(ctx, api.Subject("job-show"), command.JobRequest(w.id, w.queue)))
		reason := shown.Because
		if refused := connect.Refused(err, api.CodeUnavailable); refused != nil {
			reason = refused.Text
		} else if err != nil {
			continue // the wait itself reports the error
		}
		if reason != lastReason && reason != "" {
			env.Note("job %s does not run yet: %s", w.id, reason)
		}
		lastReason = reason
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
	return usererror.Timeout(fmt.Sprintf("job %s is not known to have ended within %s", w.id, duration.Format(w.limit)), fmt.Sprintf("the job continues; '%s' waits until it ends", w.waitCommand()))
}

// waitCommand returns the command that waits for the same job.
func (w waitRequest) waitCommand() string {
	if w.accepted || w.queue == "" { // then id is a job id, which needs no queue
		return "yardmaster job wait " + w.id
	}
	return "yardmaster job wait " + w.id + " --queue " + w.queue
}

// pause waits for d, but at least 100 ms, or until ctx is done, and returns the
// error of ctx.
func pause(ctx context.Context, d time.Duration) error {
	return backoff.Sleep(ctx, max(d, 100*time.Millisecond))
}
