package index

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
)

// TestIndex_Unusable checks that a directory that cannot be opened is an error of searches, not of the
// start, and that the index continues when it can be.
func TestIndex_Unusable(t *testing.T) {
	y := newReplica(t, 1)
	for range 20 {
		y.step()
	}
	y.check(2)
	y.stop()
	if err := os.RemoveAll(y.dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(y.dir, nil, 0o600); err != nil { // in place of the directory
		t.Fatal(err)
	}
	y.start()
	for range 20 {
		y.step()
	}
	_, err := y.index.HandleFind(context.Background(), &api.JobFindRequest{})
	if unavailable, ok := errors.AsType[*job.UnavailableError](err); !ok || !strings.Contains(unavailable.Reason, "node n1, which takes no changes, and is tried again every 5ms: open the index: mkdir") {
		t.Fatalf("a search fails with %v", err)
	}
	if s := y.index.Status(); s.Failures != 1 {
		t.Errorf("%d failures", s.Failures)
	}
	if w := y.index.Warnings(); len(w) != 1 || !strings.Contains(w[0], "takes no changes") {
		t.Errorf("warnings: %q", w)
	}
	if err := os.Remove(y.dir); err != nil {
		t.Fatal(err)
	}
	y.rebuilt()
	y.check(10)
	if w, r := y.index.Warnings(), y.index.Report(); len(w) > 0 || r.Rebuilt != 1 || r.Failures != 1 || r.Lag != 0 {
		t.Errorf("warnings: %q; %+v", w, r)
	}
}

// TestIndex_WriteFails checks that an index that cannot write continues with all jobs of the ledger.
func TestIndex_WriteFails(t *testing.T) {
	y := newReplica(t, 2)
	for range 30 {
		y.step()
	}
	y.check(2)
	y.index.mu.Lock()
	_ = y.index.spool.file.Close() // a write fails
	y.index.mu.Unlock()
	y.step()
	y.await("the index has failed", func(s Status) bool { return s.Failures == 1 })
	for range 10 {
		y.step()
	}
	y.rebuilt()
	y.check(10)
	if names, _ := filepath.Glob(filepath.Join(y.dir, "spool-*")); len(names) == 0 {
		t.Error("no spool")
	}
}
