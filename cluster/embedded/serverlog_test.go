package embedded

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// TestServerLog_Damaged checks that a damaged snapshot, which only the server's
// log reports, is detected.
func TestServerLog_Damaged(t *testing.T) {
	l := newServerLog(slog.New(slog.DiscardHandler))
	l.Warnf("%s", "RAFT [yrzKKRBu - S-R3F-a] Falling behind")
	select {
	case <-l.Damaged:
		t.Fatal("another warning counts as damage")
	default:
	}
	const text = "RAFT [yrzKKRBu - S-R3F-a] Snapshot corrupt, checksums did not match"
	l.Warnf("%s", text)
	l.Warnf("%s", "RAFT [yrzKKRBu - S-R3F-b] Snapshot corrupt, too short")
	<-l.Damaged
	if l.Damage != text {
		t.Errorf("damage %q, want %q", l.Damage, text)
	}
}

func TestServerLog_Throttled(t *testing.T) {
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
			t.Errorf("%q is logged %d times, want %d", words, n, times)
		}
	}
}

// TestServerLog_Expected checks that what the server reports while a yard forms is not a
// warning, whether the server formats it itself or not.
func TestServerLog_Expected(t *testing.T) {
	var out bytes.Buffer
	l := newServerLog(slog.New(slog.NewTextHandler(&out, nil)))
	l.Warnf("%s", "JetStream has not established contact with a meta leader")
	l.Warnf("Waiting for routing to be established...")
	l.Warnf("RAFT [yrzKKRBu - _meta_] Falling behind in health check, commit %d != applied %d", 4, 3)
	l.Errorf("Error trying to connect to route (attempt %d): %v", 1, "refused")
	if out.Len() > 0 {
		t.Errorf("logged %s", &out)
	}
	l.Warnf("%s", "RAFT [yrzKKRBu - _meta_] Error storing entries: Falling behind in health check")
	if !strings.Contains(out.String(), "WARN") {
		t.Errorf("another warning is logged as %s", &out)
	}
}
