package job

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestGuards(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for body, want := range map[string]struct{ unique, rate, debounce time.Duration }{
		`{"function":"f"}`: {},
		`{"function":"f","unique_key":null,"unique_ttl_ms":null}`:                            {},
		`{"function":"f","unique_key":"k"}`:                                                  {unique: 6 * time.Hour},
		`{"function":"f","unique_key":"k","unique_ttl_ms":1}`:                                {unique: time.Millisecond},
		`{"function":"f","unique_key":"k","unique_ttl_ms":31536000000}`:                      {unique: year},
		`{"function":"f","rate_limit_key":"k","rate_limit_ms":5}`:                            {rate: 5 * time.Millisecond},
		`{"function":"f","debounce_key":"k","debounce_ms":7,"unique_key":"k"}`:               {unique: 6 * time.Hour, debounce: 7 * time.Millisecond},
		`{"function":"f","unique_key":"` + strings.Repeat("k", 128) + `","unique_ttl_ms":9}`: {unique: 9 * time.Millisecond},
	} {
		spec, err := ParseSpec([]byte(body))
		if err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		j := spec.Job(ID{1}, "q", Position{}, time.Unix(0, 0))
		if (j.Guards != nil) != spec.HasGuards() || j.Guards == nil && want != (struct{ unique, rate, debounce time.Duration }{}) {
			t.Errorf("%s: guards %+v", body, j.Guards)
		}
		if g := j.Guards; g != nil && (g.Unique.TTL != want.unique || g.Rate.TTL != want.rate || g.Debounce.TTL != want.debounce) {
			t.Errorf("%s: guards %+v, want %+v", body, g, want)
		}
	}
	for body, want := range map[string]string{
		`{"function":"f","unique_key":""}`:                                                                        "unique_key has 0 bytes",
		`{"function":"f","unique_key":" \t"}`:                                                                     "not all of them blank",
		`{"function":"f","unique_key":"` + strings.Repeat("k", 129) + `"}`:                                        "unique_key has 129 bytes",
		`{"function":"f","unique_key":7}`:                                                                         "unique_key must be a string",
		`{"function":"f","unique_until":"end"}`:                                                                   "unique_until means nothing without unique_key",
		`{"function":"f","unique_key":"k","unique_until":"never"}`:                                                "must be start or end",
		`{"function":"f","unique_key":"k","unique_until":"end","unique_ttl_ms":5}`:                                "exclude each other",
		`{"function":"f","unique_ttl_ms":5}`:                                                                      "unique_ttl_ms means nothing without unique_key",
		`{"function":"f","unique_key":"k","unique_ttl_ms":0}`:                                                     "unique_ttl_ms is 0",
		`{"function":"f","unique_key":"k","unique_ttl_ms":31536000001}`:                                           "must be 1 to 31536000000",
		`{"function":"f","rate_limit_key":"k"}`:                                                                   "rate_limit_key needs rate_limit_ms",
		`{"function":"f","rate_limit_ms":5}`:                                                                      "rate_limit_ms means nothing without rate_limit_key",
		`{"function":"f","debounce_key":"k"}`:                                                                     "debounce_key needs debounce_ms",
		`{"function":"f","debounce_key":"k","debounce_ms":-1}`:                                                    "debounce_ms is -1",
		`{"function":"f","rate_limit_key":"k","rate_limit_ms":5,"debounce_key":"k","debounce_ms":5}`:              "exclude each other",
		`{"function":"f","debounce_key":"k","debounce_ms":5,"run_at":"2026-03-19T02:00:00Z"}`:                     "debounce_key and run_at exclude each other",
		`{"blob":{"name":"n","chunks":1,"size":1,"sha256":"` + strings.Repeat("0", 64) + `"},"debounce_key":"k"}`: "debounce_key needs debounce_ms",
	} {
		_, err := ParseSpec([]byte(body))
		var invalid *InvalidError
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", body, err, want)
		}
	}
}

// TestGuardKey checks that keys of different kinds differ, and that the hash never
// changes: the ledger stores nothing else of a key.
func TestGuardKey(t *testing.T) {
	spec, err := ParseSpec([]byte(`{"function":"f","unique_key":"k","rate_limit_key":"k","rate_limit_ms":1}`))
	if err != nil {
		t.Fatal(err)
	}
	g := spec.guards()
	if g.Unique.Key == g.Rate.Key {
		t.Error("a unique key and a rate limit key of the same text are equal")
	}
	const want = "83116acf-18e4-dc44-1476-2f584ff43d99"
	if got := ID(g.Unique.Key).String(); got != want {
		t.Errorf("hash of the unique key is %s, want %s", got, want)
	}
	for text, err := range map[string]error{
		"job 00000000-0000-0000-0000-000000000001 of queue mail holds the same unique key": &DuplicateError{Queue: "mail", ID: ID{15: 1}},
		"the rate limit key is held, so no job was made; it is free in 1.5s":               &RateLimitedError{RetryAfter: 1500 * time.Millisecond},
	} {
		if err.Error() != text {
			t.Errorf("error is %q, want %q", err, text)
		}
	}
}
