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

	"yardmaster/internal/backoff"
	"yardmaster/job"
)

// journal keeps what jobs say. Lines gather for a moment and are stored job by
// job; whoever says something never waits for that. What does not fit is
// dropped, and the log says where and how much.
type journal struct {
	node  string
	name  string // of this start of the node, unlike any other's
	store func(ctx context.Context, id job.ID, name string, lines []byte) error
	log   *slog.Logger
	wake  chan struct{} // holds one notice

	mu      sync.Mutex
	pages   []*page // to be stored, in the order of their first lines
	of      map[job.ID]*page
	bytes   int // of their lines
	dropped int // lines, since the node's log was told

	stored uint64 // messages; the storing goroutine's
	toldAt time.Time
}

// page is what a job has said and nobody has stored.
type page struct {
	last    job.LogLine // without its text
	lines   [][]byte    // each with its line feed
	bytes   int
	dropped int // lines after those
}

// Bounds of a node's journal.
const (
	journalEvery   = 200 * time.Millisecond // lines gather so long
	journalBytes   = 8 << 20                // that wait, of all jobs
	journalOfJob   = 256 << 10              // that wait, of one job
	journalJobs    = 16384                  // that have something waiting
	journalAtOnce  = 400                    // messages after each gathering: 2,000 a second
	journalWindow  = 64                     // messages on their way
	journalMessage = 16 << 10               // bytes; a longer line has a message of its own
	journalGrace   = 2 * time.Second        // for the last lines of a node that stops
	journalTell    = time.Minute
)

func newJournal(node string, incarnation uint64, store func(context.Context, job.ID, string, []byte) error, log *slog.Logger) *journal {
	return &journal{
		node: node, name: fmt.Sprintf("%s-%d", node, incarnation), store: store, log: log,
		wake: make(chan struct{}, 1), of: make(map[job.ID]*page),
	}
}

// Log takes a line.
func (j *journal) Log(l job.LogLine) {
	l.Node = j.node
	text, err := json.Marshal(&l)
	if err != nil { // its record is no JSON, which its room has checked
		j.log.Error("log line cannot be kept", "job", l.Job, "error", err)
		return
	}
	text = append(text, '\n')
	l.Text, l.Record = "", nil
	j.mu.Lock()
	defer j.mu.Unlock()
	p := j.of[l.Job]
	if p == nil {
		if len(j.of) >= journalJobs {
			j.dropped++
			return
		}
		p = &page{}
		j.of[l.Job] = p
		j.pages = append(j.pages, p)
		notify(j.wake)
	}
	p.last = l
	if p.dropped > 0 || p.bytes+len(text) > journalOfJob || j.bytes+len(text) > journalBytes {
		p.dropped++
		j.dropped++
		return
	}
	p.lines = append(p.lines, text)
	p.bytes += len(text)
	j.bytes += len(text)
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run stores what there is until ctx ends, and then the last lines.
func (j *journal) run(ctx context.Context) error {
	for {
		select {
		case <-j.wake:
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), journalGrace)
			defer cancel()
			for j.flush(last) {
			}
			return nil
		}
		if backoff.Sleep(ctx, journalEvery) == nil && j.flush(ctx) {
			notify(j.wake)
		}
	}
}

// flush stores what has gathered, or as much of it as may go at once, and
// returns when it is stored: a job's next lines never overtake these. It tells
// whether there is more.
func (j *journal) flush(ctx context.Context) (more bool) {
	var at errgroup.Group
	at.SetLimit(journalWindow)
	for sent := 0; sent < journalAtOnce; {
		p := j.take()
		if p == nil {
			break
		}
		messages := p.messages()
		names := make([]string, len(messages))
		for i := range names {
			j.stored++
			names[i] = fmt.Sprintf("%s-%d", j.name, j.stored)
		}
		at.Go(func() error {
			for i, m := range messages {
				j.keep(ctx, p, names[i], m)
			}
			return nil
		})
		sent += len(messages)
	}
	_ = at.Wait() // its functions give no errors
	j.tell()
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.pages) > 0 && ctx.Err() == nil
}

// take removes the oldest page.
func (j *journal) take() *page {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.pages) == 0 {
		return nil
	}
	p := j.pages[0]
	j.pages = j.pages[1:]
	delete(j.of, p.last.Job)
	j.bytes -= p.bytes
	return p
}

// messages are a page's lines as they are stored, with a last word on those
// that are missing.
func (p *page) messages() (messages [][]byte) {
	lines := p.lines
	if p.dropped > 0 {
		gap := p.last
		gap.Dropped, gap.Cut, gap.Level = p.dropped, false, "warn"
		text, _ := json.Marshal(&gap) // numbers and short texts
		lines = append(lines, append(text, '\n'))
	}
	for _, line := range lines {
		n := len(messages)
		if n == 0 || len(messages[n-1])+len(line) > journalMessage {
			messages = append(messages, nil)
			n++
		}
		messages[n-1] = append(messages[n-1], line...)
	}
	return messages
}

// keep stores a message, and again if nobody answers: while the stream has no
// leader, lines wait here.
func (j *journal) keep(ctx context.Context, p *page, name string, lines []byte) {
	wait := backoff.Backoff{Base: 100 * time.Millisecond, Max: 2 * time.Second}
	for until := time.Now().Add(journalPatience); ; {
		err := j.store(ctx, p.last.Job, name, lines)
		if err == nil {
			return
		}
		if time.Now().After(until) || backoff.Sleep(ctx, wait.Next()) != nil {
			j.mu.Lock()
			j.dropped += bytes.Count(lines, []byte("\n"))
			j.mu.Unlock()
			j.log.Debug("log lines are not stored", "job", p.last.Job, "error", err)
			return
		}
	}
}

// journalPatience is shorter than a stream remembers a message's name.
const journalPatience = 20 * time.Second

// tell says in the node's log, once a minute at most, what was dropped.
func (j *journal) tell() {
	j.mu.Lock()
	n := j.dropped
	if time.Since(j.toldAt) < journalTell {
		n = 0
	}
	if n > 0 {
		j.dropped, j.toldAt = 0, time.Now()
	}
	j.mu.Unlock()
	if n > 0 {
		j.log.Warn("lines of jobs' logs are lost", "lines", n)
	}
}
