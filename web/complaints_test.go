package web

import (
	"bytes"
	"io"
	"log/slog"
	"strings"
	"testing"
)

func TestComplaints(t *testing.T) {
	var out bytes.Buffer
	c := &complaints{log: slog.New(slog.NewTextHandler(&out, nil))}
	for range 100 {
		if _, err := io.WriteString(c, "http: TLS handshake error from 10.0.0.9:4711: EOF\n"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.WriteString(c, "http: something else\n"); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "10.0.0.9:4711: EOF") || !strings.Contains(lines[0], "times=1") || !strings.Contains(lines[1], "something else") {
		t.Errorf("the log says %q", lines)
	}
}
