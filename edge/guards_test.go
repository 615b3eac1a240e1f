package edge

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// TestEnqueue_Labels checks that limit keys, limits, tags, metadata and an expiry reach the
// cluster, and are in the job's record.
func TestEnqueue_Labels(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p := r.register(true)
		labels := fields{"limit_key": "acme", "limits": map[string]string{"smtp": ""}, "tags": []string{"a", "b"}, "meta": map[string]string{"n": "v"}}
		request := fields{"q": "jobs", "expires_in_ms": 90_000}
		maps.Copy(request, labels)
		p.ask(overhop.TEnqueue, request, overhop.TOK)
		spec := r.cluster.specs[len(r.cluster.specs)-1]
		if *spec.LimitKey != "acme" || spec.Limits["smtp"] != "" || len(spec.Limits) != 1 || !slices.Equal(spec.Tags, []string{"a", "b"}) || spec.Meta["n"] != "v" || *spec.ExpiresInMS != 90_000 {
			t.Errorf("spec is %+v", spec)
		}
		// Which of the two is first depends on the yard's time, which the edge does not have.
		p.ask(overhop.TEnqueue, fields{"q": "jobs", "scheduled_at": time.Now().Add(time.Hour), "expires_in_ms": 90_000}, overhop.TOK)
		p.ask(overhop.TEnqueue, fields{"q": "jobs", "expires_at": "2030-01-01T00:00:00Z"}, overhop.TOK)
		if spec = r.cluster.specs[len(r.cluster.specs)-1]; !spec.ExpiresAt.Equal(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)) || spec.LimitKey != nil || spec.Tags != nil {
			t.Errorf("spec is %+v", spec)
		}
		for _, f := range []fields{
			{"limit_key": "a\n"}, {"limits": map[string]string{"a b": ""}}, {"tags": []string{""}}, {"meta": map[string]string{"": "v"}},
			{"expires_in_ms": 0}, {"expires_in_ms": 5, "expires_at": "2030-01-01T00:00:00Z"},
		} {
			f["q"] = "jobs"
			p.expectErr(overhop.TEnqueue, f, overhop.CodeInvalidJobPayload)
		}
		for key, value := range map[string]any{"limit_key": 7, "limits": []string{"a"}, "tags": "a", "meta": []any{1}, "expires_at": true} {
			p = r.register(true)
			p.expectErr(overhop.TEnqueue, fields{"q": "jobs", key: value}, violation)
			p.expectClosed()
		}
	})
}

// The guards of an ENQUEUE reach the yard unchanged; invalid ones are refused.
func TestEnqueue_Guards(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p := r.register(true)
		p.ask(overhop.TEnqueue, fields{
			"q": "jobs", "unique_key": "u", "unique_ttl_ms": 1000, "rate_limit_key": "r", "rate_limit_ms": 2000,
			"debounce_key": nil, "debounce_ms": nil,
		}, overhop.TOK)
		spec := r.cluster.specs[len(r.cluster.specs)-1]
		if *spec.UniqueKey != "u" || *spec.UniqueTTLMS != 1000 || *spec.RateLimitKey != "r" || *spec.RateLimitMS != 2000 || spec.DebounceKey != nil {
			t.Errorf("spec is %+v", spec)
		}
		p.ask(overhop.TEnqueue, fields{"q": "jobs", "debounce_key": "d", "debounce_ms": 3000}, overhop.TOK)
		if spec = r.cluster.specs[len(r.cluster.specs)-1]; *spec.DebounceKey != "d" || *spec.DebounceMS != 3000 || spec.UniqueKey != nil {
			t.Errorf("spec is %+v", spec)
		}
		for _, f := range []fields{
			{"unique_key": ""}, {"unique_key": "k", "unique_ttl_ms": 0}, {"unique_ttl_ms": 5}, {"rate_limit_key": "k"}, {"rate_limit_ms": 5},
			{"debounce_key": "k"}, {"debounce_key": "k", "debounce_ms": 5, "scheduled_at": "2030-01-01T00:00:00Z"},
			{"debounce_key": "k", "debounce_ms": 5, "rate_limit_key": "k", "rate_limit_ms": 5},
		} {
			f["q"] = "jobs"
			p.expectErr(overhop.TEnqueue, f, overhop.CodeInvalidJobPayload)
		}
		seed := r.register(false) // clients without the extension have no such keys
		seed.ask(overhop.TEnqueue, fields{"q": "jobs", "unique_key": "u"}, overhop.TOK)
		p.ask(overhop.TPing, nil, overhop.TPong)
		for key, value := range map[string]any{"unique_key": 7, "unique_ttl_ms": "1h", "rate_limit_key": []byte("k"), "debounce_ms": true} {
			p = r.register(true)
			p.expectErr(overhop.TEnqueue, fields{"q": "jobs", key: value}, violation)
			p.expectClosed()
		}
	})
}

