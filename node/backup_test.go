package node

import (
	"errors"
	"testing"
	"time"

	"yardmaster/ledger"
)

// A backup whose node died keeps nobody waiting until its hold runs out.
func TestBackup_DeadMaker(t *testing.T) {
	n := alone(t, nil)
	hold := func(holder string) {
		t.Helper()
		if _, err := n.commander.do(t.Context(), &ledger.Hold{Holder: holder, Until: time.Now().Add(ledger.MaxHold)}); err != nil {
			t.Fatal(err)
		}
	}
	hold(n.cfg.Node.Name + "/before-it-was-killed")
	applied(t, n, func() bool { _, _, holder := n.holder(); return holder == "" })

	hold("n9/of-a-node-that-is-not-heard")
	begun, err := n.backups.begin(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, id, _ := n.holder(); id != begun.(backupBegun).Session {
		t.Errorf("held for %s, not for %+v", id, begun)
	}
	if _, err := n.commander.do(t.Context(), &ledger.Hold{Holder: "another", Until: time.Now().Add(time.Minute)}); !errors.Is(err, ledger.ErrHeld) {
		t.Errorf("of a node that makes one: %v", err)
	}
}
