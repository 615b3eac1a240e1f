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

	"yardmaster/job"
)

// maxLine is the longest line of a runner that is kept whole, in bytes.
const maxLine = 16 << 10

// follow reads a stream line by line until it ends. The runner is never held
// up by a line that is too long: what is past maxLine is read and dropped.
func follow(stream io.Reader, hear func(line []byte, cut bool)) {
	lines := bufio.NewReaderSize(stream, maxLine)
	rest := false // of a line whose beginning has been heard
	for {
		line, err := lines.ReadSlice('\n')
		cut := err == bufio.ErrBufferFull
		if line = bytes.TrimRight(line, "\r\n"); len(line) > 0 && !rest {
			hear(line, cut)
		}
		if rest = cut; err != nil && !cut {
			return
		}
	}
}

// hear logs a line of a process and, if it is known whose it is, hands it over
// as a line of that job's log. A line that is a JSON object is kept as it is;
// such a line also tells its own level.
func (v *voices) hear(stream string, line []byte, cut bool) {
	level := slog.LevelInfo
	if stream == job.LogStderr {
		level = slog.LevelWarn
	}
	var record map[string]json.RawMessage
	if line[0] == '{' && !cut && json.Unmarshal(line, &record) == nil {
		level = parseLevel(text(record["level"]), level)
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
	who, known := v.speaker(record)
	if known {
		attrs = append(attrs, slog.String("job", who.Job.String()), slog.Uint64("dispatch", uint64(who.N)))
	}
	v.log.LogAttrs(context.Background(), level, "runner output", attrs...)
	if !known {
		return
	}
	who.At, who.Stream, who.Text, who.Cut = time.Now().UTC(), stream, text, cut
	who.Level = strings.ToLower(level.String())
	if record != nil {
		who.Record = v.complete(record, stream, who.At)
	}
	v.keep(who)
}

// complete adds to a runner's own record what RRQ adds to it.
func (v *voices) complete(record map[string]json.RawMessage, stream string, at time.Time) json.RawMessage {
	add := func(key, value string) { record[key], _ = json.Marshal(value) } // a string always can be
	if _, given := record["timestamp"]; !given {
		add("timestamp", at.Format(time.RFC3339Nano))
	}
	if _, given := record["level"]; !given {
		add("level", map[string]string{job.LogStdout: "INFO", job.LogStderr: "ERROR"}[stream])
	}
	add("rrq.runner", v.runner)
	add("rrq.stream", stream)
	add("rrq.source", "runner")
	whole, _ := json.Marshal(record) // it has been JSON before
	return whole
}

// text is a JSON string's value, "" for anything else.
func text(raw json.RawMessage) (s string) {
	if len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

func parseLevel(name string, otherwise slog.Level) slog.Level {
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
	return otherwise
}
