package runnerpool

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"strings"
)

// maxLine is the longest line of a runner that is logged whole, in bytes.
const maxLine = 16 << 10

// follow logs a stream line by line until it ends. The runner is never held up
// by a line that is too long: what is past maxLine is read and dropped.
func follow(stream io.Reader, log *slog.Logger, level slog.Level) {
	lines := bufio.NewReaderSize(stream, maxLine)
	rest := false // of a line whose beginning has been logged
	for {
		line, err := lines.ReadSlice('\n')
		cut := err == bufio.ErrBufferFull
		if line = bytes.TrimRight(line, "\r\n"); len(line) > 0 && !rest {
			logLine(log, level, line, cut)
		}
		if rest = cut; err != nil && !cut {
			return
		}
	}
}

// logLine keeps a line that is a JSON object as it is; such a line also tells
// its own level.
func logLine(log *slog.Logger, level slog.Level, line []byte, cut bool) {
	ctx := context.Background()
	if line[0] == '{' && !cut {
		var own struct {
			Level string `json:"level"`
		}
		if json.Valid(line) {
			if json.Unmarshal(line, &own) == nil && own.Level != "" {
				level = parseLevel(own.Level, level)
			}
			log.LogAttrs(ctx, level, "runner output", slog.Any("record", json.RawMessage(bytes.Clone(line))))
			return
		}
	}
	attrs := []slog.Attr{slog.String("line", strings.ToValidUTF8(string(line), "\uFFFD"))}
	if cut {
		attrs = append(attrs, slog.Bool("truncated", true))
	}
	log.LogAttrs(ctx, level, "runner output", attrs...)
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
