package node

import (
	"errors"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/ledger"
)

// A hold whose node has lost its backup is released before it expires.
func TestBackup_HoldOfDeadNodeReleased(t *testing.T) {
	n := startSingleNode(t, nil)
	hold := func(holder string) {
		t.Helper()
		if _, err := n.proposer.propose(t.Context(), &ledger.Hold{Holder: holder, Until: time.Now().Add(ledger.MaxHold)}); err != nil {
			t.Fatal(err)
		}
	}
	hold(n.cfg.Node.Name + "/before-it-was-killed")
	waitApplied(t, n, func() bool { _, _, holder := n.backupHolder(); return holder == "" })

	hold("n9/of-a-node-that-is-not-heard")
	begun, err := n.backups.begin(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, id, _ := n.backupHolder(); id != begun.(backupReply).Session {
		t.Errorf("hold of session %s, want %+v", id, begun)
	}
	if _, err := n.proposer.propose(t.Context(), &ledger.Hold{Holder: "another", Until: time.Now().Add(time.Minute)}); !errors.Is(err, ledger.ErrBackupRunning) {
		t.Errorf("the node of a running backup: %v", err)
	}
}
