package node

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"
)

// jobLog stores the log lines of jobs. Lines are collected for jobLogInterval and stored
// job by job, in the background. Lines beyond the limits are dropped, and the log contains
// a line with their number.
type jobLog struct {
	node  string
	name  string // prefix of message names; differs with each start of the node
	store func(ctx context.Context, id job.ID, name string, lines []byte) error
	log   *slog.Logger
	wake  chan struct{} // holds one notification

	mu      sync.Mutex
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
	jobLogInterval     = 200 * time.Millisecond // for collecting lines
	maxPendingLogBytes = 8 << 20                // lines not stored, of all jobs
	maxPendingJobBytes = 256 << 10              // lines not stored, of one job
	maxPendingJobs     = 16384                  // jobs with lines not stored
	maxLogMessages     = 400                    // per flush: 2,000 a second
	logStoreWindow     = 64                     // messages being stored
	logMessageBytes    = 16 << 10               // a longer line has a message of its own
	logStopGrace       = 2 * time.Second        // for the last lines of a node that stops
	dropReportInterval = time.Minute
)

func newJobLog(node string, incarnation uint64, store func(context.Context, job.ID, string, []byte) error, log *slog.Logger) *jobLog {
	return &jobLog{
		node: node, name: fmt.Sprintf("%s-%d", node, incarnation), store: store, log: log,
		wake: make(chan struct{}, 1), byJob: make(map[job.ID]*logPage),
	}
}

// Log adds a line. It never blocks on the storage.
func (j *jobLog) Log(l job.LogLine) {
	l.Node = j.node
	text, err := json.Marshal(&l)
	if err != nil { // not valid JSON, although its sender was checked
		j.log.Error("job log line dropped", "job", l.Job, "err", err)
		return
	}
	text = append(text, '\n')
	l.Text, l.Record = "", nil
	j.mu.Lock()
	defer j.mu.Unlock()
	p := j.byJob[l.Job]
	if p == nil {
		if len(j.byJob) >= maxPendingJobs {
			j.dropped++
			return
		}
		p = &logPage{}
		j.byJob[l.Job] = p
		j.pages = append(j.pages, p)
		notify(j.wake)
	}
	p.last = l
	if p.dropped > 0 || p.bytes+len(text) > maxPendingJobBytes || j.bytes+len(text) > maxPendingLogBytes {
		p.dropped++
		j.dropped++
		return
	}
	p.lines = append(p.lines, text)
	p.bytes += len(text)
	j.bytes += len(text)
}

// notify sends to a channel with a buffer of one, unless it is full.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run stores lines until ctx ends, and then those that remain.
func (j *jobLog) run(ctx context.Context) error {
	for {
		select {
		case <-j.wake:
		case <-ctx.Done():
			flushCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), logStopGrace)
			defer cancel()
			for j.flush(flushCtx) {
			}
			return nil
		}
		if backoff.Sleep(ctx, jobLogInterval) == nil && j.flush(ctx) {
			notify(j.wake)
		}
	}
}

// flush stores up to maxLogMessages messages and returns when they are stored, so that a
// job's later lines never overtake them. It reports whether there are more.
func (j *jobLog) flush(ctx context.Context) (more bool) {
	var group errgroup.Group
	group.SetLimit(logStoreWindow)
	for sent := 0; sent < maxLogMessages; {
		p := j.nextPage()
		if p == nil {
			break
		}
		messages := p.messages()
		names := make([]string, len(messages))
		for i := range names {
			j.stored++
			names[i] = fmt.Sprintf("%s-%d", j.name, j.stored)
		}
		group.Go(func() error {
			for i, m := range messages {
				j.storeRetry(ctx, p, names[i], m)
			}
			return nil
		})
		sent += len(messages)
	}
	_ = group.Wait() // its functions return no errors
	j.reportDropped()
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.pages) > 0 && ctx.Err() == nil
}

// nextPage removes and returns the oldest page, or nil.
func (j *jobLog) nextPage() *logPage {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.pages) == 0 {
		return nil
	}
	p := j.pages[0]
	j.pages = j.pages[1:]
	delete(j.byJob, p.last.Job)
	j.bytes -= p.bytes
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

// storeRetry stores a message. It retries up to logStoreTimeout, because the stream may
// have no leader for a while.
func (j *jobLog) storeRetry(ctx context.Context, p *logPage, name string, lines []byte) {
	wait := backoff.Backoff{Base: 100 * time.Millisecond, Max: 2 * time.Second}
	for deadline := time.Now().Add(logStoreTimeout); ; {
		err := j.store(ctx, p.last.Job, name, lines)
		if err == nil {
			return
		}
		if time.Now().After(deadline) || backoff.Sleep(ctx, wait.Next()) != nil {
			j.mu.Lock()
			j.dropped += bytes.Count(lines, []byte("\n"))
			j.mu.Unlock()
			j.log.Debug("job log lines not stored", "job", p.last.Job, "err", err)
			return
		}
	}
}

// logStoreTimeout is shorter than the time for which the stream detects a repeated name.
const logStoreTimeout = 20 * time.Second

// reportDropped logs how many lines were dropped, at most once a minute.
func (j *jobLog) reportDropped() {
	j.mu.Lock()
	n := j.dropped
	if time.Since(j.reportedAt) < dropReportInterval {
		n = 0
	}
	if n > 0 {
		j.dropped, j.reportedAt = 0, time.Now()
	}
	j.mu.Unlock()
	if n > 0 {
		j.log.Warn("job log lines dropped", "count", n)
	}
}
