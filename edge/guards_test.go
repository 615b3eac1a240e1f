package edge

import (
	"testing"
	"time"

	"yardmaster/edge/overhop"
	"yardmaster/job"
)

// An ENQUEUE's keys reach the yard as they were given, and what the yard makes
// of them reaches the client with what its program needs to know.
func TestEnqueue_Guards(t *testing.T) {
	bubble(t, Config{}, func(r *rig) {
		p := r.register(true)
		p.ask(overhop.TEnqueue, fields{
			"q": "jobs", "unique_key": "u", "unique_ttl_ms": 1000, "rate_limit_key": "r", "rate_limit_ms": 2000,
			"debounce_key": nil, "debounce_ms": nil,
		}, overhop.TOK)
		spec := r.yard.specs[len(r.yard.specs)-1]
		if *spec.UniqueKey != "u" || *spec.UniqueTTLMS != 1000 || *spec.RateLimitKey != "r" || *spec.RateLimitMS != 2000 || spec.DebounceKey != nil {
			t.Errorf("spec is %+v", spec)
		}
		p.ask(overhop.TEnqueue, fields{"q": "jobs", "debounce_key": "d", "debounce_ms": 3000}, overhop.TOK)
		if spec = r.yard.specs[len(r.yard.specs)-1]; *spec.DebounceKey != "d" || *spec.DebounceMS != 3000 || spec.UniqueKey != nil {
			t.Errorf("spec is %+v", spec)
		}
		for _, c := range []struct {
			hinders error
			want    string
		}{
			{
				&job.DuplicateError{Queue: "post", ID: job.ID{15: 1}},
				`{"code":"DUPLICATE_JOB","details":{"jid":"post:00000000-0000-0000-0000-000000000001"},"msg":"job 00000000-0000-0000-0000-000000000001 of queue post holds the same unique key"}`,
			},
			{
				&job.LimitedError{RetryAfter: 1500 * time.Millisecond},
				`{"code":"RATE_LIMITED","details":{"retry_after_ms":1500},"msg":"the rate limit key is held, so no job was made; it is free in 1.5s"}`,
			},
		} {
			r.yard.hinders = c.hinders
			// One that was to be told of its end is not waited for.
			refused := p.ask(overhop.TEnqueue, fields{"q": "jobs", "unique_key": "u", "notify": true}, overhop.TErr)
			if got := text(refused); got != c.want {
				t.Errorf("refused with %s, want %s", got, c.want)
			}
		}
		r.yard.hinders = nil
		for _, f := range []fields{
			{"unique_key": ""}, {"unique_key": "k", "unique_ttl_ms": 0}, {"unique_ttl_ms": 5}, {"rate_limit_key": "k"}, {"rate_limit_ms": 5},
			{"debounce_key": "k"}, {"debounce_key": "k", "debounce_ms": 5, "scheduled_at": "2030-01-01T00:00:00Z"},
			{"debounce_key": "k", "debounce_ms": 5, "rate_limit_key": "k", "rate_limit_ms": 5},
		} {
			f["q"] = "jobs"
			p.refused(overhop.TEnqueue, f, overhop.CodeInvalidJobPayload)
		}
		seed := r.register(false) // whoever did not offer the extension has no such keys
		seed.ask(overhop.TEnqueue, fields{"q": "jobs", "unique_key": "u"}, overhop.TOK)
		p.ask(overhop.TPing, nil, overhop.TPong)
		for key, value := range map[string]any{"unique_key": 7, "unique_ttl_ms": "1h", "rate_limit_key": []byte("k"), "debounce_ms": true} {
			p = r.register(true)
			p.refused(overhop.TEnqueue, fields{"q": "jobs", key: value}, violation)
			p.closed()
		}
	})
}
