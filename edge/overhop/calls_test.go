package overhop

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestEnqueue_ComesBack: all that a client may ask of a job is read as it was
// given, and the common job takes the short way to the same end.
func TestEnqueue_ComesBack(t *testing.T) {
	for _, want := range []Enqueue{
		{Queue: "jobs", Payload: Raw{0x01}},
		{
			Queue: "jobs", Payload: EmptyMap, At: time.Unix(1_900_000_000, 0).UTC(), MaxAttempts: 3, RetryInterval: 4,
			Function: "r#h", Key: "k", Timeout: 5, Priority: new(int64(0)), Trace: map[string]string{"a": "b"}, Notify: true,
			UniqueKey: new("u"), UniqueTTL: new(int64(6)), RateLimitKey: new("r"), RateLimit: new(int64(7)),
			DebounceKey: new("d"), Debounce: new(int64(8)),
		},
		{Queue: "jobs", Payload: Nil, UniqueKey: new("")},
		{Queue: "jobs", Payload: Nil, Debounce: new(int64(-1))},
	} {
		got, err := ParseEnqueue(want.append(nil), true)
		if err != nil {
			t.Errorf("%+v: %v", want, err)
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
	}
}
