package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"time"

	"yardmaster/internal/seldom"
)

// serverLog carries the embedded server's words into the node's log. The
// server speaks in sentences with the facts inside, so they travel as one
// attribute; its notices are our debug lines.
type serverLog struct {
	log *slog.Logger

	strangers sync.Map // by what is said of them: *seldom.Counter

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
	l.tell(level(slog.LevelWarn, format), "nats server warns", format, v)
}

func (l *serverLog) Errorf(format string, v ...any) {
	l.tell(level(slog.LevelError, format), "nats server errs", format, v)
}

// ofConnection is how the server begins a format about one connection: with its
// address and number.
var ofConnection = regexp.MustCompile(`^\S+ - [a-z]id:\d+ - `)

// tell passes on. What is wrong with a connection anybody can bring about as
// often as he likes: that is told now and then.
func (l *serverLog) tell(level slog.Level, message, format string, v []any) {
	words := []any{"says", say(format, v)}
	if at := ofConnection.FindStringIndex(format); at != nil {
		counter, _ := l.strangers.LoadOrStore(format[at[1]:], &seldom.Counter{})
		n, now := counter.(*seldom.Counter).Again(time.Now())
		if !now {
			return
		}
		words = append(words, "times", n)
	}
	l.log.Log(context.Background(), level, message, words...)
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
