package consensus

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/hashicorp/go-hclog"
)

// raftLog is an hclog.Logger for Raft that writes to a slog.Logger. Raft gives it no
// name and does not ask for its level, so these methods are those of a null logger.
type raftLog struct {
	hclog.Logger
	log *slog.Logger
}

func newRaftLog(log *slog.Logger) *raftLog {
	return &raftLog{Logger: hclog.NewNullLogger(), log: log}
}

// levels maps hclog's levels to slog's. Raft's trace messages are logged as
// debug messages.
var levels = map[hclog.Level]slog.Level{
	hclog.Trace: slog.LevelDebug, hclog.Debug: slog.LevelDebug, hclog.Info: slog.LevelInfo,
	hclog.Warn: slog.LevelWarn, hclog.Error: slog.LevelError,
}

// firstElection is Raft's warning before an election. If it names no last leader, the
// group has just started.
const firstElection = "heartbeat timeout reached, starting election"

// Log logs a message. Arguments that hclog would format are formatted first.
func (r *raftLog) Log(level hclog.Level, msg string, args ...any) {
	if i := slices.Index(args, any("last-leader-id")); msg == firstElection && i >= 0 && i+1 < len(args) && fmt.Sprint(args[i+1]) == "" {
		level = hclog.Info
	}
	for i, arg := range args {
		if format, ok := arg.(hclog.Format); ok && len(format) > 0 {
			args[i] = fmt.Sprintf(fmt.Sprint(format[0]), format[1:]...)
		}
	}
	r.log.Log(context.Background(), levels[level], msg, args...)
}

func (r *raftLog) Trace(msg string, args ...any) { r.Log(hclog.Trace, msg, args...) }
func (r *raftLog) Debug(msg string, args ...any) { r.Log(hclog.Debug, msg, args...) }
func (r *raftLog) Info(msg string, args ...any)  { r.Log(hclog.Info, msg, args...) }
func (r *raftLog) Warn(msg string, args ...any)  { r.Log(hclog.Warn, msg, args...) }
func (r *raftLog) Error(msg string, args ...any) { r.Log(hclog.Error, msg, args...) }

func (r *raftLog) With(args ...any) hclog.Logger  { return newRaftLog(r.log.With(args...)) }
func (r *raftLog) Named(string) hclog.Logger      { return r }
func (r *raftLog) ResetNamed(string) hclog.Logger { return r }
