package nodetest_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"yardmaster/internal/nodetest"
	"yardmaster/ledger"
	"yardmaster/node"
)

// TestDiverged changes one member's ledger behind agreement's back: that member
// ends itself and does not start again, and the others say which one it was.
func TestDiverged(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	y := nodetest.Start(t, 3, settings, func(c *node.Config) { c.Scheduler.ProveEvery = time.Second })
	wrong := y.Members[0]
	wrong.Node().Disturb(func(l *ledger.Ledger) {
		at := ledger.Stamp{Index: l.Index(), At: l.Now(), Epoch: l.Authority().Epoch}
		l.Apply(at, []ledger.Command{&ledger.AddQueue{ID: [16]byte{7}, Name: "ghost"}})
	})
	ends := func() {
		t.Helper()
		var halt *node.HaltError
		if err := wrong.Ended(); !errors.As(err, &halt) || halt.Code != node.ExitDamaged || !strings.Contains(err.Error(), "cluster replace "+wrong.Name) {
			t.Fatalf("it ended with %v; want exit code %d and what to type", err, node.ExitDamaged)
		}
	}
	ends()
	y.Eventually("the others say who it was", func() error {
		for _, m := range y.Running() {
			s, err := m.Status()
			if err != nil || s.Readiness.Ready || !strings.Contains(strings.Join(s.Readiness.Reasons, "\n"), "member "+wrong.Name+"'s ledger is not the yard's") {
				return errors.Join(errors.New(m.Name+" says "+strings.Join(s.Readiness.Reasons, "; ")), err)
			}
		}
		return nil
	})
	wrong.Begin()
	ends()
	wrong.Lose()
}
