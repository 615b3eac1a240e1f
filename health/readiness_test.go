package health

import (
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
)

// TestFullWarnings checks at which size there is a warning of a stream with a bound of 100
// bytes. Lanes may move records to YARD_RELOCATED until it has 75.
func TestFullWarnings(t *testing.T) {
	for _, c := range []struct {
		stream, whenFull string
		bytes, limit     uint64
		warns            bool
	}{
		{"YARD_JOBS_0", api.Refuses, 79, 100, false},
		{"YARD_JOBS_0", api.Refuses, 80, 100, true},
		{"YARD_JOBS_0", api.Refuses, 80, 0, false},
		{"YARD_RELOCATED", api.Refuses, 59, 100, false},
		{"YARD_RELOCATED", api.Refuses, 60, 100, true},
		{"YARD_EVENTS", api.Evicts, 100, 100, false},
	} {
		got := fullWarnings([]api.StreamStatus{{Stream: c.stream, WhenFull: c.whenFull, Bytes: c.bytes, LimitBytes: c.limit}})
		if warns := len(got) == 1 && strings.Contains(got[0], c.stream); warns != c.warns || len(got) > 1 {
			t.Errorf("%s with %d of %d bytes: %q", c.stream, c.bytes, c.limit, got)
		}
	}
}

// A warning names each member that has other time zones than this node.
func TestZoneWarnings(t *testing.T) {
	r := NewReporter(ReporterConfig{Node: "n1", TimeZones: "2026a-01234567"})
	got := r.zoneWarnings([]api.MemberStatus{
		{Name: "n1", TimeZones: "2026a-01234567"}, {Name: "n2", TimeZones: "2025c-89abcdef"}, {Name: "n3"}, // n3 is not known
	})
	if len(got) != 1 || !strings.Contains(got[0], "member n2 has the time zones 2025c-89abcdef and this node 2026a-01234567") {
		t.Errorf("%q", got)
	}
}
