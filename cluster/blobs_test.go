package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"
)

// startWithBlobs starts a node whose streams of blobs hold this many bytes.
func startWithBlobs(t *testing.T, bodies, results int64) *testNode {
	t.Helper()
	n := startNode(t, embedded.Config{Node: "solo", Dir: t.TempDir(), ClientListen: "127.0.0.1:0", MaxStore: 1 << 30})
	layout := smallLayout(1)
	layout.MaxBlobBytes, layout.ResultBytes = bodies, results
	if _, err := n.Admin.EnsureStreams(t.Context(), layout); err != nil {
		t.Fatal(err)
	}
	return n
}

// messages returns the number of messages in a stream.
func messages(t *testing.T, n *testNode, stream string) uint64 {
	t.Helper()
	info, err := streams.Info(t.Context(), n.local.JS, stream)
	if err != nil {
		t.Fatal(err)
	}
	return info.State.Msgs
}

func ownerID(i int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", i) }

func TestBlobs(t *testing.T) {
	c := startSingle(t)
	data := bytes.Repeat([]byte("0123456789abcdef"), 100<<10) // 1.6 MB, four chunks
	owner := ownerID(1)
	blob, err := c.Writer.StoreBody(t.Context(), owner, data)
	if err != nil {
		t.Fatal(err)
	}
	if blob.Chunks != 4 || blob.Size != int64(len(data)) || blob.Owner().String() != owner {
		t.Fatalf("reference %+v", blob)
	}
	got, err := c.Reader.LoadBlob(t.Context(), streams.BodyBlobs, blob)
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("read %d bytes, %v", len(got), err)
	}
	record := fmt.Appendf(nil, `{"function":"big","blob":{"name":%q,"chunks":%d,"size":%d,"sha256":%q}}`, blob.Name, blob.Chunks, blob.Size, blob.SHA256)
	a, err := publishWait(withDeadline(t, patience), c.Publisher, "mail", "", time.Time{}, record)
	if err != nil {
		t.Fatal(err)
	}
	const lane = "lane 0 of this yard"
	stored, err := c.Reader.LoadRecord(t.Context(), a.Position)
	if err != nil {
		t.Fatal(err)
	}
	id := job.RecordID(lane, stored.Position, stored.Stored)
	if got, err := c.Reader.Load(t.Context(), a.Position, id, lane); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("body that the record refers to: %d bytes, %v", len(got), err)
	}
	bad := blob
	bad.SHA256 = strings.Repeat("0", 64)
	var corrupt *streams.CorruptBlobError
	if _, err := c.Reader.LoadBlob(t.Context(), streams.BodyBlobs, bad); !errors.As(err, &corrupt) {
		t.Fatalf("wrong checksum: %v", err)
	}
	for range 2 { // the second time there is nothing to remove
		if err := c.Admin.RemoveBody(t.Context(), blob.Name); err != nil {
			t.Fatal(err)
		}
	}
	_, err = c.Reader.LoadBlob(t.Context(), streams.BodyBlobs, blob)
	wantErr(t, err, streams.ErrNotStored)
}

// TestLoadBlobRange checks ranges that begin and end within, at and beyond the bounds of
// chunks.
func TestLoadBlobRange(t *testing.T) {
	c := startSingle(t)
	const chunk = 512 << 10
	data := make([]byte, 2*chunk+1000)
	for i := range data {
		data[i] = byte(i / 7)
	}
	blob, err := c.Writer.StoreResult(t.Context(), ownerID(1)+".1", data)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range [][2]int64{{0, 1}, {0, chunk}, {chunk - 1, 2}, {chunk, chunk}, {5, 2 * chunk}, {2 * chunk, 5000}, {int64(len(data)), 1}, {-1, 1}, {0, 0}} {
		var want []byte
		if r[0] >= 0 {
			want = data[r[0]:min(r[0]+r[1], int64(len(data)))]
		}
		got, err := c.Reader.LoadBlobRange(t.Context(), streams.ResultBlobs, blob, r[0], r[1])
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes from %d: %d bytes, %v; want %d", r[1], r[0], len(got), err, len(want))
		}
	}
}

