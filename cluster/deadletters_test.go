package cluster

import (
	"fmt"
	"testing"

	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"
)

// listDeadLetters returns the names of the dead letters that DeadLetters yields,
// at most most.
func listDeadLetters(t *testing.T, c *Server, queue string, from, until uint64, most int) (names []string) {
	t.Helper()
	err := c.Reader.DeadLetters(t.Context(), queue, from, until, func(l streams.Batch) bool {
		names = append(names, l.ID)
		return len(names) < most
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestDeadLetters(t *testing.T) {
	c := startSingle(t)
	if last, err := c.Reader.LastDeadLetter(t.Context()); last != 0 || err != nil {
		t.Fatalf("no dead letter yet: %d, %v", last, err)
	}
	for i := range 600 { // more than one read returns
		queue := []string{"mail", "odd queue.name"}[i%2]
		deadLetter := streams.Batch{Subject: subjects.DLQSubject(queue), ID: fmt.Sprintf("job-%d", i), Body: jobBody(i)}
		for again := range 1 + (i+1)/600 { // the last is published again by the next authority, and stored once
			if _, err := appendBatch(c, subjects.StreamDLQ, deadLetter, uint64(i+again)); err != nil {
				t.Fatal(err)
			}
		}
	}
	last, err := c.Reader.LastDeadLetter(t.Context())
	if last != 600 || err != nil {
		t.Fatalf("last dead letter: %d, %v", last, err)
	}
	for _, tt := range []struct {
		queue       string
		from, until uint64
		most, want  int
		first, last string
	}{
		{"", 0, last, 1000, 600, "job-0", "job-599"},
		{"mail", 0, last, 1000, 300, "job-0", "job-598"},
		{"odd queue.name", 300, last, 1000, 151, "job-299", "job-599"},
		{"mail", 2, 5, 1000, 2, "job-2", "job-4"},
		{"", 590, last, 3, 3, "job-589", "job-591"},
		{"unknown", 0, last, 1000, 0, "", ""},
		{"", 601, last, 1000, 0, "", ""},
	} {
		got := listDeadLetters(t, c.Server, tt.queue, tt.from, tt.until, tt.most)
		if len(got) != tt.want || len(got) > 0 && (got[0] != tt.first || got[len(got)-1] != tt.last) {
			t.Errorf("dead letters of %q from %d to %d: %d, %v", tt.queue, tt.from, tt.until, len(got), got[:min(len(got), 5)])
		}
	}
}

// TestDeadLetters_WithBlobs checks that dead letters that refer to blobs are read in order
// with the others of their queue, and that their blobs can be listed.
func TestDeadLetters_WithBlobs(t *testing.T) {
	c := startSingle(t)
	owner, err := job.ParseID(ownerID(1))
	if err != nil {
		t.Fatal(err)
	}
	for i, subject := range []string{
		subjects.DLQSubject("mail"), subjects.DLQBlobSubject("mail", owner), subjects.DLQBlobSubject("post", owner), subjects.DLQSubject("mail"),
	} {
		deadLetter := streams.Batch{Subject: subject, ID: fmt.Sprintf("job-%d", i), Body: jobBody(i)}
		if _, err := appendBatch(c, subjects.StreamDLQ, deadLetter, uint64(i)); err != nil {
			t.Fatal(err)
		}
	}
	for queue, want := range map[string]string{"": "[job-0 job-1 job-2 job-3]", "mail": "[job-0 job-1 job-3]", "post": "[job-2]"} {
		if got := fmt.Sprint(listDeadLetters(t, c.Server, queue, 0, 4, 10)); got != want {
			t.Errorf("queue %q: %s, want %s", queue, got, want)
		}
	}
	for _, letter := range []uint64{2, 3} {
		if owners, err := c.Admin.DeadLetterBodies(t.Context()); err != nil || len(owners) != 1 || !owners[owner] {
			t.Errorf("before the removal of %d: %v, %v", letter, owners, err)
		}
		if err := c.Admin.RemoveDeadLetter(t.Context(), letter); err != nil {
			t.Fatal(err)
		}
	}
	if owners, err := c.Admin.DeadLetterBodies(t.Context()); err != nil || len(owners) != 0 {
		t.Errorf("after their removal: %v, %v", owners, err)
	}
}

// TestRemoveDeadLetter checks that dead letters are removed, that removing one
// twice succeeds, and that the last sequence remains: otherwise a later dead
// letter would get the same one.
func TestRemoveDeadLetter(t *testing.T) {
	c := startSingle(t)
	for i := range 4 {
		deadLetter := streams.Batch{Subject: subjects.DLQSubject("mail"), ID: fmt.Sprintf("job-%d", i), Body: jobBody(i)}
		if _, err := appendBatch(c, subjects.StreamDLQ, deadLetter, uint64(i)); err != nil {
			t.Fatal(err)
		}
	}
	for _, seq := range []uint64{2, 4, 2, 9} {
		if err := c.Admin.RemoveDeadLetter(t.Context(), seq); err != nil {
			t.Errorf("remove %d: %v", seq, err)
		}
	}
	if got := listDeadLetters(t, c.Server, "", 0, 4, 10); fmt.Sprint(got) != "[job-0 job-2]" {
		t.Errorf("remaining: %v", got)
	}
	if last, err := c.Reader.LastDeadLetter(t.Context()); last != 4 || err != nil {
		t.Errorf("last dead letter: %d, %v", last, err)
	}
	if l, err := c.Reader.DeadLetter(t.Context(), 3); err != nil || l.ID != "job-2" || string(l.Body) != string(jobBody(2)) {
		t.Errorf("dead letter 3: %+v, %v", l, err)
	}
	_, err := c.Reader.DeadLetter(t.Context(), 2)
	wantErr(t, err, streams.ErrNotStored)
}
