package web

import (
	"log/slog"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/logthrottle"
)

// errorLog writes the messages of the HTTP server to the node's log. Failed TLS
// handshakes are throttled, because any client can cause them.
type errorLog struct {
	log        *slog.Logger
	handshakes logthrottle.Throttle
}

// Write logs one line.
func (c *errorLog) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	if !strings.HasPrefix(text, "http: TLS handshake error") {
		c.log.Warn("http server error", "err", text)
	} else if n, report := c.handshakes.Allow(time.Now()); report {
		c.log.Warn("http client refused", "err", text, "count", n)
	}
	return len(line), nil
}
