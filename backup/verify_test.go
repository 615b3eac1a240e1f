package backup_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/nats-io/nats-server/v2/server/archive"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/backup"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// message is a message of a stream in a test's backup.
type message struct {
	seq     uint64
	subject string
	first   uint64 // number of its first entry; 0: not numbered
	count   uint64
	text    []byte
}

// stream is a stream in a test's backup. Its first and last sequence and its
// number of messages follow from its messages, unless a test sets them.
type stream struct {
	name, identity string
	messages       []message
	last           uint64 // 0: the last message's
}

// fakeBackup is the content of a backup.
type fakeBackup struct {
	ledger  *ledger.Ledger
	streams []stream
}

var large = bytes.Repeat([]byte("large "), 40) // in three chunks

func blobOf(name string) *job.Blob {
	sum := sha256.Sum256(large)
	return &job.Blob{Name: "2026010100." + name, Chunks: 3, Size: int64(len(large)), SHA256: hex.EncodeToString(sum[:])}
}

func chunksOf(name string) (all []message) {
	for i, at := range []int{1, 0, 2} { // in this order
		chunk := large[at*100 : min((at+1)*100, len(large))]
		all = append(all, message{seq: uint64(i + 1), subject: fmt.Sprintf("yard.blob.2026010100.%s.%d", name, at), text: chunk})
	}
	return append(all, message{seq: 4, subject: all[0].subject, text: all[0].text}) // stored twice
}

func record(seq uint64, blob *job.Blob) message {
	text, err := json.Marshal(job.Spec{Function: "do", Blob: blob})
	if err != nil {
		panic(err)
	}
	return message{seq: seq, subject: "yard.lane.0.n.mail", text: text}
}

// newFakeBackup returns a backup with a lane of five records. The first job is
// completed, the second is active, large and relocated, the third waits, and the fourth has
// failed and is large. The fifth record is not ingested yet and is large. Its
// history is up to two entries ahead of the ledger.
func newFakeBackup(t *testing.T) *fakeBackup {
	t.Helper()
	l, at := ledger.New(), ledger.Stamp{Index: 1, Term: 1, At: time.Unix(1000, 0)}
	commit := func(c ledger.Command) {
		t.Helper()
		at.Index++
		if r := l.Apply(at, []ledger.Command{c}); r[0].Err != nil {
			t.Fatal(r[0].Err)
		}
		at.Epoch = l.Authority().Epoch
	}
	commit(&ledger.Lead{Owner: "n1", Until: at.At.Add(time.Hour)})
	commit(&ledger.Bootstrap{Secret: []byte{1}, Lanes: []string{"lane-a"}, StreamsCreated: true})
	jobs := make([]job.Job, 4)
	for i := range jobs {
		jobs[i] = job.Job{ID: job.ID{byte(i + 1)}, Queue: "mail", Accepted: at.At, Position: job.Position{Seq: uint64(i + 1)}}
	}
	commit(&ledger.Ingest{Identity: "lane-a", To: 4, Jobs: jobs, CreateQueues: true})
	commit(&ledger.Place{Placements: []ledger.Placement{
		{Job: jobs[0].ID, N: 1, Node: "n1", Channel: "w"}, {Job: jobs[1].ID, N: 1, Node: "n1", Channel: "w"}, {Job: jobs[3].ID, N: 1, Node: "n1", Channel: "w"},
	}})
	commit(&ledger.Settle{Settlements: []ledger.Settlement{
		{Job: jobs[0].ID, N: 1, Next: job.NextDone, Result: job.Value{Data: []byte("42")}}, {Job: jobs[3].ID, N: 1, Next: job.NextDead, Reason: "no"},
	}})
	published := l.LastEvent()
	if published < 4 || l.LastResult() != 1 || l.LastDeadLetter() != 1 {
		t.Fatalf("%d events, %d results, %d dead letters", published, l.LastResult(), l.LastDeadLetter())
	}
	commit(&ledger.Relocate{Records: []ledger.RelocatedRecord{{Job: jobs[1].ID, From: jobs[1].Position, To: 7}}})
	commit(&ledger.MarkPublished{Events: published, Results: 1, DeadLetters: 1})
	return &fakeBackup{l, []stream{
		{name: "YARD_JOBS_0", identity: "lane-a", messages: []message{record(1, nil), record(2, blobOf("b")), record(3, nil), record(4, blobOf("gone")), record(5, blobOf("e"))}},
		{name: "YARD_RELOCATED", messages: []message{{seq: 7, subject: "yard.relocated.mail", text: record(2, blobOf("b")).text}}},
		{name: "YARD_BLOBS", messages: append(chunksOf("b"), renumbered(chunksOf("e"), 5)...)},
		{name: "YARD_EVENTS", messages: []message{
			{seq: 1, subject: "yard.events", first: 1, count: 2}, {seq: 2, subject: "yard.events", first: 3, count: 1},
			{seq: 3, subject: "yard.events", first: 4, count: published - 3}, {seq: 4, subject: "yard.events", first: published + 1, count: 2},
		}},
		{name: "YARD_RESULTS", messages: []message{{seq: 1, subject: "yard.results", first: 1, count: 1}}},
		{name: "YARD_DLQ", messages: []message{{seq: 1, subject: "yard.dlq.mail", first: 1, count: 1}}},
	}}
}

