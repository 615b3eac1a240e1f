// Package joblog stores and reads the log lines of jobs.
package joblog

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/internal/wakeup"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Writer stores the log lines of jobs. Lines are collected for interval and stored
// job by job, in the background. Lines beyond the limits are dropped, and the log contains
// a line with their number.
type Writer struct {
	node  string
	name  string // prefix of message names; differs with each start of the node
	store func(ctx context.Context, id job.ID, name string, lines []byte) error
	log   *slog.Logger
	wake  chan struct{} // holds one notification

	mu      crash.Mutex
	pages   []*logPage // to be stored, in the order of their first lines
	byJob   map[job.ID]*logPage
	bytes   int // of the lines of all pages
	dropped int // lines, since the last report

	stored     uint64 // messages so far; used by flush only
	reportedAt time.Time
}

// logPage holds the lines of a job that are not stored yet.
type logPage struct {
	last    job.LogLine // without its text
	lines   [][]byte    // each with its line feed
	bytes   int
	dropped int // lines after those
}

// Limits of a node's job log.
const (
	interval           = 200 * time.Millisecond // for collecting lines
	maxPendingLogBytes = 8 << 20                // lines not stored, of all jobs
	maxPendingJobBytes = 256 << 10              // lines not stored, of one job
	maxPendingJobs     = 16384                  // jobs with lines not stored
	maxLogMessages     = 400                    // per flush: 2,000 a second
	logStoreWindow     = 64                     // messages being stored
	logMessageBytes    = 16 << 10               // a longer line has a message of its own
	logStopGrace       = 2 * time.Second        // for the last lines of a node that stops
	dropReportInterval = time.Minute
)

// New returns a writer for a node. store stores lines of a job as one message under a name.
func New(node string, incarnation uint64, store func(context.Context, job.ID, string, []byte) error, log *slog.Logger) *Writer {
	return &Writer{
		node: node, name: fmt.Sprintf("%s-%d", node, incarnation), store: store, log: log,
		wake: make(chan struct{}, 1), byJob: make(map[job.ID]*logPage),
	}
}

// Log adds a line to the page of its job, which Run stores later. It never blocks on the
// storage: if too many lines wait, it drops the line and counts it.
func (w *Writer) Log(l job.LogLine) {
	l.Node = w.node
	text, err := json.Marshal(&l)
	if err != nil { // not valid JSON, although its sender was checked
		w.log.Error("job log line dropped", "job", l.Job, "err", err)
		return
	}
	text = append(text, '\n')
	l.Text, l.Record = "", nil
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.byJob[l.Job]
	if p == nil {
		if len(w.byJob) >= maxPendingJobs {
			w.dropped++
			return
		}
		p = &logPage{}
		w.byJob[l.Job] = p
		w.pages = append(w.pages, p)
		wakeup.Send(w.wake)
	}
	p.last = l
	full := p.bytes+len(text) > maxPendingJobBytes || w.bytes+len(text) > maxPendingLogBytes
	if full || p.dropped > 0 { // only the end of a page may be missing
		p.dropped++
		w.dropped++
		return
	}
	p.lines = append(p.lines, text)
	p.bytes += len(text)
	w.bytes += len(text)
}

// Run stores lines until ctx ends, and then those that remain.
func (w *Writer) Run(ctx context.Context) error {
	for {
		select {
		case <-w.wake:
		case <-ctx.Done():
			flushCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), logStopGrace)
			defer cancel()
			for w.flush(flushCtx) {
			}
			return nil
		}
		if backoff.Sleep(ctx, interval) == nil && w.flush(ctx) {
			wakeup.Send(w.wake)
		}
	}
}

// flush stores up to maxLogMessages messages and returns when they are stored, so that a
// job's later lines never overtake them. It reports whether there are more.
func (w *Writer) flush(ctx context.Context) (more bool) {
	var group crash.Group
	group.SetLimit(logStoreWindow)
	for sent := 0; sent < maxLogMessages; {
		p := w.nextPage()
		if p == nil {
			break
		}
		messages := p.messages()
		names := make([]string, len(messages))
		for i := range names {
			w.stored++
			names[i] = fmt.Sprintf("%s-%d", w.name, w.stored)
		}
		group.Go(func() error {
			for i, m := range messages {
				w.storeRetry(ctx, p, names[i], m)
			}
			return nil
		})
		sent += len(messages)
	}
	_ = group.Wait() // its functions return no errors
	w.reportDropped()
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.pages) > 0 && ctx.Err() == nil
}

// nextPage removes and returns the oldest page, or nil.
func (w *Writer) nextPage() *logPage {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.pages) == 0 {
		return nil
	}
	p := w.pages[0]
	w.pages = w.pages[1:]
	delete(w.byJob, p.last.Job)
	w.bytes -= p.bytes
	return p
}

// messages returns the page's lines as the messages to store, with a final line about
// those that were dropped.
func (p *logPage) messages() (messages [][]byte) {
	lines := p.lines
	if p.dropped > 0 {
		gap := p.last
		gap.Dropped, gap.Truncated, gap.Level = p.dropped, false, "warn"
		text, _ := json.Marshal(&gap) // cannot fail: numbers and short texts
		lines = append(lines, append(text, '\n'))
	}
	for _, line := range lines {
		n := len(messages)
		if n == 0 || len(messages[n-1])+len(line) > logMessageBytes {
			messages = append(messages, nil)
			n++
		}
		messages[n-1] = append(messages[n-1], line...)
	}
	return messages
}

// storeRetry stores a message, whose name makes a repeated one a duplicate. It retries up
// to logStoreTimeout, because the stream may have no leader for a while, and then counts
// the lines as dropped.
func (w *Writer) storeRetry(ctx context.Context, p *logPage, name string, lines []byte) {
	delay := backoff.Backoff{Base: 100 * time.Millisecond, Max: 2 * time.Second}
	deadline := time.Now().Add(logStoreTimeout)
	for {
		err := w.store(ctx, p.last.Job, name, lines)
		if err == nil {
			return
		}
		if time.Now().After(deadline) || backoff.Sleep(ctx, delay.Next()) != nil {
			w.mu.Lock()
			w.dropped += bytes.Count(lines, []byte("\n"))
			w.mu.Unlock()
			w.log.Debug("job log lines not stored", "job", p.last.Job, "err", err)
			return
		}
	}
}

// logStoreTimeout is shorter than the time for which the stream detects a repeated name.
const logStoreTimeout = 20 * time.Second

// reportDropped logs how many lines were dropped, at most once a minute.
func (w *Writer) reportDropped() {
	w.mu.Lock()
	n := w.dropped
	if time.Since(w.reportedAt) < dropReportInterval {
		n = 0
	}
	if n > 0 {
		w.dropped, w.reportedAt = 0, time.Now()
	}
	w.mu.Unlock()
	if n > 0 {
		w.log.Warn("job log lines dropped", "count", n)
	}
}
