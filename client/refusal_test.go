package client

import (
	"errors"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
)

// A request that is refused because its user may make no more queues now succeeds later, so that an
// outbox keeps the job. One whose rate limit key is held is answered.
func TestRefusalOf_Limited(t *testing.T) {
	for data, want := range map[string]error{`{"reason":"` + api.ReasonNewQueues + `"}`: ErrUnavailable, `{"reason":"other"}`: ErrRateLimited, "": ErrRateLimited} {
		err := refusalOf(&api.Error{Code: api.CodeLimited, Data: []byte(data), RetryAfter: time.Second})
		refused, ok := errors.AsType[*Error](err)
		if !ok || refused.Code != "429" || refused.RetryAfter != time.Second {
			t.Fatalf("%s: %+v", data, err)
		}
		for _, kind := range []error{ErrUnavailable, ErrRateLimited} {
			if got := errors.Is(err, kind); got != (kind == want) {
				t.Errorf("%s: is %v: %v", data, kind, got)
			}
		}
	}
}
