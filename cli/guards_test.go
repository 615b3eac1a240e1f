package cli

import (
	"strings"
	"testing"
	"time"

	"yardmaster/cluster"
	"yardmaster/job"
)

// What the yard makes of a job's keys is said beside its id, and is no failure
// unless there is no job.
func TestEnqueue_TellsOfExisting(t *testing.T) {
	for _, c := range []struct {
		answer     any
		flags      string
		code       int
		out, tells string
	}{
		{`{"id":"j","queue":"post","duplicate":true}`, "--unique-key k", 0, "j\n", "has a job with this --unique-key or --id already, in queue post"},
		{`{"id":"j","queue":"mail","duplicate":true}`, "--id k", 0, "j\n", "the yard had this job already"},
		{`{"id":"j","queue":"mail","debounced":true}`, "--debounce-key k --debounce 1s", 0, "j\n", "takes the place of one that has not started"},
		{`{"id":"j","queue":"mail"}`, "--unique-key k", 0, "j\n", ""},
		{func([]byte) ([]byte, error) {
			return nil, &cluster.APIError{Code: "429", Text: (&job.LimitedError{RetryAfter: 1500 * time.Millisecond}).Error(), RetryAfter: 1500 * time.Millisecond}
		}, "--rate-limit-key k --rate-limit 5s", 1, "", "so no job was made; it is free in 1.5s"},
	} {
		f := startFake(t, answers{"yard.enqueue.*": c.answer})
		got := f.run(t, append([]string{"enqueue", "mail", "send"}, strings.Fields(c.flags)...)...)
		if got.code != c.code || got.out != c.out || (c.tells == "") != (got.err == "") || !strings.Contains(got.err, c.tells) {
			t.Errorf("%s answered with %v: %+v, want %q", c.flags, c.answer, got, c.tells)
		}
	}
}
