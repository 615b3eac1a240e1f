package cluster

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func TestServerLog_Strangers(t *testing.T) {
	var out bytes.Buffer
	l := newServerLog(slog.New(slog.NewTextHandler(&out, nil)))
	for i := range 50 {
		l.Errorf(fmt.Sprintf("10.0.0.9:%d - rid:%d - TLS %%s handshake error: %%v", 40000+i, i), "route", "EOF")
		l.Errorf(fmt.Sprintf("10.0.0.9:%d - cid:%d - authentication error", 40000+i, i))
	}
	l.Warnf("disk is %s", "slow")
	l.Warnf("disk is %s", "slow")
	text := out.String()
	for words, times := range map[string]int{"handshake error: EOF": 1, "authentication error": 1, "disk is slow": 2} {
		if n := strings.Count(text, words); n != times {
			t.Errorf("%q is told %d times, want %d", words, n, times)
		}
	}
}
