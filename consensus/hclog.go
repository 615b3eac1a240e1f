package consensus

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// raftLog is an hclog.Logger for Raft that writes to a slog.Logger.
type raftLog struct {
	log     *slog.Logger
	implied []any
	name    string
}

var _ hclog.Logger = (*raftLog)(nil)

// levels maps hclog's levels to slog's. Raft's trace messages are logged as
// debug messages.
var levels = map[hclog.Level]slog.Level{
	hclog.Trace: slog.LevelDebug, hclog.Debug: slog.LevelDebug, hclog.Info: slog.LevelInfo,
	hclog.Warn: slog.LevelWarn, hclog.Error: slog.LevelError,
}

// Log logs a message. Arguments that hclog would format are formatted first.
func (r *raftLog) Log(level hclog.Level, msg string, args ...any) {
	for i, a := range args {
		if f, ok := a.(hclog.Format); ok && len(f) > 0 {
			args[i] = fmt.Sprintf(fmt.Sprint(f[0]), f[1:]...)
		}
	}
	r.log.Log(context.Background(), levels[level], msg, args...)
}

func (r *raftLog) Trace(msg string, args ...any) { r.Log(hclog.Trace, msg, args...) }
func (r *raftLog) Debug(msg string, args ...any) { r.Log(hclog.Debug, msg, args...) }
func (r *raftLog) Info(msg string, args ...any)  { r.Log(hclog.Info, msg, args...) }
func (r *raftLog) Warn(msg string, args ...any)  { r.Log(hclog.Warn, msg, args...) }
func (r *raftLog) Error(msg string, args ...any) { r.Log(hclog.Error, msg, args...) }

func (r *raftLog) enabled(level slog.Level) bool {
	return r.log.Enabled(context.Background(), level)
}

func (r *raftLog) IsTrace() bool { return false }
func (r *raftLog) IsDebug() bool { return r.enabled(slog.LevelDebug) }
func (r *raftLog) IsInfo() bool  { return r.enabled(slog.LevelInfo) }
func (r *raftLog) IsWarn() bool  { return r.enabled(slog.LevelWarn) }
func (r *raftLog) IsError() bool { return r.enabled(slog.LevelError) }

func (r *raftLog) ImpliedArgs() []any { return r.implied }

func (r *raftLog) With(args ...any) hclog.Logger {
	return &raftLog{log: r.log.With(args...), implied: append(r.implied[:len(r.implied):len(r.implied)], args...), name: r.name}
}

func (r *raftLog) Name() string { return r.name }

func (r *raftLog) Named(name string) hclog.Logger {
	if r.name != "" {
		name = r.name + "." + name
	}
	return r.ResetNamed(name)
}

func (r *raftLog) ResetNamed(name string) hclog.Logger {
	return &raftLog{log: r.log, implied: r.implied, name: name}
}

// SetLevel has no effect: the slog handler determines the level.
func (r *raftLog) SetLevel(hclog.Level) {}

func (r *raftLog) GetLevel() hclog.Level {
	for _, l := range []hclog.Level{hclog.Debug, hclog.Info, hclog.Warn} {
		if r.enabled(levels[l]) {
			return l
		}
	}
	return hclog.Error
}

func (r *raftLog) StandardLogger(o *hclog.StandardLoggerOptions) *log.Logger {
	return log.New(r.StandardWriter(o), "", 0)
}

func (r *raftLog) StandardWriter(*hclog.StandardLoggerOptions) io.Writer { return lineWriter{r.log} }

// lineWriter logs each line written to it.
type lineWriter struct{ log *slog.Logger }

func (w lineWriter) Write(b []byte) (int, error) {
	w.log.Info("raft output", "line", string(b))
	return len(b), nil
}
