package embedded

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
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

	once   sync.Once
	Failed chan struct{} // closed after the first fatal line
	Fatal  string        // that line; read after failed is closed

	damageOnce sync.Once
	Damaged    chan struct{} // closed after the first line about a damaged snapshot
	Damage     string        // that line; read after damaged is closed
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

// Warnf logs a warning of the server.
func (l *serverLog) Warnf(format string, v ...any) {
	l.noteDamage(formatLine(format, v))
	l.write(level(slog.LevelWarn, format), "nats server warning", format, v)
}

// Errorf logs an error of the server.
func (l *serverLog) Errorf(format string, v ...any) {
	l.write(level(slog.LevelError, format), "nats server error", format, v)
}

// snapshotDamaged is part of the server's log line about a Raft snapshot that
// fails its checksum. The server does not start such a group and returns no error.
const snapshotDamaged = "Snapshot corrupt"

// noteDamage closes l.damaged if text reports a damaged snapshot. The node must
// stop then: the server would keep receiving the group's messages and hold them in
// memory.
func (l *serverLog) noteDamage(text string) {
	if strings.Contains(text, snapshotDamaged) {
		l.damageOnce.Do(func() {
			l.Damage = text
			close(l.Damaged)
		})
	}
}

// connPrefix matches the beginning of a format about one connection: its address
// and number.
var connPrefix = regexp.MustCompile(`^\S+ - [a-z]id:\d+ - `)

// write logs a message. Messages about connections are throttled, because any
// client can cause them as often as it likes.
func (l *serverLog) write(level slog.Level, message, format string, v []any) {
	attrs := []any{"server_log", formatLine(format, v)}
	if at := connPrefix.FindStringIndex(format); at != nil {
		throttle, _ := l.throttles.LoadOrStore(format[at[1]:], &logthrottle.Throttle{})
		n, ok := throttle.(*logthrottle.Throttle).Allow(time.Now())
		if !ok {
			return
		}
		attrs = append(attrs, "count", n)
	}
	l.log.Log(context.Background(), level, message, attrs...)
}

// expectedPrefixes are the beginnings of warnings and errors that are logged at
// debug level only. The server writes them while a yard forms or loses a member,
// which the node reports better, and about passwords that never leave the process.
var expectedPrefixes = []string{
	"Error trying to connect to route", "Waiting for routing to be established", "Plaintext passwords detected",
	"JetStream has not established contact with a meta leader", "Metalayer blocking snapshot",
	"TLS certificate chain and hostname of solicited routes will not be verified", // configureTLS verifies them
}

// level returns usual, or the debug level for a format with one of
// expectedPrefixes.
func level(usual slog.Level, format string) slog.Level {
	for _, words := range expectedPrefixes {
		if strings.HasPrefix(format, words) {
			return slog.LevelDebug
		}
	}
	return usual
}

// Fatalf records that the server has failed. The server expects its logger to
// exit; instead the node stops, see [github.com/yardmaster-dev/yardmaster/cluster.Server.Run].
func (l *serverLog) Fatalf(format string, v ...any) {
	l.once.Do(func() {
		l.Fatal = formatLine(format, v)
		close(l.Failed)
	})
	l.log.Error("nats server failed", "server_log", formatLine(format, v))
}

func formatLine(format string, v []any) string { return strings.TrimSpace(fmt.Sprintf(format, v...)) }
