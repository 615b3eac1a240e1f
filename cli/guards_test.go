package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
)

// A duplicate or debounced job is reported on standard error and succeeds; a job
// refused by a rate limit fails.
func TestEnqueue_ReportsExisting(t *testing.T) {
	for _, c := range []struct {
		answer   any
		flags    string
		code     int
		out, err string
	}{
		{`{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a28","queue":"post","duplicate":true}`, "--unique-key k", 0, "0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a28\n", "there already is a job with this --unique-key or --id, in queue post"},
		{`{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a28","queue":"mail","duplicate":true}`, "--id k", 0, "0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a28\n", "the job already existed"},
		{`{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a28","queue":"mail","debounced":true}`, "--debounce-key k --debounce 1s", 0, "0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a28\n", "replaces one that has not started"},
		{`{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a28","queue":"mail"}`, "--unique-key k", 0, "0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a28\n", ""},
		{func([]byte) ([]byte, error) {
			return nil, &api.Error{Code: api.CodeLimited, Text: (&job.RateLimitedError{RetryAfter: 1500 * time.Millisecond}).Error(), RetryAfter: 1500 * time.Millisecond}
		}, "--rate-limit-key k --rate-limit 5s", 1, "", "so no job was made; it is free in 1.5s"},
	} {
		f := startFakeAPI(t, cannedReplies{"yard.enqueue.*": c.answer})
		got := f.run(t, append([]string{"enqueue", "mail", "send"}, strings.Fields(c.flags)...)...)
		if got.code != c.code || got.out != c.out || (c.err == "") != (got.err == "") || !strings.Contains(got.err, c.err) {
			t.Errorf("%s with reply %v: %+v, want %q", c.flags, c.answer, got, c.err)
		}
	}
}
