package jobs

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/spf13/cobra"
)

// Limits of a bulk enqueue. A chunk is the jobs of one request.
const (
	chunkJobs     = 1000
	chunkBytes    = 512 << 10
	maxOpenChunks = 4                // sent and not shown yet
	maxBulkLine   = maxRequest - 512 // bytes; the rest is for the request around the line
)

// bulkTries limits the retries of a chunk that is refused temporarily: they
// stop after bulkTries times the request timeout.
const bulkTries = 12

// bulkItem is one line of the input and its result.
type bulkItem struct {
	Line int `json:"line"` // from 1
	api.BulkResult

	job    []byte // JSON to send; nil if the line is not a job
	minted job.ID // generated for a line without an id; zero otherwise
}

// retryable reports whether a job with the error e should be sent again.
func retryable(e *api.BulkError) bool {
	return e != nil && (e.Code == api.CodeUnavailable || e.Code == api.CodeUnknown)
}

// chunk is the lines of one request.
type chunk struct {
	items []bulkItem
	bytes int
	done  chan struct{} // closed when every item has its result
	lost  bool          // no node replied to the last try
}

// bulk is one run of 'enqueue --bulk'.
type bulk struct {
	env   *command.Env
	queue string // default for lines without a queue

	accepted, duplicates, failed int
	first                        *bulkItem // first item that was refused
}

// checkBulkFlags returns a usage error if a function or a flag of a single job
// is given.
func checkBulkFlags(c *cobra.Command, function []string) error {
	given := c.Flags().NFlag()
	for _, name := range []string{"bulk", "json", "server"} {
		if c.Flags().Changed(name) {
			given--
		}
	}
	if len(function) > 0 || given > 0 {
		return usererror.Usage(c, "--bulk excludes a function and the flags of a single job: each line describes its job completely")
	}
	return nil
}

// enqueueBulk enqueues one job for each line of a file.
func enqueueBulk(env *command.Env, c *cobra.Command, queue, path string) error {
	in := env.In
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return fileError(err)
		}
		defer f.Close()
		in = f
	}
	if _, err := env.Dial(c.Context()); err != nil {
		return err
	}
	b := &bulk{env: env, queue: queue}
	return b.run(c.Context(), in)
}

// run reads, sends and shows chunks concurrently. At most maxOpenChunks chunks
// are sent and not shown.
func (b *bulk) run(ctx context.Context, in io.Reader) error {
	sending, stop := context.WithCancel(ctx)
	defer stop()
	chunks := make(chan *chunk)
	readErr := make(chan error, 1)
	// This goroutine is abandoned if the run stops early: a read from a terminal
	// cannot be interrupted, and the program exits anyway.
	go func() {
		defer close(chunks)
		readErr <- b.read(in, func(c *chunk) bool {
			select {
			case chunks <- c:
				return true
			case <-sending.Done():
				return false
			}
		})
	}()
	sent := make(chan *chunk, maxOpenChunks-1)
	go b.sendAll(ctx, sending, chunks, sent)
	var failed error
	last := 0
	for c := range sent {
		<-c.done
		failed = cmp.Or(failed, b.show(c))
		if c.lost || failed != nil {
			stop()
		}
		last = c.items[len(c.items)-1].Line
	}
	b.summarize()
	switch {
	case failed != nil:
		return failed
	case sending.Err() != nil:
		return usererror.New(fmt.Sprintf("no line after line %d was sent", last), "send the rest once the yard replies; lines with an id may be sent again")
	}
	if err := <-readErr; err != nil {
		return usererror.New(fmt.Sprintf("the lines after line %d cannot be read: %v", last, err), "send the rest again")
	}
	if b.failed > 0 {
		return usererror.Failed
	}
	return nil
}

// sendAll sends chunks concurrently and passes them to sent in their order.
// Cancelling sending stops it from starting another chunk; ctx bounds the
// requests.
func (b *bulk) sendAll(ctx, sending context.Context, chunks <-chan *chunk, sent chan<- *chunk) {
	defer close(sent)
	for {
		select {
		case c, more := <-chunks:
			if !more {
				return
			}
			sent <- c
			go func() {
				defer close(c.done)
				b.send(ctx, c)
			}()
		case <-sending.Done():
			return
		}
	}
}

