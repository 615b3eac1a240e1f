package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
)

// serverLog carries the embedded server's words into the node's log. The
// server speaks in sentences with the facts inside, so they travel as one
// attribute; its notices are our debug lines.
type serverLog struct {
	log *slog.Logger

	once   sync.Once
	failed chan struct{} // closed at the first fatal line
	fatal  string        // that line; read after failed is closed
}

func newServerLog(log *slog.Logger) *serverLog {
	return &serverLog{log: log, failed: make(chan struct{})}
}

func (l *serverLog) Noticef(format string, v ...any) { l.quiet(format, v) }
func (l *serverLog) Debugf(format string, v ...any)  { l.quiet(format, v) }
func (l *serverLog) Tracef(format string, v ...any)  { l.quiet(format, v) }

func (l *serverLog) quiet(format string, v []any) {
	l.log.Debug("nats server", "says", say(format, v))
}

// Warnf and Errorf pass on what somebody should read.
func (l *serverLog) Warnf(format string, v ...any) {
	l.log.Log(context.Background(), level(slog.LevelWarn, format), "nats server warns", "says", say(format, v))
}

func (l *serverLog) Errorf(format string, v ...any) {
	l.log.Log(context.Background(), level(slog.LevelError, format), "nats server errs", "says", say(format, v))
}

// expected is what the server says while a yard forms or loses a member, which
// the node tells better itself, and of passwords that never leave the process.
var expected = []string{
	"Error trying to connect to route", "Waiting for routing to be established", "Plaintext passwords detected",
	"JetStream has not established contact with a meta leader", "Metalayer blocking snapshot",
	"TLS certificate chain and hostname of solicited routes will not be verified", // they are, by us: speakTLS
}

func level(usual slog.Level, format string) slog.Level {
	for _, words := range expected {
		if strings.HasPrefix(format, words) {
			return slog.LevelDebug
		}
	}
	return usual
}

// Fatalf is the server giving up: it returns from its start and would stand
// there half alive, so the node has to end with it.
func (l *serverLog) Fatalf(format string, v ...any) {
	l.once.Do(func() {
		l.fatal = say(format, v)
		close(l.failed)
	})
	l.log.Error("nats server failed", "says", say(format, v))
}

func say(format string, v []any) string { return strings.TrimSpace(fmt.Sprintf(format, v...)) }
