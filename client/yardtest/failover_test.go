package yardtest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/client"
	"github.com/yardmaster-dev/yardmaster/client/yardtest"
)

func TestFailover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := yardtest.New(t)
		c := y.Client()
		w := c.Worker()
		client.Handle(w, func(context.Context, *client.Job[SendMail]) (string, error) {
			time.Sleep(time.Minute)
			return "sent", nil
		})
		y.Work(w)
		id, err := client.Enqueue(t.Context(), c, SendMail{To: "ann"})
		if err != nil {
			t.Fatal(err)
		}
		y.Advance(time.Second) // the job has started
		y.KillAuthority()
		if result, err := c.Wait(t.Context(), id); err != nil || result.Attempts != 1 {
			t.Errorf("after %d attempts: %v", result.Attempts, err)
		}
	})
}
