package runnerpool

import (
	"encoding/json"
	"log/slog"
	"slices"
	"sync"

	"github.com/yardmaster-dev/yardmaster/job"
)

// jobLog assigns the output of a process to jobs. A line that names a job or a
// request belongs to it. Any other line belongs to the running request, if the
// process runs one request at a time.
type jobLog struct {
	runner string
	single bool // one request at a time
	emit   func(job.LogLine)
	log    *slog.Logger

	mu      sync.Mutex
	running []job.LogLine // of running dispatches, without text
	ended   []job.LogLine // of dispatches that have ended, newest last
}

// maxEnded is the number of ended dispatches to which lines can still be
// assigned.
const maxEnded = 32

// begin registers d as running.
func (l *jobLog) begin(d *dispatch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running = append(l.running, job.LogLine{Job: d.Job, N: d.N, Attempt: d.Attempt, Worker: d.Worker})
}

// end registers d as ended.
func (l *jobLog) end(d *dispatch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.running {
		if l.running[i].Job == d.Job && l.running[i].N == d.N {
			if len(l.ended) == maxEnded {
				l.ended = append(l.ended[:0], l.ended[1:]...)
			}
			l.ended = append(l.ended, l.running[i])
			l.running = append(l.running[:i], l.running[i+1:]...)
			return
		}
	}
}

// attribute returns the dispatch that a line of output belongs to, as a log line
// without text. record is the line as a JSON object, nil if it is not one.
func (l *jobLog) attribute(record map[string]json.RawMessage) (entry job.LogLine, found bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if entry, found = l.byID(record); found {
		return entry, true
	}
	for _, inner := range [...]string{"fields", "span"} { // as written by Rust's tracing
		var nested map[string]json.RawMessage
		if raw := record[inner]; len(raw) > 0 && json.Unmarshal(raw, &nested) == nil {
			if entry, found = l.byID(nested); found {
				return entry, true
			}
		}
	}
	if l.single && len(l.running) == 1 {
		return l.running[0], true
	}
	return entry, false
}

// byID returns the dispatch of this process that a record names by its request
// id or job id: of several dispatches of a job the latest, running or ended.
// l.mu is held.
func (l *jobLog) byID(record map[string]json.RawMessage) (entry job.LogLine, found bool) {
	for _, key := range [...]string{"request_id", "job_id", "rrq.job_id"} {
		id := jsonString(record[key])
		if id == "" {
			continue
		}
		for _, list := range [...][]job.LogLine{l.running, l.ended} {
			for _, line := range slices.Backward(list) {
				if id == line.Job.String() || key == "request_id" && id == job.RequestID(line.Job, line.N) {
					return line, true
				}
			}
		}
	}
	return entry, false
}
