package clustertest_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/yardmaster-dev/yardmaster/consensus/wal"
	"github.com/yardmaster-dev/yardmaster/node"
	"github.com/yardmaster-dev/yardmaster/node/config"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// TestLedgerDiverged changes an entry in one member's log, with a valid checksum, so that
// the member's ledger differs from the others': the member must exit and not start again,
// and the others must report which one it was.
func TestLedgerDiverged(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	t.Parallel()
	// Longer than the member is down: it answers for the newest check only, and the
	// others wait for its answer to an older one.
	cl := clustertest.Start(t, 3, testConfig, func(c *config.Config) { c.Scheduler.ConsistencyCheckInterval = 5 * time.Second })
	cl.Members[0].AddQueue(t, "genuine", 0)
	wrong := cl.Members[0]
	wrong.Stop()
	changeLog(t, wrong.Config.Node.DataDir, "genuine", "changed")
	ends := func() {
		t.Helper()
		wrong.StartAsync()
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
	ends()
	wrong.Exclude()
}

// changeLog replaces old by text, of the same length, in the entries of a stopped
// member's log, and corrects their checksums.
func changeLog(t *testing.T, dataDir, old, text string) {
	t.Helper()
	log, err := wal.Open(filepath.Join(dataDir, "raft", "log"), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	first, err1 := log.FirstIndex()
	last, err2 := log.LastIndex()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	var entries []*raft.Log
	changed := 0
	for i := first; i <= last; i++ {
		entry := new(raft.Log)
		if err := log.GetLog(i, entry); err != nil {
			t.Fatal(err)
		}
		entries = append(entries, entry)
		if !bytes.Contains(entry.Data, []byte(old)) {
			continue
		}
		changed++
		entry.Data = bytes.ReplaceAll(entry.Data, []byte(old), []byte(text))
		binary.BigEndian.PutUint32(entry.Data, crc32.Checksum(entry.Data[4:], crc32.MakeTable(crc32.Castagnoli)))
		entry.Extensions = nil // an entry without the outer checksum is valid
	}
	if changed == 0 {
		t.Fatalf("no entry of the log has %q", old)
	}
	if err := errors.Join(log.DeleteRange(first, last), log.StoreLogs(entries)); err != nil {
		t.Fatal(err)
	}
}
