package cluster

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"
)

// TestPurgedRecordWhileLeaderMoves reads a record that was purged while the lane's
// leadership moves, as it does after a member has returned. For a moment no replica has a
// leader, and each answers that there is none.
func TestPurgedRecordWhileLeaderMoves(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	nodes := startCluster(t)
	n1 := nodes[0]
	stream := subjects.LaneStream(0)
	for range 10 {
		if _, err := n1.local.JS.Publish(t.Context(), subjects.LaneSubject(0, subjects.NodePublish, "mail"), jobBody(1)); err != nil {
			t.Fatal(err)
		}
	}
	info, err := n1.Reader.LaneInfo(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	at := job.Position{Lane: 0, Seq: 1}
	record, err := n1.Reader.LoadRecord(withDeadline(t, patience), at)
	if err != nil {
		t.Fatal(err)
	}
	if err := n1.Admin.Purge(t.Context(), 0, 5); err != nil {
		t.Fatal(err)
	}
	id := job.RecordID(info.Identity, record.Position, record.Stored)

	var moved atomic.Bool
	failed := make(chan error, 8)
	for i := range cap(failed) {
		go func() {
			reader, reads := nodes[i%len(nodes)].Reader, 0
			for ; !moved.Load(); reads++ {
				_, err := reader.LoadVerified(withDeadline(t, patience), at, id, info.Identity)
				if err != nil && !errors.Is(err, streams.ErrNotStored) { // a replica may not have applied the purge yet
					failed <- fmt.Errorf("read %d at %s: %w", reads, nodes[i%len(nodes)].cfg.Node, err)
					return
				}
			}
			failed <- nil
		}()
	}
	for i := range 6 {
		next := nodes[(i+1)%len(nodes)]
		eventually(t, "leadership to move", func() error {
			if next.local.NATS.JetStreamIsStreamLeader(embedded.AccountYard, stream) {
				return nil
			}
			return errors.Join(errors.New("another replica leads"), requestStepDown(t, n1.local.API, "STREAM.LEADER.STEPDOWN."+stream, next.cfg.Identity))
		})
		time.Sleep(50 * time.Millisecond) // some reads with that leader
	}
	moved.Store(true)
	for range cap(failed) {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
}
