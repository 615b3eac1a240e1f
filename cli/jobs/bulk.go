package jobs

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
	"unicode/utf8"

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

// bulkTries is the time limit for the retries of a chunk, in request timeouts.
const bulkTries = 12

// bulkItem is one line of the input and its result.
type bulkItem struct {
	Line int `json:"line"` // from 1
	api.BulkResult

	job       []byte // JSON to send; nil if the line is not a job
	generated job.ID // for a line without an id; zero otherwise
}

// retryable reports whether the item should be sent again. If it is not certain that
// the job was made, its id prevents a second one.
func (i *bulkItem) retryable() bool {
	return i.Error != nil && (i.Error.Code == api.CodeUnavailable || i.Error.Code == api.CodeUnknown)
}

// chunk is the lines of one request.
type chunk struct {
	items []bulkItem
	bytes int
	done  chan struct{} // closed when every item has its result
	lost  bool          // no node replied to the last request
}

// bulk is one run of 'enqueue --bulk'.
type bulk struct {
	env   *command.Env
	queue string // default for lines without a queue

	accepted, duplicates, failed int
	firstFailed                  *bulkItem // nil if failed is 0
}

// checkBulkFlags returns a usage error if a function or a flag of a single job
// is given.
func checkBulkFlags(c *cobra.Command, function []string) error {
	otherFlags := c.Flags().NFlag()
	for _, name := range []string{"bulk", "json", "server"} {
		if c.Flags().Changed(name) {
			otherFlags--
		}
	}
	if len(function) > 0 || otherFlags > 0 {
		return usererror.Usage(c, "--bulk excludes a function and the flags of a single job: each line describes its job completely")
	}
	return nil
}

// enqueueBulk enqueues one job for each line of a file, or of standard input if path is
// "-". queue is that of the jobs whose line has none.
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
	if _, err := env.Dial(c.Context()); err != nil { // before requests are sent concurrently
		return err
	}
	b := &bulk{env: env, queue: queue}
	return b.run(c.Context(), in)
}

// run reads chunks from in, sends them and shows their results, all concurrently. It
// stops sending when ctx ends, a result cannot be shown, or no node replies. At most
// maxOpenChunks chunks are sent and not shown.
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

	var showErr error
	lastLine := 0
	for c := range sent {
		<-c.done
		showErr = cmp.Or(showErr, b.show(c))
		if c.lost || showErr != nil {
			stop()
		}
		lastLine = c.items[len(c.items)-1].Line
	}
	b.summarize()

	switch {
	case showErr != nil:
		return showErr
	case sending.Err() != nil:
		return usererror.NotReady(fmt.Sprintf("no line after line %d was sent", lastLine), "send the rest once the yard replies; lines with an id may be sent again")
	}
	if err := <-readErr; err != nil {
		return usererror.New(fmt.Sprintf("the lines after line %d cannot be read: %v", lastLine, err), "send the rest again")
	}
	if b.failed > 0 {
		return usererror.Failed
	}
	return nil
}