func renumbered(all []message, from uint64) []message {
	for i := range all {
		all[i].seq = from + uint64(i)
		all[i].subject = strings.Replace(all[i].subject, ".b.", ".e.", 1)
	}
	return all
}

func (s *fakeBackup) stream(name string) *stream {
	return &s.streams[slices.IndexFunc(s.streams, func(of stream) bool { return of.name == name })]
}

func (s *fakeBackup) drop(stream string, seqs ...uint64) {
	of := s.stream(stream)
	of.last = max(of.last, of.messages[len(of.messages)-1].seq)
	of.messages = slices.DeleteFunc(of.messages, func(m message) bool { return slices.Contains(seqs, m.seq) })
}

// archived returns the stream in JetStream's archive format, and its description
// in a manifest.
func (s *stream) archived(t *testing.T) ([]byte, backup.Stream) {
	t.Helper()
	of := backup.Stream{Stream: s.name, Identity: s.identity, Last: s.last, First: s.last + 1, Messages: uint64(len(s.messages))}
	if n := len(s.messages); n > 0 {
		of.First, of.Last = s.messages[0].seq, max(s.last, s.messages[n-1].seq)
	}
	var b bytes.Buffer
	packed := s2.NewWriter(&b)
	out := archive.NewWriter(packed)
	put := func(h *archive.Header, parts ...[]byte) {
		t.Helper()
		err := out.WriteHeader(h)
		for _, part := range parts {
			if err == nil && len(part) > 0 {
				_, err = out.Write(part)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	state, err := json.Marshal(map[string]uint64{"messages": of.Messages, "first_seq": of.First, "last_seq": of.Last})
	if err != nil {
		t.Fatal(err)
	}
	put(&archive.Header{Name: "state.json", PayloadSize: int64(len(state))}, state)
	for _, m := range s.messages {
		header := ""
		if m.first > 0 {
			header = fmt.Sprintf("NATS/1.0\r\nYard-First: %d\r\nYard-Count: %d\r\n\r\n", m.first, m.count)
		}
		of.Bytes += uint64(len(m.subject)+len(header)+len(m.text)) + 30
		put(&archive.Header{Name: m.subject, HeaderSize: int64(len(header)), PayloadSize: int64(len(m.text)), Timestamp: 1, Sequence: m.seq}, []byte(header), m.text)
	}
	put(&archive.Header{})
	if err := packed.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), of
}

// file returns the backup as a file.
func (s *fakeBackup) file(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	w := backup.NewWriter(&b)
	must := func(p backup.Part, err error) backup.Part {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	part := w.Part(backup.LedgerPart)
	if err := s.ledger.Encode(part); err != nil {
		t.Fatal(err)
	}
	l := s.ledger
	m := &backup.Manifest{
		Format: backup.Format, Yard: "y", Node: "n1", Index: l.Index(), LastEvent: l.LastEvent(), LastResult: l.LastResult(),
		LastDead: l.LastDeadLetter(), Ledger: must(part.Close()), Queues: backup.Queues(l),
	}
	for i := range s.streams {
		text, of := s.streams[i].archived(t)
		if of.Stream == "YARD_EVENTS" { // interrupted, and written again under another name
			cut := w.Part(of.Stream)
			cut.Write(text[:len(text)/2]) //nolint:errcheck // to memory
			must(cut.Close())
			part = w.Part(of.Stream + ".2")
		} else {
			part = w.Part(of.Stream)
		}
		part.Write(text) //nolint:errcheck // to memory
		of.Part = must(part.Close())
		m.Streams = append(m.Streams, of)
	}
	if err := w.Finish(m); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestVerify(t *testing.T) {
	s := newFakeBackup(t)
	plan, err := backup.Verify(bytes.NewReader(s.file(t)))
	if err != nil {
		t.Fatal(err)
	}
	if q := plan.Queues[slices.IndexFunc(plan.Queues, func(q api.BackupQueue) bool { return q.Name == "mail" })]; q != (api.BackupQueue{Name: "mail", Waiting: 1, Active: 1, Completed: 1, Failed: 1}) {
		t.Errorf("counts %+v", q)
	}
	events, kept := plan.Manifest.Stream("YARD_EVENTS"), plan.Kept("YARD_EVENTS")
	if events.Last != 4 || kept.Last != 3 || kept.Messages != 3 || kept.Bytes >= events.Bytes || kept.Name != "YARD_EVENTS.2" {
		t.Errorf("history %+v is kept as %+v, want it up to message 3", events, kept)
	}
	if lane := plan.Kept("YARD_JOBS_0"); lane.Last != 5 || lane.Identity != "lane-a" {
		t.Errorf("lane %+v: records that are not ingested must be kept", lane)
	}
}

// TestVerify_Rejects checks files whose content is inconsistent although their
// checksums are correct.
func TestVerify_Rejects(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*fakeBackup)
		want  string
	}{
		"lane missing":       {func(s *fakeBackup) { s.streams = s.streams[1:] }, "lane 0 is missing"},
		"another lane":       {func(s *fakeBackup) { s.stream("YARD_JOBS_0").identity = "other" }, "lane 0 has identity other"},
		"lane with a gap":    {func(s *fakeBackup) { s.drop("YARD_JOBS_0", 3) }, "lane 0 has a gap"},
		"lane cut short":     {func(s *fakeBackup) { l := s.stream("YARD_JOBS_0"); l.messages = l.messages[:3] }, "lane 0 ends at 3, the ledger has ingested it up to 4"},
		"lane begins late":   {func(s *fakeBackup) { l := s.stream("YARD_JOBS_0"); l.messages = l.messages[3:] }, "lane 0 begins at 4"},
		"lane emptied":       {func(s *fakeBackup) { s.drop("YARD_JOBS_0", 1, 2, 3, 4, 5) }, "lane 0 begins at 6"},
		"relocated missing":  {func(s *fakeBackup) { s.drop("YARD_RELOCATED", 7) }, "the record of job 02000000-0000-0000-0000-000000000000, relocated, sequence 7, is missing"},
		"none relocated":     {func(s *fakeBackup) { s.streams = slices.Delete(s.streams, 1, 2) }, "YARD_RELOCATED is missing"},
		"chunk missing":      {func(s *fakeBackup) { s.drop("YARD_BLOBS", 3) }, "the body of job 02000000-0000-0000-0000-000000000000, blob 2026010100.b, is missing"},
		"chunk changed":      {func(s *fakeBackup) { s.stream("YARD_BLOBS").messages[1].text = bytes.Repeat([]byte("x"), 100) }, "does not match its record"},
		"body not ingested":  {func(s *fakeBackup) { s.drop("YARD_BLOBS", 5, 6, 7, 8) }, "a record of YARD_JOBS_0 that is not ingested yet"},
		"no blobs":           {func(s *fakeBackup) { s.streams = slices.Delete(s.streams, 2, 3) }, "is missing or incomplete"},
		"history missing":    {func(s *fakeBackup) { s.streams = slices.Delete(s.streams, 3, 4) }, "YARD_EVENTS is missing"},
		"gap in history":     {func(s *fakeBackup) { s.drop("YARD_EVENTS", 2) }, "YARD_EVENTS has a gap between numbers 2 and 4"},
		"history ends early": {func(s *fakeBackup) { h := s.stream("YARD_EVENTS"); h.messages = h.messages[:1] }, "YARD_EVENTS ends at number 2"},
		"history unwritten":  {func(s *fakeBackup) { s.stream("YARD_EVENTS").messages = nil }, "YARD_EVENTS ends at number 0"},
		"results unwritten":  {func(s *fakeBackup) { s.stream("YARD_RESULTS").messages = nil }, "YARD_RESULTS ends at number 0"},
		"saved meanwhile": {func(s *fakeBackup) {
			s.ledger = ledger.New()
			s.ledger.Apply(ledger.Stamp{Index: 1, Term: 1}, []ledger.Command{&ledger.Lead{Owner: "n1", Until: time.Unix(1000, 0)}})
			s.ledger.Apply(ledger.Stamp{Index: 2, Term: 1, Epoch: 1}, []ledger.Command{&ledger.Restore{Stage: ledger.RestoreBegin, ID: "r"}})
		}, "while a restore was in progress"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakeBackup(t)
			c.spoil(s)
			_, err := backup.Verify(bytes.NewReader(s.file(t)))
			if !errors.Is(err, backup.ErrDamaged) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// TestVerify_Tolerates checks that what is not needed may be missing: dead
// letters, expired history, and records of completed jobs.
func TestVerify_Tolerates(t *testing.T) {
	for name, spoil := range map[string]func(*fakeBackup){
		"dead letters removed":   func(s *fakeBackup) { s.drop("YARD_DLQ", 1) },
		"old history":            func(s *fakeBackup) { s.drop("YARD_EVENTS", 1, 2, 3, 4) },
		"completed job's record": func(s *fakeBackup) { s.drop("YARD_JOBS_0", 1) },
		"direct publish with a blob": func(s *fakeBackup) {
			lane := s.stream("YARD_JOBS_0")
			lane.messages = append(lane.messages, message{seq: 6, subject: "yard.lane.0.p.mail", text: record(6, blobOf("never")).text})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakeBackup(t)
			spoil(s)
			if _, err := backup.Verify(bytes.NewReader(s.file(t))); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestVerify_Bytes checks that a file that is truncated anywhere, or has a changed
// byte, is refused, unless the byte has no meaning.
func TestVerify_Bytes(t *testing.T) {
	whole := newFakeBackup(t).file(t)
	const end = 2*sha256.Size + 1 // size of the last entry, which only empty blocks follow
	for at := 0; at < len(whole)-3*512+end; at += 97 {
		if _, err := backup.Verify(bytes.NewReader(whole[:at])); !errors.Is(err, backup.ErrDamaged) {
			t.Fatalf("truncated at %d of %d: %v", at, len(whole), err)
		}
	}
	want, err := backup.Verify(bytes.NewReader(whole))
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; at < len(whole); at += 31 {
		changed := bytes.Clone(whole)
		changed[at] ^= 0x10
		plan, err := backup.Verify(bytes.NewReader(changed))
		if err == nil && plan.Ledger == want.Ledger && slices.Equal(plan.Keep, want.Keep) {
			continue // padding, a time, the interrupted copy
		}
		if !errors.Is(err, backup.ErrDamaged) {
			t.Fatalf("byte %d changed: %v", at, err)
		}
	}
}

// TestTrim checks that Parts and Trim return what was written, without what the
// ledger does not contain.
func TestTrim(t *testing.T) {
	s := newFakeBackup(t)
	whole := s.file(t)
	plan, err := backup.Verify(bytes.NewReader(whole))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	err = backup.Parts(bytes.NewReader(whole), &plan.Manifest, func(name string, part io.Reader) error {
		names = append(names, name)
		if name != "YARD_EVENTS.2" {
			return nil
		}
		var got bytes.Buffer
		if err := backup.Trim(&got, part, *plan.Kept("YARD_EVENTS")); err != nil {
			return err
		}
		short := s.stream("YARD_EVENTS")
		short.messages = short.messages[:3]
		want, _ := short.archived(t)
		if !bytes.Equal(messages(t, got.Bytes()), messages(t, want)) {
			t.Error("Trim does not keep the first three messages")
		}
		return nil
	})
	if want := []string{"ledger", "YARD_JOBS_0", "YARD_RELOCATED", "YARD_BLOBS", "YARD_EVENTS.2", "YARD_RESULTS", "YARD_DLQ"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("parts %q, %v", names, err)
	}
}

// messages returns the uncompressed archive after its first event subject.
func messages(t *testing.T, b []byte) []byte {
	t.Helper()
	text, err := io.ReadAll(s2.NewReader(bytes.NewReader(b)))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ = bytes.Cut(text, []byte("yard.events"))
	return text
}

// FuzzVerify checks that Verify never panics, and returns either an error or a
// plan.
func FuzzVerify(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(newFakeBackup(&testing.T{}).file(&testing.T{}))
	f.Fuzz(func(t *testing.T, text []byte) {
		plan, err := backup.Verify(bytes.NewReader(text))
		if (err == nil) != (plan != nil) {
			t.Errorf("%v, %v", plan, err)
		}
	})
}
