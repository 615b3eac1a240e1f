package consensus

import (
	"io"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// TestTransport_CommitIndex sends a follower messages of a leader that has committed more
// than it sends. The follower must not learn of a commit beyond the last entry sent, because
// what it has there may not be what was committed.
func TestTransport_CommitIndex(t *testing.T) {
	newTCP := func() *raft.NetworkTransport {
		n, err := raft.NewTCPTransport("127.0.0.1:0", nil, 1, time.Minute, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = n.Close() })
		return n
	}
	leader, follower := &trackingTransport{new(watermarks), newTCP()}, newTCP()
	for _, c := range []struct {
		name                    string
		prev, entries, commit   uint64
		wantCommit, wantOnPeers uint64
	}{
		{"heartbeat", 0, 0, 0, 0, 0},
		{"no entries", 5, 0, 9, 5, 5},
		{"fewer entries than committed", 5, 2, 9, 7, 7},
		{"more entries than committed", 7, 8, 9, 9, 9},
	} {
		received := make(chan uint64, 1)
		go func() {
			rpc := <-follower.Consumer()
			received <- rpc.Command.(*raft.AppendEntriesRequest).LeaderCommitIndex
			rpc.Respond(&raft.AppendEntriesResponse{Success: true}, nil)
		}()
		args := &raft.AppendEntriesRequest{PrevLogEntry: c.prev, LeaderCommitIndex: c.commit}
		for i := range c.entries {
			args.Entries = append(args.Entries, &raft.Log{Index: c.prev + 1 + i})
		}
		var reply raft.AppendEntriesResponse
		if err := leader.AppendEntries("n2", follower.LocalAddr(), args, &reply); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if got := <-received; got != c.wantCommit {
			t.Errorf("%s: the follower received commit index %d, want %d", c.name, got, c.wantCommit)
		}
		if got := leader.watermarks.peerIndex("n2"); got != c.wantOnPeers {
			t.Errorf("%s: watermark of the follower is %d, want %d", c.name, got, c.wantOnPeers)
		}
	}
}
