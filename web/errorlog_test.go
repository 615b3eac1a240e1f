package web

import (
	"bytes"
	"io"
	"log/slog"
	"strings"
	"testing"
)

func TestErrorLog(t *testing.T) {
	var out bytes.Buffer
	c := &errorLog{log: slog.New(slog.NewTextHandler(&out, nil))}
	for range 100 {
		if _, err := io.WriteString(c, "http: TLS handshake error from 10.0.0.9:4711: EOF\n"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.WriteString(c, "http: something else\n"); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "10.0.0.9:4711: EOF") || !strings.Contains(lines[0], "count=1") || !strings.Contains(lines[1], "something else") {
		t.Errorf("log %q, want one line for the handshakes and one for the other error", lines)
	}
}