// read cuts the lines of in into chunks and passes them to emit until that
// returns false. A chunk is emitted when it is full or when no further line is
// buffered, so that a program that writes one line at a time gets a result for
// each line at once.
func (b *bulk) read(in io.Reader, emit func(*chunk) bool) error {
	r := bufio.NewReaderSize(in, maxRequest)
	c := &chunk{done: make(chan struct{})}
	emitChunk := func() (goOn bool) {
		complete := c
		c = &chunk{done: make(chan struct{})}
		return emit(complete)
	}
	for line := 1; ; line++ {
		text, err := r.ReadSlice('\n')
		tooLong := false
		for errors.Is(err, bufio.ErrBufferFull) {
			tooLong = true
			_, err = r.ReadSlice('\n')
		}
		if line == 1 {
			text = bytes.TrimPrefix(text, byteOrderMark)
		}
		if text = bytes.TrimSpace(text); len(text) > 0 {
			item := b.parseLine(line, text, tooLong)
			if len(c.items) > 0 && c.bytes+len(item.job) > chunkBytes && !emitChunk() {
				return nil
			}
			c.items = append(c.items, item)
			c.bytes += len(item.job)
		}

		buffered, _ := r.Peek(r.Buffered())
		noMoreLines := bytes.IndexByte(buffered, '\n') < 0 || err != nil
		full := len(c.items) == chunkJobs
		if (full || noMoreLines) && len(c.items) > 0 && !emitChunk() {
			return nil
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// parseLine returns the item of a line, which has an error if the line is not a job.
// tooLong is whether text is only a part of a line that is too long. A line without an
// id gets a generated one, so that repeated requests make only one job. The generated
// id is not a UUID, because a node has to look up a UUID first.
func (b *bulk) parseLine(line int, text []byte, tooLong bool) bulkItem {
	item := bulkItem{Line: line}
	if tooLong || len(text) > maxBulkLine {
		item.Error = &api.BulkError{Code: api.CodeTooLarge, Message: fmt.Sprintf("the line is longer than %d bytes, which is the most that fits into a request", maxBulkLine)}
		return item
	}
	var parsed struct{ ID, Queue string } // the line is sent unchanged, so that its numbers keep all their digits
	err := json.Unmarshal(text, &parsed)
	_, mistyped := errors.AsType[*json.UnmarshalTypeError](err)
	reason := ""
	switch {
	case !utf8.Valid(text): // a node would refuse the whole request
		reason = "it has bytes that are not UTF-8"
	case text[0] != '{':
		reason = "it is not an object"
	case err != nil && !mistyped:
		reason = err.Error()
	}
	if reason != "" {
		item.Error = &api.BulkError{Code: api.CodeInvalid, Message: fmt.Sprintf(`the line is not a job as JSON, like {"function":"send"}: %s`, reason)}
		return item
	}
	item.job = bytes.Clone(text)
	if parsed.ID != "" || mistyped { // a mistyped field is named by the node, which refuses the line
		return item
	}

	key, queue := "auto-"+rand.Text(), cmp.Or(parsed.Queue, b.queue)
	item.job = bytes.TrimRight(item.job[:len(item.job)-1], " \t\r")
	if len(item.job) > 1 {
		item.job = append(item.job, ',')
	}
	item.job = fmt.Appendf(item.job, `"id":%q}`, key) // at the end: the last of two equal keys wins
	item.generated, _ = job.KeyID(queue, key)         // fails for an invalid queue, which the node refuses
	return item
}

// sendAll sends chunks concurrently and passes them to sent in their order, before
// their results are known. It starts no further chunk when sending ends; requests in
// progress continue until ctx ends.
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

// send sends the items of c that are jobs and sets their results. It repeats items that
// are refused temporarily, or that no node has answered, for a limited time; that is safe
// because their ids identify the jobs. It sets c.lost if no node has answered the last
// request.
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
		pending = slices.DeleteFunc(pending, func(i *bulkItem) bool { return !i.retryable() })
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
	text, err := b.env.Send(ctx, api.Subject("job-bulk"), body)
	if err != nil {
		return failAll(items, err)
	}
	var reply api.BulkReply
	if err = json.Unmarshal(text, &reply); err == nil && len(reply.Jobs) != len(items) {
		err = fmt.Errorf("%d results for %d jobs", len(reply.Jobs), len(items))
	}
	if err != nil {
		return failAll(items, &api.Error{Code: api.CodeInternal, Text: connect.BadReply(err).Error()})
	}
	wait := time.Duration(0)
	for i, item := range items {
		item.applyReply(&reply.Jobs[i])
		if item.retryable() {
			wait = max(wait, time.Duration(item.Error.RetryAfterMS)*time.Millisecond)
		}
	}
	return wait
}

// applyReply sets the result of i. A duplicate of an id that this program
// generated means only that the item was sent twice; it counts as accepted.
func (i *bulkItem) applyReply(result *api.BulkResult) {
	sentTwice := i.generated != job.ID{} && result.ID != nil && *result.ID == i.generated
	i.BulkResult = *result
	i.Duplicate = result.Duplicate && !sentTwice
}

// failAll sets err, with which a whole request failed, as the result of all its items.
// It returns how long to wait before a retry, or a negative duration if no node replied.
func failAll(items []*bulkItem, err error) time.Duration {
	wait := time.Duration(-1)
	refusal := api.BulkError{Code: api.CodeUnknown, Message: "no node replied, so the job may or may not exist: " + err.Error()}
	switch refused := connect.Refused(err); {
	case refused != nil:
		wait = refused.RetryAfter
		refusal = api.BulkError{Code: refused.Code, Message: refused.Text, RetryAfterMS: refused.RetryAfter.Milliseconds()}
	case errors.Is(err, context.Canceled):
		refusal.Message = "interrupted: the job may or may not exist"
	}
	for _, item := range items {
		item.Error = &refusal
	}
	return wait
}

// show writes one line per item of c to standard output, all of them in one write, and
// counts the results.
func (b *bulk) show(c *chunk) error {
	var out bytes.Buffer
	for i := range c.items {
		item := &c.items[i]
		word := "accepted"
		switch {
		case item.Error != nil:
			word = "refused: " + item.Error.Message
			b.failed++
			b.firstFailed = cmp.Or(b.firstFailed, item)
		case item.Duplicate:
			word = "duplicate"
			b.duplicates++
		case item.Debounced:
			word = "debounced"
			b.duplicates++
		default:
			b.accepted++
		}
		if !b.env.JSON {
			command.Printf(&out, "%d\t%s\t%s\n", item.Line, command.OrDash(idText(item.ID)), word)
			continue
		}
		text, err := job.EncodeJSON(item)
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
	command.Printf(b.env.Err, "yardmaster: %d accepted, %d already known, %d refused\n", b.accepted, b.duplicates, b.failed)
	if b.firstFailed == nil {
		return
	}
	first := b.firstFailed.Error
	err := usererror.Refusal(&api.Error{Code: first.Code, Text: first.Message, RetryAfter: time.Duration(first.RetryAfterMS) * time.Millisecond})
	command.Printf(b.env.Err, "yardmaster: line %d: %v\n", b.firstFailed.Line, err)
}
