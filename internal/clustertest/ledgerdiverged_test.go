package clustertest_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/clustertest"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/node"
)

// TestLedgerDiverged corrupts one member's ledger: that member must exit and not start
// again, and the others must report which one it was.
func TestLedgerDiverged(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	cl := clustertest.Start(t, 3, testConfig, func(c *node.Config) { c.Scheduler.ConsistencyCheckInterval = time.Second })
	wrong := cl.Members[0]
	wrong.Node().CorruptLedger(func(l *ledger.Ledger) {
		at := ledger.Stamp{Index: l.Index(), At: l.Now(), Epoch: l.Authority().Epoch}
		l.Apply(at, []ledger.Command{&ledger.AddQueue{ID: [16]byte{7}, Name: "ghost"}})
	})
	ends := func() {
		t.Helper()
		var halt *node.ExitError
		if err := wrong.WaitEnd(); !errors.As(err, &halt) || halt.Code != node.ExitDamaged || !strings.Contains(err.Error(), "cluster replace "+wrong.Name) {
			t.Fatalf("the node ended with %v; want exit code %d and the command that helps", err, node.ExitDamaged)
		}
	}
	ends()
	cl.Eventually("the other members report which one it was", func() error {
		for _, m := range cl.Running() {
			s, err := m.Status()
			if err != nil || s.Readiness.Ready || !strings.Contains(strings.Join(s.Readiness.Reasons, "\n"), "member "+wrong.Name+"'s ledger is not the yard's") {
				return errors.Join(errors.New(m.Name+" reports "+strings.Join(s.Readiness.Reasons, "; ")), err)
			}
		}
		return nil
	})
	wrong.StartAsync()
	ends()
	wrong.Exclude()
}
