package yardtest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/client"
	"github.com/yardmaster-dev/yardmaster/client/yardtest"
)

type SendMail struct {
	To string `json:"to"`
}

func (SendMail) Kind() string  { return "send_mail" }
func (SendMail) Queue() string { return "mail" }

func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := yardtest.New(t)
		c := y.Client()
		w := c.Worker()
		client.Handle(w, func(_ context.Context, job *client.Job[SendMail]) (string, error) {
			if job.Attempt < 3 {
				return "", errors.New("greylisted")
			}
			return "sent to " + job.Args.To, nil
		})
		y.Work(w)

		if _, err := client.Enqueue(t.Context(), c, SendMail{To: "ann"}, client.RetryEvery(time.Hour)); err != nil {
			t.Fatal(err)
		}
		y.ExpectEnqueued(SendMail{To: "ann"})
		y.Advance(3 * time.Hour)
		if job := y.Jobs("mail")[0]; job.State != "completed" || job.Attempts != 3 {
			t.Errorf("the job is %s after %d attempts", job.State, job.Attempts)
		}
	})
}
