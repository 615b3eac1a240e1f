package yardtest_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/client"
	"github.com/yardmaster-dev/yardmaster/client/yardtest"
)

// A handler that never returns makes Drain fail, and the message names its job.
func TestDrain_Stuck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		y := yardtest.New(&stub{T: t})
		c := y.Client()
		w := c.Worker()
		release := make(chan struct{})
		defer close(release)
		client.Handle(w, func(context.Context, *client.Job[SendMail]) (string, error) {
			<-release
			return "", nil
		})
		y.Work(w)
		for _, to := range []string{"ann", "bob"} {
			if _, err := client.Enqueue(t.Context(), c, SendMail{To: to}, client.Timeout(1000*time.Hour)); err != nil {
				t.Fatal(err)
			}
		}
		got := fails(t, y.Drain)
		for _, want := range []string{`in queue mail, attempt 1, for 1h0m`, `send_mail({"to":"ann"})`, `send_mail({"to":"bob"})`, "call Advance"} {
			if !strings.Contains(got, want) {
				t.Errorf("%q is missing in: %s", want, got)
			}
		}
	})
}

// Fail refuses arguments that have no effect.
func TestFail_Arguments(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		y := yardtest.New(&stub{T: t})
		for _, c := range []struct {
			queue string
			n     int
			want  string
		}{{"", 1, "queue name"}, {"a b", 1, `"a b"`}, {"mail", 0, "0 attempts"}, {"mail", -2, "1 or more"}} {
			if got := fails(t, func() { y.Fail(c.queue, c.n) }); !strings.Contains(got, "yardtest: Fail: ") || !strings.Contains(got, c.want) {
				t.Errorf("Fail(%q, %d): %s", c.queue, c.n, got)
			}
		}
	})
}

// With a seed, jobs have the same ids in every run.
func TestSeed(t *testing.T) {
	ids := func(seed uint64) (ids []string) {
		synctest.Test(t, func(t *testing.T) {
			y := yardtest.New(t, yardtest.Seed(seed))
			c := y.Client()
			for range 3 {
				id, err := client.Enqueue(t.Context(), c, SendMail{})
				if err != nil {
					t.Fatal(err)
				}
				ids = append(ids, id)
			}
		})
		return ids
	}
	first, again, other := ids(7), ids(7), ids(8)
	if !slices.Equal(first, again) || slices.Equal(first, other) {
		t.Errorf("ids %q, then %q; with another seed %q", first, again, other)
	}
}
