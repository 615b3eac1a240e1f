package runnerpool

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

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
	running []loggedDispatch
	ended   []loggedDispatch // newest last
}

// loggedDispatch is a dispatch to which lines can be assigned.
type loggedDispatch struct {
	job.LogLine        // without text
	uuid        string // as in its request
}

// maxEnded is the number of ended dispatches to which lines can still be
// assigned.
const maxEnded = 32

// begin registers d as running.
func (l *jobLog) begin(d *dispatch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running = append(l.running, loggedDispatch{job.LogLine{Job: d.Job, N: d.N, Attempt: d.Attempt, Worker: d.Worker}, d.uuid})
}

// end registers d, which begin has registered, as ended.
func (l *jobLog) end(d *dispatch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.running, func(o loggedDispatch) bool { return o.uuid == d.uuid })
	if len(l.ended) == maxEnded {
		l.ended = slices.Delete(l.ended, 0, 1)
	}
	l.ended = append(l.ended, l.running[i])
	l.running = slices.Delete(l.running, i, i+1)
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
		return l.running[0].LogLine, true
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
		for _, list := range [...][]loggedDispatch{l.running, l.ended} {
			for _, d := range slices.Backward(list) {
				if id == d.Job.String() || key == "request_id" && id == d.uuid {
					return d.LogLine, true
				}
			}
		}
	}
	return entry, false
}

// writeLine logs a line of output, which is not empty, and, if it belongs to a
// job, adds it to the job's log. A line that is a JSON object is kept as a
// record and sets its own level. stream is job.LogStdout or job.LogStderr; cut
// means that the end of the line is missing.
func (l *jobLog) writeLine(stream string, line []byte, cut bool) {
	level := slog.LevelInfo
	if stream == job.LogStderr {
		level = slog.LevelWarn
	}
	var record map[string]json.RawMessage
	if line[0] == '{' && !cut && json.Unmarshal(line, &record) == nil {
		level = parseLevel(jsonString(record["level"]), level)
	}
	text := ""
	attrs := []slog.Attr{slog.String("stream", stream)}
	if record != nil {
		attrs = append(attrs, slog.Any("record", json.RawMessage(bytes.Clone(line))))
	} else {
		text = strings.ToValidUTF8(string(line), "\uFFFD")
		attrs = append(attrs, slog.String("line", text))
	}
	if cut {
		attrs = append(attrs, slog.Bool("truncated", true))
	}
	entry, found := l.attribute(record)
	if found {
		attrs = append(attrs, slog.String("job", entry.Job.String()), slog.Uint64("dispatch", uint64(entry.N)))
	}
	l.log.LogAttrs(context.Background(), level, "runner output", attrs...)
	if !found {
		return
	}
	entry.At, entry.Stream, entry.Text, entry.Truncated = time.Now().UTC(), stream, text, cut
	entry.Level = strings.ToLower(level.String())
	if record != nil {
		entry.Record = l.addStandardFields(record, stream, entry.At)
	}
	l.emit(entry)
}

// addStandardFields adds the fields that RRQ adds to a runner's record, and
// returns the record as JSON.
func (l *jobLog) addStandardFields(record map[string]json.RawMessage, stream string, at time.Time) json.RawMessage {
	add := func(key, value string) { record[key], _ = json.Marshal(value) } // strings cannot fail
	if _, exists := record["timestamp"]; !exists {
		add("timestamp", at.Format(time.RFC3339Nano))
	}
	if _, exists := record["level"]; !exists {
		add("level", map[string]string{job.LogStdout: "INFO", job.LogStderr: "ERROR"}[stream])
	}
	add("rrq.runner", l.runner)
	add("rrq.stream", stream)
	add("rrq.source", "runner")
	text, _ := json.Marshal(record) // it was decoded from JSON
	return text
}

// jsonString returns the value of a JSON string, "" for anything else.
func jsonString(raw json.RawMessage) (s string) {
	if len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

// parseLevel returns the level that a runner calls name, or fallback if name is not
// known.
func parseLevel(name string, fallback slog.Level) slog.Level {
	switch strings.ToLower(name) {
	case "trace", "debug":
		return slog.LevelDebug
	case "info", "notice":
		return slog.LevelInfo
	case "warn", "warning":
		return slog.LevelWarn
	case "error", "err", "critical", "fatal":
		return slog.LevelError
	}
	return fallback
}
