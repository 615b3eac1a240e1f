package bench

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestLoad_LateOrLost checks that jobs count as lost only once none ends any more.
func TestLoad_LateOrLost(t *testing.T) {
	for _, c := range []struct {
		what string
		ends []time.Duration // when jobs end
		want string          // part of the error; "": none
	}{
		{"late", []time.Duration{0, waitTimeout / 2, waitTimeout * 5 / 4, 2 * waitTimeout}, ""},
		{"lost", []time.Duration{0, waitTimeout / 2, waitTimeout * 5 / 4}, "accepted 4, settled 3, and none for " + waitTimeout.String() + ": 1 are lost"},
		{"twice", []time.Duration{0, 0, 0, 0, 0}, "1 ended twice"},
		{"no time", []time.Duration{0, waitTimeout / 2, waitTimeout * 5 / 4, 10 * waitTimeout}, "1 are late or lost"},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var l load
				l.accepted.Store(4)
				for _, at := range c.ends {
					time.AfterFunc(at, func() { l.settled.Add(1) })
				}
				synctest.Wait()
				ctx := t.Context()
				if c.what == "no time" {
					limited, cancel := context.WithTimeout(ctx, 2*waitTimeout)
					defer cancel()
					ctx = limited
				}
				err := l.awaitEnds(ctx)
				if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
					t.Errorf("got %v, want %q", err, c.want)
				}
			})
		})
	}
}
