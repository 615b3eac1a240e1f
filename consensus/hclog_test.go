package consensus

import (
	"log/slog"
	"slices"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/yardmaster-dev/yardmaster/test/testlog"
)

// TestRaftLog_FirstElection checks that only the election that follows the loss of a
// leader is a warning.
func TestRaftLog_FirstElection(t *testing.T) {
	log, logged := testlog.NewRecorder(t)
	r := newRaftLog(log)
	for _, last := range []raft.ServerID{"", "n2-1"} {
		r.Warn(firstElection, "last-leader-addr", raft.ServerAddress(last), "last-leader-id", last)
	}
	if got := logged.Messages(slog.LevelWarn); !slices.Equal(got, []string{firstElection}) {
		t.Errorf("warnings %q, want one", got)
	}
}
