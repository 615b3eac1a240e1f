package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"yardmaster/cluster"
	"yardmaster/job"

	"github.com/spf13/cobra"
)

// Bounds of what is under way at once: some chunks, each of as many jobs as a
// request may bring.
const (
	chunkJobs   = 1000
	chunkBytes  = 512 << 10
	chunksOpen  = 4
	maxBulkLine = maxRequest - 512 // leaves room for what stands around it
)

// bulkTries is for how many times NATS_TIMEOUT a chunk is repeated that the
// yard refuses for now.
const bulkTries = 12

// bulkLine is what this program needs to know of a line. The line itself goes
// to the yard as it is, so that its numbers keep all their digits.
type bulkLine struct {
	ID    string `json:"id"`
	Queue string `json:"queue"`
}

// bulkItem is what became of a line.
type bulkItem struct {
	Line      int        `json:"line"` // from 1
	ID        string     `json:"id,omitempty"`
	Queue     string     `json:"queue,omitempty"`
	Duplicate bool       `json:"duplicate,omitempty"`
	Debounced bool       `json:"debounced,omitempty"`
	Error     *bulkError `json:"error,omitempty"`

	job    []byte // as it is sent; nil: the line is none
	minted job.ID // of a line without an id
}

type bulkError struct {
	Code         string `json:"code"`
	Text         string `json:"text"`
	RetryAfterMS int64  `json:"retry_after_ms,omitempty"`
}

// later tells that another try may have another answer.
func (e *bulkError) later() bool { return e != nil && (e.Code == "503" || e.Code == "504") }

// chunk is the lines of one request.
type chunk struct {
	items []bulkItem
	bytes int
	done  chan struct{} // closed when every item has its answer
	lost  bool          // the yard was not reached in time
}

// bulk is one run of 'enqueue --bulk'.
type bulk struct {
	a     *app
	y     *yard
	queue string // of lines that name none

	accepted, known, refused int
	first                    *bulkItem // that was refused
}

// bulkAlone refuses what says something of one job.
func bulkAlone(c *cobra.Command, function []string) error {
	given := c.Flags().NFlag()
	for _, name := range []string{"bulk", "json", "server"} {
		if c.Flags().Changed(name) {
			given--
		}
	}
	if len(function) > 0 || given > 0 {
		return usage(c, "--bulk goes with no function and no flag of a single job: each line says all of its own job")
	}
	return nil
}

// enqueueBulk gives the yard a job for each line of a file.
func (a *app) enqueueBulk(c *cobra.Command, queue, path string) error {
	in := a.In
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return &problem{what: err.Error(), do: "name a file that can be read, or - for standard input"}
		}
		defer f.Close()
		in = f
	}
	y, err := a.dial(c.Context())
	if err != nil {
		return err
	}
	defer y.Close()
	b := &bulk{a: a, y: y, queue: queue}
	return b.run(c.Context(), in)
}

// run reads, sends and shows at once; at most chunksOpen chunks are sent and
// not shown.
func (b *bulk) run(ctx context.Context, in io.Reader) error {
	sending, stop := context.WithCancel(ctx)
	defer stop()
	read := make(chan *chunk)
	unread := make(chan error, 1)
	// Nobody waits for this one if the run is called off: a terminal that is
	// being read cannot be told to stop, and the program ends anyway.
	go func() {
		defer close(read)
		unread <- b.read(in, func(c *chunk) bool {
			select {
			case read <- c:
				return true
			case <-sending.Done():
				return false
			}
		})
	}()
	sent := make(chan *chunk, chunksOpen-1)
	go b.sendAll(ctx, sending, read, sent)
	var failed error
	last := 0
	for c := range sent {
		<-c.done
		if err := b.show(c); err != nil && failed == nil {
			failed = err
		}
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
		return &problem{
			what: fmt.Sprintf("no line after line %d was sent", last),
			do:   "send the rest when the yard answers; lines with an id of their own may be sent again",
		}
	}
	if err := <-unread; err != nil {
		return &problem{what: fmt.Sprintf("the lines after line %d cannot be read: %v", last, err), do: "send the rest anew"}
	}
	if b.refused > 0 {
		return &exitError{exitFailed}
	}
	return nil
}

