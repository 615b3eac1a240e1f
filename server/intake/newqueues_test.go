package intake

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/test/fakeledger"
)

// Each user may name so many queues that do not exist within any minute, each of them as often as it
// likes, and use those that exist.
func TestNewQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fakeledger.New()
		f.Apply(&ledger.AddQueue{ID: job.ID{1}, Name: "mail"})
		n := &NewQueues{View: f.View, Max: 3}
		check := func(user, queue string) error { return n.Check(func() string { return user }, queue) }
		allowed := func(user string, queues ...string) {
			t.Helper()
			for _, queue := range queues {
				if err := check(user, queue); err != nil {
					t.Errorf("%s of %s: %v", queue, user, err)
				}
			}
		}
		refused := func(user, queue string, wait time.Duration) {
			t.Helper()
			err, ok := errors.AsType[*api.Error](check(user, queue))
			if !ok || err.Code != api.CodeLimited || err.Reason() != api.ReasonNewQueues || err.RetryAfter != wait {
				t.Fatalf("%s of %s: %+v, want one with %s", queue, user, err, wait)
			}
			for _, part := range []string{queue, user, "scheduler.new_queues_per_minute"} {
				if !strings.Contains(err.Text, part) {
					t.Errorf("%q does not name %s", err.Text, part)
				}
			}
		}
		allowed("shop", "a", "a", "mail")
		time.Sleep(10 * time.Second)
		allowed("shop", "b", "c", "mail", "a", "b")
		refused("shop", "d", 50*time.Second)
		allowed("shop", "mail", "a", "b", "c")
		allowed("mailer", "d", "e", "f")
		time.Sleep(50*time.Second - 1)
		refused("shop", "d", 1)
		time.Sleep(1)
		allowed("shop", "d") // the first one, a, does not count any more
		refused("shop", "e", 10*time.Second)
		f.Apply(&ledger.AddQueue{ID: job.ID{2}, Name: "e"})
		allowed("shop", "e")
		refused("shop", "a", 10*time.Second)
		for i := range 100 {
			allowed("", fmt.Sprint("q", i))
			if err := n.Check(nil, fmt.Sprint("q", i)); err != nil {
				t.Error(err)
			}
			if err := (*NewQueues)(nil).Check(func() string { return "shop" }, fmt.Sprint("q", i)); err != nil {
				t.Error(err)
			}
		}
	})
}
