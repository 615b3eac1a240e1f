package runnerpool

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// maxLine is the longest line of output that is kept, in bytes.
const maxLine = 16 << 10

// readLines calls handle for every line of a stream that is not empty, without
// its line end, until the stream ends. Of a line longer than maxLine, handle
// gets the beginning, and cut is true; the rest is read and dropped, so that the
// runner is never blocked.
func readLines(stream io.Reader, handle func(line []byte, cut bool)) {
	lines := bufio.NewReaderSize(stream, maxLine)
	skipping := false // the rest of a line that was handled
	for {
		line, err := lines.ReadSlice('\n')
		cut := err == bufio.ErrBufferFull
		if line = bytes.TrimRight(line, "\r\n"); len(line) > 0 && !skipping {
			handle(line, cut)
		}
		if skipping = cut; err != nil && !cut {
			return
		}
	}
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
	if _, given := record["timestamp"]; !given {
		add("timestamp", at.Format(time.RFC3339Nano))
	}
	if _, given := record["level"]; !given {
		add("level", map[string]string{job.LogStdout: "INFO", job.LogStderr: "ERROR"}[stream])
	}
	add("rrq.runner", l.runner)
	add("rrq.stream", stream)
	add("rrq.source", "runner")
	whole, _ := json.Marshal(record) // it was decoded from JSON
	return whole
}

// jsonString returns the value of a JSON string, "" for anything else.
func jsonString(raw json.RawMessage) (s string) {
	if len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

// parseLevel returns the level that a runner calls name, def if name is not
// known.
func parseLevel(name string, def slog.Level) slog.Level {
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
	return def
}
