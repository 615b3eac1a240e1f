package consistency

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/test/testlog"
)

func TestCompareHashes(t *testing.T) {
	three, five := []string{"n1", "n2", "n3"}, []string{"n1", "n2", "n3", "n4", "n5"}
	for name, c := range map[string]struct {
		hashes          map[string]string
		members         []string
		diverged, split []string
		says            string
	}{
		"all alike":                      {map[string]string{"n1": "a", "n2": "a", "n3": "a"}, three, nil, nil, ""},
		"one does not answer":            {map[string]string{"n1": "a", "n2": "a"}, three, nil, nil, ""},
		"one has diverged":               {map[string]string{"n1": "a", "n2": "b", "n3": "a"}, three, []string{"n2"}, nil, "run 'yardmaster cluster replace n2'"},
		"two differ, the third is gone":  {map[string]string{"n1": "a", "n3": "b"}, three, nil, []string{"n1", "n3"}, "the ledgers of n1, n3 differ at entry 9"},
		"three have three":               {map[string]string{"n1": "a", "n2": "b", "n3": "c"}, three, nil, three, "no majority says which is right"},
		"two of five":                    {map[string]string{"n1": "a", "n2": "b", "n3": "a", "n4": "b", "n5": "a"}, five, []string{"n2", "n4"}, nil, "member n4's ledger is not the yard's at entry 9"},
		"a majority of the answers only": {map[string]string{"n1": "a", "n2": "a", "n3": "b"}, five, nil, []string{"n1", "n2", "n3"}, "no majority"},
		"one alone":                      {map[string]string{"n1": "a"}, []string{"n1"}, nil, nil, ""},
	} {
		v := compareHashes(c.hashes, c.members)
		text := strings.Join(slices.Sorted(maps.Values(v.findings(9))), "\n")
		if !slices.Equal(v.diverged, c.diverged) || !slices.Equal(v.split, c.split) || !strings.Contains(text, c.says) || (text == "") != (c.says == "") {
			t.Errorf("%s: %+v, %q", name, v, text)
		}
	}
}

// A member whose round has ended learns that another one has diverged from its report,
// and only from one that the round's majority contradicts.
func TestCheck_Diverged(t *testing.T) {
	c := New(Config{Node: "n1", Members: func() []string { return []string{"n1", "n2", "n3"} }}, slog.New(slog.DiscardHandler))
	r := c.beginRound(api.LedgerHash{Node: "n1", Index: 9, Hash: "a"})
	r.hashes["n2"] = "a"
	report := func(index uint64, hash string) (reply api.LedgerHash) {
		request, err := json.Marshal(api.LedgerHash{Node: "n3", Index: index, Hash: hash})
		if err != nil {
			t.Fatal(err)
		}
		text, err := c.ServeDiverged(t.Context(), request)
		if err == nil {
			err = json.Unmarshal(text, &reply)
		}
		if err != nil {
			t.Fatal(err)
		}
		return reply
	}
	if reply := report(10, "b"); reply.Index != 0 {
		t.Errorf("a report about an index that the member has not reached is answered with %+v, want index 0", reply)
	}
	c.endRound(r, c.cfg.Members())
	if reply := report(9, "a"); reply.Hash != "a" || len(c.Reasons()) != 0 {
		t.Errorf("a report of the majority's hash: reply %+v, reasons %q, want none", reply, c.Reasons())
	}
	if report(9, "b"); len(c.Reasons()) != 1 || !strings.Contains(c.Reasons()[0], "member n3's ledger is not the yard's at entry 9") {
		t.Errorf("reasons after a report of another hash: %q", c.Reasons())
	}
	r = c.beginRound(api.LedgerHash{Node: "n1", Index: 10, Hash: "c"})
	r.hashes["n2"] = "c"
	report(10, "d")
	if comparison := c.endRound(r, c.cfg.Members()); !slices.Equal(comparison.diverged, []string{"n3"}) {
		t.Errorf("a report before the round ends is not compared: %+v", comparison)
	}
}

// A finding about a member stays until its hash is seen to be right.
func TestCheck_Record(t *testing.T) {
	c := New(Config{}, slog.New(slog.DiscardHandler))
	three := []string{"n1", "n2", "n3"}
	for _, step := range []struct {
		what    string
		hashes  map[string]string
		members []string
		says    string
	}{
		{"all alike", map[string]string{"n1": "a", "n2": "a", "n3": "a"}, three, ""},
		{"one has diverged", map[string]string{"n1": "a", "n2": "b", "n3": "a"}, three, "member n2's ledger is not the yard's"},
		{"it is gone", map[string]string{"n1": "a", "n3": "a"}, three, "member n2's ledger is not the yard's"},
		{"no other answers", map[string]string{"n1": "a"}, three, "member n2's ledger is not the yard's"},
		{"it was replaced", map[string]string{"n1": "a", "n2": "a", "n3": "a"}, three, ""},
		{"two differ", map[string]string{"n1": "a", "n3": "b"}, three, "the ledgers of n1, n3 differ"},
		{"one of them is gone", map[string]string{"n1": "a"}, three, "the ledgers of n1, n3 differ"},
		{"the third makes a majority", map[string]string{"n1": "a", "n2": "a"}, three, ""},
		{"another has diverged", map[string]string{"n1": "a", "n2": "a", "n3": "b"}, three, "member n3's ledger"},
		{"and is taken out", map[string]string{"n1": "a", "n2": "a"}, three[:2], ""},
	} {
		v := compareHashes(step.hashes, step.members)
		c.recordLocked(&v, &round{own: api.LedgerHash{Index: 9}, hashes: step.hashes}, step.members)
		got := strings.Join(c.Reasons(), "; ")
		if (got == "") != (step.says == "") || !strings.Contains(got, step.says) {
			t.Errorf("%s: %q, want %q", step.what, got, step.says)
		}
	}
}

// TestCheck_MarksDirectoryDurably checks that the mark of a ledger that has diverged is on
// the disk before the node ends: if the mark cannot be synced, the check reports it as not
// set. The mark goes to a device first, which takes writes and no sync.
func TestCheck_MarksDirectoryDurably(t *testing.T) {
	for _, syncs := range []bool{true, false} {
		dir := t.TempDir()
		if !syncs {
			if err := os.Symlink(os.DevNull, filepath.Join(dir, "diverged.new")); err != nil {
				t.Fatal(err)
			}
		}
		log, logged := testlog.NewRecorder(t)
		c := New(Config{
			Node: "n1", Dir: dir, Members: func() []string { return []string{"n1", "n2", "n3"} },
			Request: func(_ context.Context, _, _ string, _, reply any) error {
				*reply.(*api.LedgerHash) = api.LedgerHash{Hash: "another"} // at index 0, as the ledger is empty
				return nil
			},
		}, log)
		err := c.check(t.Context(), ledger.New())
		if _, ok := errors.AsType[*DivergedError](err); !ok {
			t.Fatalf("the check returns %v", err)
		}
		mark, reported := CheckDir(dir, ""), slices.Contains(logged.Messages(slog.LevelError), "data directory not marked as diverged")
		if (mark != nil) != syncs || reported == syncs {
			t.Errorf("synced: %v, marked: %v, reported as not marked: %v", syncs, mark, reported)
		}
	}
}
