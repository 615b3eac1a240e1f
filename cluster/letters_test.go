package cluster

import (
	"fmt"
	"testing"
)

// lettersOf lists what a walk yields.
func lettersOf(t *testing.T, c *Cluster, queue string, from, until uint64, most int) (names []string) {
	t.Helper()
	err := c.Letters(t.Context(), queue, from, until, func(l Tale) bool {
		names = append(names, l.ID)
		return len(names) < most
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestLetters(t *testing.T) {
	c := alone(t)
	if last, err := c.LastLetter(t.Context()); last != 0 || err != nil {
		t.Fatalf("no letter yet: %d, %v", last, err)
	}
	for i := range 600 { // more than are read at once
		queue := []string{"mail", "odd queue.name"}[i%2]
		letter := Tale{Subject: DLQSubject(queue), ID: fmt.Sprintf("job-%d", i), Body: body(i)}
		for range 1 + (i+1)/600 { // the last is told again by the next authority: one copy stays
			if _, err := c.Append(t.Context(), StreamDLQ, letter, NoExpectation); err != nil {
				t.Fatal(err)
			}
		}
	}
	last, err := c.LastLetter(t.Context())
	if last != 600 || err != nil {
		t.Fatalf("last letter: %d, %v", last, err)
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
		{"nobody", 0, last, 1000, 0, "", ""},
		{"", 601, last, 1000, 0, "", ""},
	} {
		got := lettersOf(t, c.Cluster, tt.queue, tt.from, tt.until, tt.most)
		if len(got) != tt.want || len(got) > 0 && (got[0] != tt.first || got[len(got)-1] != tt.last) {
			t.Errorf("letters of %q from %d to %d: %d, %v", tt.queue, tt.from, tt.until, len(got), got[:min(len(got), 5)])
		}
	}
}

// What is removed is gone, once; the newest number stays, or what is written
// later would be taken for it.
func TestRemoveLetter(t *testing.T) {
	c := alone(t)
	for i := range 4 {
		letter := Tale{Subject: DLQSubject("mail"), ID: fmt.Sprintf("job-%d", i), Body: body(i)}
		if _, err := c.Append(t.Context(), StreamDLQ, letter, NoExpectation); err != nil {
			t.Fatal(err)
		}
	}
	for _, seq := range []uint64{2, 4, 2, 9} {
		if err := c.RemoveLetter(t.Context(), seq); err != nil {
			t.Errorf("remove %d: %v", seq, err)
		}
	}
	if got := lettersOf(t, c.Cluster, "", 0, 4, 10); fmt.Sprint(got) != "[job-0 job-2]" {
		t.Errorf("left are %v", got)
	}
	if last, err := c.LastLetter(t.Context()); last != 4 || err != nil {
		t.Errorf("last letter: %d, %v", last, err)
	}
	if l, err := c.Letter(t.Context(), 3); err != nil || l.ID != "job-2" || string(l.Body) != string(body(2)) {
		t.Errorf("letter 3: %+v, %v", l, err)
	}
	_, err := c.Letter(t.Context(), 2)
	wantErr(t, err, ErrNotStored)
}
