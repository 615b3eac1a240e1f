package cluster

import (
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// A copy of a record that was purged is stored again, although JetStream remembers its first
// publication. While the stream's floor is the same, a repetition stores nothing.
func TestStoreRelocated_AfterPurge(t *testing.T) {
	c := startSingle(t)
	store := func(floor uint64, n int) (seq uint64) {
		t.Helper()
		owner, err := job.ParseID(ownerID(n))
		if err != nil {
			t.Fatal(err)
		}
		seqs, err := c.Writer.StoreRelocated(withDeadline(t, patience), floor, []job.Record{{
			Position: job.Position{Lane: 0, Seq: uint64(n)}, Queue: "mail", Stored: time.Now(), Body: []byte(`{"params":{}}`), Owner: owner,
		}})
		if err != nil || len(seqs) != 1 {
			t.Fatalf("stored at %v, %v", seqs, err)
		}
		return seqs[0]
	}
	first := store(0, 1)
	if again := store(0, 1); again != first {
		t.Errorf("a repeated copy is at %d, want %d", again, first)
	}
	floor := store(0, 2)
	if err := c.Admin.Purge(t.Context(), job.RelocatedLane, floor); err != nil {
		t.Fatal(err)
	}
	moved := store(floor, 1)
	r, err := c.Reader.LoadRecord(withDeadline(t, patience), job.Position{Lane: job.RelocatedLane, Seq: moved})
	if err != nil || r.Owner.String() != ownerID(1) {
		t.Errorf("the copy after the purge is at %d: %+v, %v", moved, r, err)
	}
}