// send sends the items of c and sets their results. It repeats items that are
// refused temporarily, which is safe because their ids identify the jobs.
func (b *bulk) send(ctx context.Context, c *chunk) {
	var pending []*bulkItem
	for i := range c.items {
		if c.items[i].job != nil {
			pending = append(pending, &c.items[i])
		}
	}
	deadline := time.Now().Add(bulkTries * b.env.Timeout)
	for len(pending) > 0 {
		wait := b.sendOnce(ctx, pending)
		c.lost = wait < 0
		pending = slices.DeleteFunc(pending, func(i *bulkItem) bool { return !retryable(i.Error) })
		if len(pending) == 0 || time.Now().After(deadline) || pause(ctx, wait) != nil {
			return
		}
	}
}

// sendOnce sends items in one request and sets their results. It returns how
// long to wait before a retry, or a negative duration if no node replied.
func (b *bulk) sendOnce(ctx context.Context, items []*bulkItem) time.Duration {
	jobs := make([][]byte, len(items))
	for i, item := range items {
		jobs[i] = item.job
	}
	queue, _ := json.Marshal(b.queue) // cannot fail for a string
	body := fmt.Appendf(nil, `{"queue":%s,"jobs":[%s]}`, queue, bytes.Join(jobs, []byte(",")))
	answer, err := b.env.Send(ctx, api.Subject("job-bulk"), body)
	if err != nil {
		return failAll(items, err)
	}
	var reply api.BulkReply
	if err = json.Unmarshal(answer, &reply); err == nil && len(reply.Jobs) != len(items) {
		err = fmt.Errorf("%d results for %d jobs", len(reply.Jobs), len(items))
	}
	if err != nil {
		return failAll(items, &api.Error{Code: api.CodeInternal, Text: connect.BadReply(err).Error()})
	}
	wait := time.Duration(0)
	for i, item := range items {
		item.applyReply(&reply.Jobs[i])
		if retryable(item.Error) {
			wait = max(wait, time.Duration(item.Error.RetryAfterMS)*time.Millisecond)
		}
	}
	return wait
}

// applyReply sets the result of i. A duplicate of an id that this program
// generated means only that the item was sent twice; it counts as accepted.
func (i *bulkItem) applyReply(answer *api.BulkResult) {
	i.BulkResult = *answer
	i.Duplicate = answer.Duplicate && (i.minted == job.ID{} || answer.ID == nil || *answer.ID != i.minted)
}

// failAll sets the result of all items of a request that failed as a whole, and
// returns what sendOnce returns.
func failAll(items []*bulkItem, err error) time.Duration {
	wait := time.Duration(-1)
	refusal := api.BulkError{Code: api.CodeUnknown, Text: "no node replied, so the job may or may not exist: " + err.Error()}
	switch refused := connect.Refused(err); {
	case refused != nil:
		wait = refused.RetryAfter
		refusal = api.BulkError{Code: refused.Code, Text: refused.Text, RetryAfterMS: refused.RetryAfter.Milliseconds()}
	case errors.Is(err, context.Canceled):
		refusal.Text = "interrupted: the job may or may not exist"
	}
	for _, item := range items {
		item.Error = &refusal
	}
	return wait
}

// show writes one line per item of c, all of them in one write.
func (b *bulk) show(c *chunk) error {
	var out bytes.Buffer
	for i := range c.items {
		item := &c.items[i]
		word := "accepted"
		switch {
		case item.Error != nil:
			word = "refused: " + item.Error.Text
			b.failed++
			if b.first == nil {
				b.first = item
			}
		case item.Debounced:
			word = "debounced"
			b.duplicates++
		case item.Duplicate:
			word = "duplicate"
			b.duplicates++
		default:
			b.accepted++
		}
		if !b.env.JSON {
			fmt.Fprintf(&out, "%d\t%s\t%s\n", item.Line, command.OrDash(idText(item.ID)), word)
			continue
		}
		text, err := json.Marshal(item)
		if err != nil {
			return err
		}
		out.Write(text)
		out.WriteByte('\n')
	}
	_, err := b.env.Out.Write(out.Bytes())
	return err
}

// summarize writes the totals and the first refusal to standard error.
func (b *bulk) summarize() {
	fmt.Fprintf(b.env.Err, "yardmaster: %d accepted, %d already known, %d refused\n", b.accepted, b.duplicates, b.failed)
	if b.first != nil {
		e := usererror.Refusal(&api.Error{
			Code: b.first.Error.Code, Text: b.first.Error.Text, RetryAfter: time.Duration(b.first.Error.RetryAfterMS) * time.Millisecond,
		})
		fmt.Fprintf(b.env.Err, "yardmaster: line %d: %v\n", b.first.Line, e)
	}
}
