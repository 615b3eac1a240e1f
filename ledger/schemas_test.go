package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// TestSchemas_Find checks which schema applies to a job.
func TestSchemas_Find(t *testing.T) {
	l, stamp := ledgerWithAuthority(t)
	if l.Schemas() != nil || l.Schemas().Find("mail", "send") != nil || l.Schemas().Get("mail", "send") != nil || l.Schemas().Len() != 0 {
		t.Fatal("an empty ledger has schemas")
	}
	for _, c := range []SetSchema{{Queue: "mail", Function: "send"}, {Queue: "mail", Function: AnyFunction}, {Queue: "post"}} {
		c.Text = []byte("{}")
		l.Apply(stamp, []Command{&c})
	}
	for _, tt := range []struct {
		queue, function string
		want            uint64
	}{
		{"mail", "send", 1}, {"mail", "other", 2}, {"mail", "", 2}, {"mail", "*", 2}, {"post", "", 3}, {"post", "send", 0}, {"other", "", 0},
	} {
		var got uint64
		if s := l.Schemas().Find(tt.queue, tt.function); s != nil {
			got = s.Version
		}
		if got != tt.want {
			t.Errorf("%s %q: version %d, want %d", tt.queue, tt.function, got, tt.want)
		}
	}
}

// TestSetSchema_Bounds checks the limits of one schema, and of their number.
func TestSetSchema_Bounds(t *testing.T) {
	l, stamp := ledgerWithAuthority(t)
	set := func(function string, size int) error {
		return l.Apply(stamp, []Command{&SetSchema{Queue: "mail", Function: function, Text: bytes.Repeat([]byte(" "), size)}})[0].Err
	}
	if err := set("f", MaxSchemaText+1); err == nil || !strings.Contains(err.Error(), "schema has 32769 bytes; at most 32768") {
		t.Errorf("a large schema: %v", err)
	}
	if err := set(strings.Repeat("f", job.MaxFunctionLen+1), 1); err == nil {
		t.Error("a long function is accepted")
	}
	for i := range MaxSchemas {
		if err := set(fmt.Sprint(i), 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := set("one more", 1); !errors.Is(err, ErrTooManySchemas) {
		t.Errorf("one more: %v", err)
	}
	if err := set("7", 2); err != nil {
		t.Errorf("a change of one: %v", err)
	}
}

// TestSchemas_Encode checks that schemas survive a snapshot, and that their order does not
// depend on the order of the commands; and that snapshots from before there were schemas can
// be read.
func TestSchemas_Encode(t *testing.T) {
	build := func(order []int) *Ledger {
		l, stamp := ledgerWithAuthority(t)
		for _, i := range order {
			l.Apply(stamp, []Command{&SetSchema{Queue: "q" + fmt.Sprint(i%3), Function: fmt.Sprint(i), Text: []byte(`{"minProperties":` + fmt.Sprint(i) + `}`), Warn: i%2 == 0}})
			stamp.Index++
		}
		return l
	}
	l := build(rand.Perm(50))
	restored := decoded(t, l)
	if hash(t, l) != hash(t, restored) || restored.Schemas().Len() != 50 {
		t.Fatal("the decoded ledger differs")
	}
	for i, s := range l.Schemas().Sorted() {
		r := restored.Schemas().Sorted()[i]
		if s.Queue != r.Queue || s.Function != r.Function || s.Version != r.Version || s.Warn != r.Warn || !s.Changed.Equal(r.Changed) || !bytes.Equal(s.Text, r.Text) {
			t.Errorf("%+v, want %+v", r, s)
		}
	}
	if !slices.IsSortedFunc(restored.Schemas().Sorted(), func(a, b *Schema) int { return strings.Compare(a.Queue+a.Function, b.Queue+b.Function) }) {
		t.Error("not sorted")
	}

	old := New()
	old.Apply(stampAt(1, 0, 0), []Command{&Lead{Owner: "n1", Until: scriptStart.Add(time.Hour)}})
	if read := decodedFormat(t, old, oldestFormat); read.Schemas() != nil || hash(t, read) != hash(t, old) {
		t.Errorf("the ledger decoded from format %d differs", oldestFormat)
	}
}

// TestSchemas_Immutable checks that a copy, and a set that was returned, keep their schemas.
func TestSchemas_Immutable(t *testing.T) {
	l, stamp := ledgerWithAuthority(t)
	l.Apply(stamp, []Command{&SetSchema{Queue: "mail", Function: "send", Text: []byte("{}")}})
	kept, copied := l.Schemas(), l.Copy()
	l.Apply(stamp, []Command{&SetSchema{Queue: "mail", Function: "send", Text: []byte("true")}, &SetSchema{Queue: "mail", Text: []byte("{}")}})
	l.Apply(stamp, []Command{&RemoveSchema{Queue: "mail", Function: "send"}})
	if kept.Len() != 1 || string(kept.Find("mail", "send").Text) != "{}" || copied.Schemas() != kept {
		t.Error("the set has changed")
	}
}

// decoded returns the ledger that a snapshot of l has.
func decoded(t *testing.T, l *Ledger) *Ledger {
	t.Helper()
	var snapshot bytes.Buffer
	if err := l.Encode(&snapshot); err != nil {
		t.Fatal(err)
	}
	restored, err := Decode(&snapshot)
	if err != nil {
		t.Fatal(err)
	}
	return restored
}
