package embedded

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/logthrottle"
)

// serverLog writes the embedded server's log to the node's log. The server's
// messages contain their details in the text, so each becomes one attribute,
// server_log. Its notices are logged at debug level.
type serverLog struct {
	log *slog.Logger

	throttles sync.Map // by format without connPrefix: *logthrottle.Throttle

	failOnce sync.Once
	Failed   chan struct{} // closed after the first fatal line
	Fatal    string        // that line; read it only after Failed is closed

	damageOnce sync.Once
	Damaged    chan struct{} // closed after the first line about a damaged snapshot
	Damage     string        // that line; read it only after Damaged is closed
}

func newServerLog(log *slog.Logger) *serverLog {
	return &serverLog{log: log, Failed: make(chan struct{}), Damaged: make(chan struct{})}
}

func (l *serverLog) Noticef(format string, v ...any) { l.debug(format, v) }
func (l *serverLog) Debugf(format string, v ...any)  { l.debug(format, v) }
func (l *serverLog) Tracef(format string, v ...any)  { l.debug(format, v) }

func (l *serverLog) debug(format string, v []any) {
	l.log.Debug("nats server notice", "server_log", formatLine(format, v))
}

// Warnf logs a warning of the server. It closes l.Damaged if the warning is about a
// damaged snapshot. The node must stop then: the server would keep receiving the
// group's messages and hold them in memory.
func (l *serverLog) Warnf(format string, v ...any) {
	if text := formatLine(format, v); strings.Contains(text, snapshotDamaged) {
		l.damageOnce.Do(func() {
			l.Damage = text
			close(l.Damaged)
		})
	}
	l.write(slog.LevelWarn, "nats server warning", format, v)
}

// Errorf logs an error of the server.
func (l *serverLog) Errorf(format string, v ...any) {
	l.write(slog.LevelError, "nats server error", format, v)
}

// snapshotDamaged is part of the server's log line about a Raft snapshot that
// fails its checksum. The server does not start such a group and returns no error.
const snapshotDamaged = "Snapshot corrupt"

// connPrefix matches the beginning of a format about one connection: its address
// and number.
var connPrefix = regexp.MustCompile(`^\S+ - [a-z]id:\d+ - `)

// write logs a message of the server, which is format with the arguments v. Messages
// about connections are throttled, because any client can cause them as often as it
// likes.
func (l *serverLog) write(usual slog.Level, message, format string, v []any) {
	text := formatLine(format, v)
	attrs := []any{"server_log", text}
	if prefix := connPrefix.FindString(format); prefix != "" {
		throttle, _ := l.throttles.LoadOrStore(strings.TrimPrefix(format, prefix), &logthrottle.Throttle{})
		count, ok := throttle.(*logthrottle.Throttle).Allow(time.Now())
		if !ok {
			return
		}
		attrs = append(attrs, "count", count)
	}
	l.log.Log(context.Background(), level(usual, text), message, attrs...)
}

// expectedPrefixes are the beginnings of warnings and errors that are logged at
// debug level only. The server writes them while a yard forms or loses a member,
// which the node reports better, and about passwords that never leave the process.
var expectedPrefixes = []string{
	"Error trying to connect to route", "Waiting for routing to be established", "Plaintext passwords detected",
	"JetStream has not established contact with a meta leader", "Metalayer blocking snapshot",
	"TLS certificate chain and hostname of solicited routes will not be verified", // configureTLS verifies them
	"Falling behind in health check", "Health check OK",                           // a health check while an entry is being applied
}

// raftPrefix matches the beginning of a message about a Raft group.
var raftPrefix = regexp.MustCompile(`^RAFT \[[^]]*\] `)

// level returns the level of a message of the server: debug for one that begins with one
// of expectedPrefixes, otherwise usual. It compares the text, because the server passes
// some messages formatted.
func level(usual slog.Level, text string) slog.Level {
	text = strings.TrimPrefix(text, raftPrefix.FindString(text))
	if slices.ContainsFunc(expectedPrefixes, func(prefix string) bool { return strings.HasPrefix(text, prefix) }) {
		return slog.LevelDebug
	}
	return usual
}

// Fatalf records that the server has failed. The server expects its logger to
// exit; instead the node stops, see [github.com/yardmaster-dev/yardmaster/cluster.Server.Run].
func (l *serverLog) Fatalf(format string, v ...any) {
	l.failOnce.Do(func() {
		l.Fatal = formatLine(format, v)
		close(l.Failed)
	})
	l.log.Error("nats server failed", "server_log", formatLine(format, v))
}

func formatLine(format string, v []any) string { return strings.TrimSpace(fmt.Sprintf(format, v...)) }
