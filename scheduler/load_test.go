package scheduler

import (
	"log/slog"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// TestEventLoop_IngestSize checks that an entry has fewer ingests the longer commits take,
// and all again soon after.
func TestEventLoop_IngestSize(t *testing.T) {
	e := &eventLoop{}
	for range 100 {
		e.noteCommit(slowCommit)
	}
	if e.ingestSize() != maxIngestSize {
		t.Errorf("%d bytes at a commit time of %s", e.ingestSize(), e.commitTime)
	}
	for range 100 {
		e.noteCommit(slowCommit / 4 * 5)
	}
	if size := e.ingestSize(); size < maxIngestSize/5*4 || size > maxIngestSize/5*4*11/10 {
		t.Errorf("%d bytes at a commit time of %s", size, e.commitTime)
	}
	e.noteCommit(time.Hour)
	if e.ingestSize() != minIngestSize {
		t.Errorf("%d bytes at a commit time of %s", e.ingestSize(), e.commitTime)
	}
	e.commitTime = 10 * slowCommit
	for range 10 {
		e.noteCommit(time.Millisecond)
	}
	if e.ingestSize() != maxIngestSize {
		t.Errorf("%d bytes after ten fast commits", e.ingestSize())
	}
}

// TestLanes_Behind checks that received records are not parsed while too many are pending,
// and that the lane is read once they are ingested.
func TestLanes_Behind(t *testing.T) {
	lane := &laneState{ready: true, next: 1, outOfOrder: map[uint64]pendingMessage{}, wake: make(chan uint64, 1)}
	ls := &lanes{loop: &eventLoop{inbox: make(chan func(), 1)}, all: []*laneState{lane}, blocked: "not in this test"}
	const messages = maxPendingRecords / 2
	records := make([]job.Record, 2*messages)
	for i := range records {
		records[i] = job.Record{Position: job.Position{Seq: uint64(i/2 + 1), Index: uint8(i % 2)}, Last: i%2 == 1}
	}
	parsed, _ := parseRecords(slog.New(slog.DiscardHandler), records, "L0", job.Defaults{}, nil)
	ls.receive(lane, parsed)
	if !lane.behind.Load() || len(lane.pending) != messages || lane.pendingRecords != 2*messages {
		t.Fatalf("%d messages with %d records pending", len(lane.pending), lane.pendingRecords)
	}
	ls.receiveRecords([]job.Record{{Position: job.Position{Seq: messages + 5}}})
	(<-ls.loop.inbox)()
	if lane.lastReceived != messages+5 || len(lane.outOfOrder) != 0 {
		t.Errorf("last received %d, %d kept", lane.lastReceived, len(lane.outOfOrder))
	}
}