// sendAll sends chunks side by side and passes them on in their order.
func (b *bulk) sendAll(ctx, sending context.Context, read <-chan *chunk, sent chan<- *chunk) {
	defer close(sent)
	for {
		select {
		case c, more := <-read:
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

// send gets each item its answer, repeating those that the yard refuses for
// now: under their ids they are the same jobs.
func (b *bulk) send(ctx context.Context, c *chunk) {
	open := make([]*bulkItem, 0, len(c.items))
	for i := range c.items {
		if c.items[i].job != nil {
			open = append(open, &c.items[i])
		}
	}
	giveUp := time.Now().Add(bulkTries * b.y.timeout)
	for len(open) > 0 {
		wait := b.ask(ctx, open)
		c.lost = wait < 0
		left := open[:0]
		for _, item := range open {
			if item.Error.later() {
				left = append(left, item)
			}
		}
		open = left
		if len(open) == 0 || time.Now().After(giveUp) || pause(ctx, wait) != nil {
			return
		}
	}
}

// ask sends items once and gives how long to wait before it is done again; less
// than 0: no node has answered.
func (b *bulk) ask(ctx context.Context, items []*bulkItem) time.Duration {
	queue, _ := json.Marshal(b.queue) // which cannot fail
	body := fmt.Appendf(nil, `{"queue":%s,"jobs":[`, queue)
	for i, item := range items {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, item.job...)
	}
	body = append(body, `]}`...)
	asking, cancel := context.WithTimeout(ctx, b.y.timeout)
	defer cancel()
	answer, err := b.y.Request(asking, cluster.SubjectAPI+".job.bulk", body)
	var reply struct {
		Jobs []bulkItem `json:"jobs"`
	}
	if err == nil {
		if err = json.Unmarshal(answer, &reply); err == nil && len(reply.Jobs) != len(items) {
			err = fmt.Errorf("%d answers to %d jobs", len(reply.Jobs), len(items))
		}
		if err != nil {
			err = &cluster.APIError{Code: "500", Text: unreadable(err).Error()}
		}
	}
	if err != nil {
		return refuseAll(items, err)
	}
	wait := time.Duration(0)
	for i, item := range items {
		item.take(&reply.Jobs[i])
		if item.Error.later() {
			wait = max(wait, time.Duration(item.Error.RetryAfterMS)*time.Millisecond)
		}
	}
	return wait
}

// take is the yard's word on an item. That a job is known whose id was made
// here only means that it was sent twice.
func (i *bulkItem) take(answer *bulkItem) {
	i.ID, i.Queue, i.Debounced, i.Error = answer.ID, answer.Queue, answer.Debounced, answer.Error
	i.Duplicate = answer.Duplicate && (i.minted == job.ID{} || answer.ID != i.minted.String())
}

// refuseAll gives all items the answer of a request that failed as a whole.
func refuseAll(items []*bulkItem, err error) time.Duration {
	var refused *cluster.APIError
	wait := time.Duration(-1)
	refusal := bulkError{Code: "504", Text: "no node answers, so it is not known whether there is a job: " + err.Error()}
	switch {
	case errors.As(err, &refused):
		wait = refused.RetryAfter
		refusal = bulkError{refused.Code, refused.Text, refused.RetryAfter.Milliseconds()}
	case errors.Is(err, context.Canceled):
		refusal.Text = "interrupted: it is not known whether there is a job"
	}
	for _, item := range items {
		item.Error = &refusal
	}
	return wait
}

// show writes a line for each item, in one piece.
func (b *bulk) show(c *chunk) error {
	var out bytes.Buffer
	for i := range c.items {
		item := &c.items[i]
		word := "accepted"
		switch {
		case item.Error != nil:
			word = "refused: " + item.Error.Text
			b.refused++
			if b.first == nil {
				b.first = item
			}
		case item.Debounced:
			word = "debounced"
			b.known++
		case item.Duplicate:
			word = "duplicate"
			b.known++
		default:
			b.accepted++
		}
		if !b.a.json {
			fmt.Fprintf(&out, "%d\t%s\t%s\n", item.Line, or(item.ID), word)
			continue
		}
		text, err := json.Marshal(item)
		if err != nil {
			return err
		}
		out.Write(text)
		out.WriteByte('\n')
	}
	_, err := b.a.Out.Write(out.Bytes())
	return err
}

// summarize tells on standard error how it went.
func (b *bulk) summarize() {
	fmt.Fprintf(b.a.Err, "yardmaster: %d accepted, %d known already, %d refused\n", b.accepted, b.known, b.refused)
	if b.first != nil {
		e := explainRefusal(&cluster.APIError{
			Code: b.first.Error.Code, Text: b.first.Error.Text, RetryAfter: time.Duration(b.first.Error.RetryAfterMS) * time.Millisecond,
		})
		fmt.Fprintf(b.a.Err, "yardmaster: line %d: %v\n", b.first.Line, e)
	}
}
