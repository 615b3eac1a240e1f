package web

import (
	"log/slog"
	"strings"
	"time"

	"yardmaster/internal/seldom"
)

// complaints carries what the HTTP server complains of into the node's log: of
// handshakes, which any stranger can fail as often as he likes, now and then.
type complaints struct {
	log        *slog.Logger
	handshakes seldom.Counter
}

// Write takes one line.
func (c *complaints) Write(line []byte) (int, error) {
	says := strings.TrimSpace(string(line))
	if !strings.HasPrefix(says, "http: TLS handshake error") {
		c.log.Warn("http server warns", "says", says)
	} else if n, say := c.handshakes.Again(time.Now()); say {
		c.log.Warn("http server refuses a client", "says", says, "times", n)
	}
	return len(line), nil
}
