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

// A job is retried until an outage of three hours is over.
func Example() {
	test := func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			y := yardtest.New(t)
			c := y.Client()
			w := c.Worker()
			end := time.Now().Add(3 * time.Hour)
			client.Handle(w, func(_ context.Context, job *client.Job[SendMail]) (string, error) {
				if time.Now().Before(end) {
					return "", errors.New("mail server is down")
				}
				return "sent to " + job.Args.To, nil
			})
			y.Work(w)

			_, err := client.Enqueue(t.Context(), c, SendMail{To: "ann"}, client.RetryEvery(50*time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			y.ExpectEnqueued(SendMail{To: "ann"})

			y.Drain()
			if job := y.Jobs("mail")[0]; job.State != "delayed" || job.Attempts != 1 {
				t.Errorf("the job is %s after %d attempts", job.State, job.Attempts)
			}
			y.Advance(4 * time.Hour)
			if job := y.Jobs("mail")[0]; job.State != "completed" || job.Attempts != 5 {
				t.Errorf("the job is %s after %d attempts", job.State, job.Attempts)
			}
		})
	}
	run("TestSend", test)
	// Output: TestSend passed
}
