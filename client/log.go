package client

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
)

// LogHandler returns a handler of log records that adds them to the job's log, with their
// level. ctx must be the handler's context. A record that cannot be sent is an error, and
// means that the attempt must stop. Combine it with another handler by
// [slog.NewMultiHandler].
func (j *JobInfo) LogHandler(ctx context.Context) slog.Handler {
	return &logHandler{job: j, ctx: ctx, with: func(h slog.Handler) slog.Handler { return h }}
}

// Logger returns a logger that adds to the job's log: [JobInfo.LogHandler] as a logger.
func (j *JobInfo) Logger(ctx context.Context) *slog.Logger { return slog.New(j.LogHandler(ctx)) }

// logHandler formats records as their message, followed by the attributes as a
// [slog.TextHandler] writes them.
type logHandler struct {
	job  *JobInfo
	ctx  context.Context                 // of the job's handler
	with func(slog.Handler) slog.Handler // adds the attributes and groups of the logger
}

// Enabled reports true: the yard keeps the lines of all levels.
func (h *logHandler) Enabled(context.Context, slog.Level) bool { return true }

// Handle adds a record to the job's log.
func (h *logHandler) Handle(_ context.Context, r slog.Record) error {
	var line bytes.Buffer
	text := slog.NewTextHandler(&line, &slog.HandlerOptions{Level: r.Level, ReplaceAttr: withoutBuiltIn})
	if err := h.with(text).Handle(h.ctx, r); err != nil {
		return err
	}
	message := strings.TrimSpace(r.Message + " " + line.String())
	return h.job.quest.LogAt(h.ctx, strings.ToLower(r.Level.String()), message)
}

// withoutBuiltIn removes the time, the level and the message of a record. A line of the job's
// log has fields for them.
func withoutBuiltIn(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey) {
		return slog.Attr{}
	}
	return a
}

// WithAttrs returns a handler whose lines have these attributes, too.
func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.adding(func(text slog.Handler) slog.Handler { return text.WithAttrs(attrs) })
}

// WithGroup returns a handler whose further attributes are in a group.
func (h *logHandler) WithGroup(name string) slog.Handler {
	return h.adding(func(text slog.Handler) slog.Handler { return text.WithGroup(name) })
}

func (h *logHandler) adding(add func(slog.Handler) slog.Handler) slog.Handler {
	added := *h
	added.with = func(text slog.Handler) slog.Handler { return add(h.with(text)) }
	return &added
}
