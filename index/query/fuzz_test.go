package query

import (
	"reflect"
	"testing"
)

// FuzzParse checks that no text makes Parse, Match or Complete panic, that errors point into
// the text, and that the canonical text denotes the same query.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"", "queue:mail -(a or \"b\\\"c\"*) sort:ended", "created:>1h ended:14:00..14:30 took:1s..<2s", "meta.\"a b\":x,y* attempts:2..5", "since:2026-11-01T10:00+02:00 a and not b"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for cursor := range min(len(text)+1, 100) {
			c := Complete(text, cursor, []string{"a", "b c"}, func(field, prefix string) []string { return []string{prefix + "x"} })
			if c.Offset < 0 || c.Length < 0 || c.Offset+c.Length > len(text) {
				t.Fatalf("completion of %q at %d replaces %d+%d", text, cursor, c.Offset, c.Length)
			}
		}
		q, err := Parse(text, options)
		if err != nil {
			if e := err.(*SyntaxError); e.Offset < 0 || e.Length < 0 || e.Offset+e.Length > len(text) && len(text) <= MaxLength || e.Problem == "" || e.Advice == "" {
				t.Fatalf("%q: %#v", text, e)
			}
			return
		}
		q.Match(sample())
		again, err := Parse(q.String(), options)
		if err != nil || !reflect.DeepEqual(again, q) {
			t.Fatalf("%q is %s\n %#v, of which is %#v, %v", text, q, q, again, err)
		}
	})
}
