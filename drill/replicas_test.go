package drill

import (
	"crypto/sha256"
	"strings"
	"testing"
)

func TestSameReplicas(t *testing.T) {
	of := func(first uint64, texts ...string) *replica {
		r := newReplica(first, first+uint64(len(texts))-1)
		for i, text := range texts {
			if text != "" {
				subject, _, _ := strings.Cut(text, "=")
				r.add(first+uint64(i), subject, sha256.Sum256([]byte(text)))
			}
		}
		return r
	}
	whole := of(1, "a", "b", "c", "d")
	for _, c := range []struct {
		name  string
		other *replica
		holes int
		wrong string
	}{
		{"the same", of(1, "a", "b", "c", "d"), 0, ""},
		{"begins later", of(3, "c", "d"), 0, ""},
		{"ends earlier", of(1, "a", "b", "c"), 0, ""},
		{"another message", of(1, "a", "x", "c"), 0, "2 is another message"},
		{"a hole", of(1, "a", "", "c", "d"), 1, "2 is missing"},
		{"a hole, and behind", of(1, "a", "", "c"), 1, ""}, // the lanes' own check finds it
	} {
		got := strings.Join(sameReplicas("lane", whole, c.other), "; ")
		if (got == "") != (c.wrong == "") || !strings.Contains(got, c.wrong) || c.other.holes() != c.holes {
			t.Errorf("%s: %q, %d holes", c.name, got, c.other.holes())
		}
	}
	bucket := of(1, "k=1", "l=1", "k=2")
	for _, c := range []struct {
		name  string
		other *replica
		wrong bool
	}{
		{"an old value is gone", of(1, "", "l=1", "k=2"), false},
		{"a value is gone", of(1, "k=1", "", "k=2"), true},
	} {
		if got := sameReplicas("KV_YARD_QUEUES", bucket, c.other); (len(got) > 0) != c.wrong {
			t.Errorf("of a bucket %s: %q", c.name, got)
		}
		if got := sameReplicas("YARD_JOBS_0", bucket, c.other); len(got) == 0 {
			t.Errorf("of a lane %s: nothing is said", c.name)
		}
	}
}