// A refusal contains the job that holds a key, or the time until the key is
// free.
func TestRefusal_Guards(t *testing.T) {
	for _, c := range []struct {
		err              error
		code             overhop.Code
		message, details string
	}{
		{
			&job.DuplicateError{Queue: "post", ID: job.ID{15: 1}}, overhop.CodeDuplicateJob,
			"job 00000000-0000-0000-0000-000000000001 of queue post holds the same unique key", `{"jid":"post:00000000-0000-0000-0000-000000000001"}`,
		},
		{
			&job.PayloadError{Path: "/to", Reason: "must be a string", Version: 3}, overhop.CodeInvalidJobPayload,
			"params/to: must be a string (schema version 3)", `{"path":"/to","schema_version":3}`,
		},
		{
			&job.RemovedError{Queue: "mail", ID: job.ID{15: 1}, Kept: time.Minute}, overhop.CodeRemovedJob,
			"duplicate_of_removed: no job was made, because job 00000000-0000-0000-0000-000000000001 had the same key and was removed; use another key, or this one again 1m or more after the removal",
			`{"jid":"mail:00000000-0000-0000-0000-000000000001"}`,
		},
		{
			&job.InvalidError{Reason: "debounce_key and run_at exclude each other"}, overhop.CodeInvalidJobPayload,
			"debounce_key and scheduled_at exclude each other", "{}",
		},
		{
			&job.RateLimitedError{RetryAfter: 1500 * time.Millisecond}, overhop.CodeRateLimited,
			"the rate limit key is held, so no job was made; it is free in 1.5s", `{"retry_after_ms":1500}`,
		},
		{
			&job.RateLimitedError{RetryAfter: time.Microsecond}, overhop.CodeRateLimited,
			"the rate limit key is held, so no job was made; it is free in 1ms", `{"retry_after_ms":1}`,
		},
	} {
		e := wireError(c.err)
		if got := text(overhop.AppendValue(nil, e.details)); e.code != c.code || e.message != c.message || got != c.details {
			t.Errorf("%v: %s %q %s, want %s %q %s", c.err, e.code, e.message, got, c.code, c.message, c.details)
		}
	}
}

// guard applies the guards of a job: it returns the id the job is created
// under, or why it is refused. Keys are held for ever, or until their job is
// removed.
func (c *memCluster) guard(id job.ID, spec *job.Spec) (job.ID, error) {
	if key := spec.UniqueKey; key != nil {
		if holder, held := c.jobs[c.guards["unique "+*key]]; held {
			return id, &job.DuplicateError{Queue: holder.Queue, ID: holder.ID}
		}
		c.guards["unique "+*key] = id
	}
	if key := spec.RateLimitKey; key != nil {
		if _, held := c.guards["rate "+*key]; held {
			return id, &job.RateLimitedError{RetryAfter: time.Duration(*spec.RateLimitMS) * time.Millisecond}
		}
		c.guards["rate "+*key] = id
	}
	if key := spec.DebounceKey; key != nil {
		if holder, held := c.jobs[c.guards["debounce "+*key]]; held && holder.Started.IsZero() {
			return holder.ID, nil
		}
		c.guards["debounce "+*key] = id
	}
	return id, nil
}