// TestStoreBody_Full checks that a body for which there is no space is refused with a
// delay and leaves nothing behind, that others are still accepted, and that the space of
// a removed body is available again.
func TestStoreBody_Full(t *testing.T) {
	c := startWithBlobs(t, 4<<20, 4<<20)
	large := bytes.Repeat([]byte("x"), 3<<20)
	first, err := c.Writer.StoreBody(t.Context(), ownerID(1), large)
	if err != nil {
		t.Fatal(err)
	}
	before := messages(t, c, subjects.StreamBlobs)
	_, err = c.Writer.StoreBody(t.Context(), ownerID(2), large)
	unavailable, ok := errors.AsType[*job.UnavailableError](err)
	if !ok || unavailable.RetryAfter <= 0 || !strings.Contains(unavailable.Reason, subjects.StreamBlobs) {
		t.Errorf("without space: %v, want an error with the stream's name and a delay", err)
	}
	if got := messages(t, c, subjects.StreamBlobs); got != before {
		t.Errorf("the stream has %d messages after the refusal, %d before", got, before)
	}
	if _, err := c.Writer.StoreBody(t.Context(), ownerID(3), large[:100<<10]); err != nil {
		t.Errorf("a body that fits: %v", err)
	}
	if _, err := c.Writer.StoreBody(t.Context(), ownerID(4), bytes.Repeat([]byte("x"), 5<<20)); !errors.Is(err, job.ErrTooLarge) {
		t.Errorf("a body that is larger than the stream: %v, want that it is too large", err)
	}
	if err := c.Admin.RemoveBody(t.Context(), first.Name); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the space to be available", func() error {
		_, err := c.Writer.StoreBody(t.Context(), ownerID(5), large)
		return err
	})
}

// TestStoreBody_RefusedByStream checks that chunks are removed again if the stream
// refuses one of them, because another node was faster.
func TestStoreBody_RefusedByStream(t *testing.T) {
	c := startWithBlobs(t, 4<<20, 4<<20)
	other := streams.NewWriter(c.local)
	if _, err := other.StoreBody(t.Context(), ownerID(1), []byte("x")); err != nil { // it knows that the stream is empty
		t.Fatal(err)
	}
	large := bytes.Repeat([]byte("x"), 3<<20)
	if _, err := c.Writer.StoreBody(t.Context(), ownerID(2), large); err != nil {
		t.Fatal(err)
	}
	before := messages(t, c, subjects.StreamBlobs)
	_, err := other.StoreBody(t.Context(), ownerID(3), large)
	if unavailable, ok := errors.AsType[*job.UnavailableError](err); !ok || unavailable.RetryAfter <= 0 {
		t.Errorf("without space: %v, want an error with a delay", err)
	}
	if got := messages(t, c, subjects.StreamBlobs); got != before {
		t.Errorf("the stream has %d messages after the refusal, %d before", got, before)
	}
}

// TestStoreResult_Evicts checks that results are always stored: older ones are evicted,
// and reading an evicted one returns [streams.ErrNotStored].
func TestStoreResult_Evicts(t *testing.T) {
	c := startWithBlobs(t, 4<<20, 4<<20)
	result := bytes.Repeat([]byte("r"), 1<<20)
	var blobs []job.Blob
	for i := range 12 {
		blob, err := c.Writer.StoreResult(t.Context(), ownerID(i)+".1", result)
		if err != nil {
			t.Fatalf("result %d: %v", i, err)
		}
		blobs = append(blobs, blob)
	}
	if got, err := c.Reader.LoadBlob(t.Context(), streams.ResultBlobs, blobs[11]); err != nil || !bytes.Equal(got, result) {
		t.Errorf("the newest result: %d bytes, %v", len(got), err)
	}
	_, err := c.Reader.LoadBlob(t.Context(), streams.ResultBlobs, blobs[0])
	wantErr(t, err, streams.ErrNotStored)
	if _, err := c.Writer.StoreResult(t.Context(), ownerID(20)+".1", bytes.Repeat(result, 5)); !errors.Is(err, job.ErrTooLarge) {
		t.Errorf("a result that is larger than the stream: %v, want that it is too large", err)
	}
}

