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
		{"another message", of(1, "a", "x", "c"), 0, "2 differs"},
		{"a hole", of(1, "a", "", "c", "d"), 1, "2, subject b, is missing from the second"},
		{"a gap, and lagging", of(1, "a", "", "c"), 1, ""}, // found by the check of holes
	} {
		got := strings.Join(diffReplicas("lane", whole, c.other), "; ")
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
		if got := diffReplicas("KV_YARD_QUEUES", bucket, c.other); (len(got) > 0) != c.wrong {
			t.Errorf("bucket, %s: %q", c.name, got)
		}
		if got := diffReplicas("YARD_JOBS_0", bucket, c.other); len(got) == 0 {
			t.Errorf("lane, %s: no difference reported", c.name)
		}
	}
}

// TestCompared checks the number of replicas: three of five nodes must have one, and all
// of three.
func TestCompared(t *testing.T) {
	copyOf := func(node string, sums ...byte) nodeReplica {
		r := newReplica(1, uint64(len(sums)))
		for i, sum := range sums {
			r.add(uint64(i+1), "subject", [32]byte{sum})
		}
		return nodeReplica{node, r}
	}
	hole := copyOf("n3", 1, 2, 3)
	delete(hole.checksums, 2)
	for want, all := range map[string][]nodeReplica{
		"": {copyOf("n1", 1, 2, 3), copyOf("n3", 1, 2, 3), copyOf("n5", 1, 2)},
		"YARD_JOBS_0 has replicas on [n1 n2], not on 3 nodes":         {copyOf("n1", 1), copyOf("n2", 1)},
		"1 messages are missing from the middle of YARD_JOBS_0 on n3": {copyOf("n1", 1, 2, 3), copyOf("n2", 1, 2, 3), hole},
		"n1 and n2: YARD_JOBS_0 2 differs between two replicas":       {copyOf("n1", 1, 2), copyOf("n2", 1, 9), copyOf("n3", 1, 2)},
		"YARD_JOBS_0 has replicas on [n1 n2 n3 n4], not on 3 nodes":   {copyOf("n1", 1), copyOf("n2", 1), copyOf("n3", 1), copyOf("n4", 1)},
		"n3 and n1: YARD_JOBS_0 1 differs between two replicas":       {copyOf("n1", 1), copyOf("n2", 1), copyOf("n3", 2)},
	} {
		if got := strings.Join(diffNodes("YARD_JOBS_0", all, 3), "; "); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