// TestBodies checks that bodies are listed once each, whatever their number of chunks.
func TestBodies(t *testing.T) {
	c := startSingle(t)
	if bodies, err := c.Admin.Bodies(t.Context()); err != nil || len(bodies) != 0 {
		t.Fatalf("of an empty stream: %+v, %v", bodies, err)
	}
	stored := map[string]string{}
	for i, size := range []int{1, 600 << 10, 2 << 20} {
		blob, err := c.Writer.StoreBody(t.Context(), ownerID(i), bytes.Repeat([]byte("x"), size))
		if err != nil {
			t.Fatal(err)
		}
		stored[blob.Name] = ownerID(i)
	}
	bodies, err := c.Admin.Bodies(t.Context())
	if err != nil || len(bodies) != len(stored) {
		t.Fatalf("%+v, %v", bodies, err)
	}
	for _, b := range bodies {
		if stored[b.Name] != b.Owner.String() || time.Since(b.Stored).Abs() > time.Minute {
			t.Errorf("unexpected body %+v", b)
		}
	}
}

// TestBlobs_RepeatedChunk checks that a stream drops the repetition of a chunk whose
// acknowledgement was lost, and stores a result again whose chunks were removed.
func TestBlobs_RepeatedChunk(t *testing.T) {
	n := startSingle(t)
	data, name := bytes.Repeat([]byte("x"), 100<<10), ownerID(1)+".1"
	blob, err := n.Writer.StoreResult(t.Context(), name, data)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := n.local.JS.Stream(t.Context(), subjects.StreamResultBlobs)
	if err != nil {
		t.Fatal(err)
	}
	chunk, err := stream.GetMsg(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	ack, err := n.local.JS.PublishMsg(t.Context(), &nats.Msg{Subject: chunk.Subject, Header: chunk.Header, Data: chunk.Data})
	if err != nil || !ack.Duplicate {
		t.Errorf("the repetition of a chunk: %+v, %v", ack, err)
	}
	if err := stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	again, err := n.Writer.StoreResult(t.Context(), name, data)
	if err != nil || again != blob {
		t.Fatalf("stored again: %+v, %v; want %+v", again, err, blob)
	}
	if got, err := n.Reader.LoadBlob(t.Context(), streams.ResultBlobs, again); err != nil || !bytes.Equal(got, data) {
		t.Errorf("read %d bytes, %v", len(got), err)
	}
}

// TestEnsureStreams_Generation checks that in a cluster made by an earlier release only
// the streams are created that were added since.
func TestEnsureStreams_Generation(t *testing.T) {
	c := startSingle(t)
	remove := func(name string) {
		if err := c.local.JS.DeleteStream(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	ensure := func(create bool, created uint8) error {
		layout := smallLayout(1)
		layout.Create, layout.Created = create, created
		_, err := c.Admin.EnsureStreams(t.Context(), layout)
		return err
	}
	remove(subjects.StreamResultBlobs)
	wantErr(t, ensure(false, 2), streams.ErrStreamMissing)
	wantErr(t, ensure(true, 2), streams.ErrStreamMissing)
	if err := ensure(true, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := c.local.JS.Stream(t.Context(), subjects.StreamResultBlobs); err != nil {
		t.Fatal(err)
	}
	remove(subjects.StreamBlobs)
	wantErr(t, ensure(true, 1), streams.ErrStreamMissing)
	if _, err := c.local.JS.Stream(t.Context(), subjects.StreamBlobs); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("a lost stream was created again: %v", err)
	}
}
