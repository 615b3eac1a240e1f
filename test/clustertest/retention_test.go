package clustertest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/node/config"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// TestRetention fills what the yard keeps several times beyond small bounds, changes the
// bounds while it runs and restarts it. No job is refused, and what is gone is reported.
func TestRetention(t *testing.T) {
	const bound = 4 << 20
	cl := clustertest.Start(t, 1, func(c *config.Config) {
		c.Retention = config.Retention{
			Finished: config.RetentionBounds{Count: 50}, Failed: config.RetentionBounds{Bytes: bound}, Results: config.RetentionBounds{Bytes: 2 * bound},
			Events: config.RetentionBounds{Bytes: bound}, Logs: config.RetentionBounds{Bytes: bound},
		}
	})
	m := cl.Members[0]
	stream := func(name string) (found api.StreamStatus) {
		s, err := m.Status()
		if err != nil {
			t.Fatal(err)
		}
		for _, stream := range s.Streams {
			if stream.Stream == name {
				found = stream
			}
		}
		return found
	}
	cl.Eventually("the streams have the bounds of the file", func() error {
		for _, name := range []string{"YARD_DLQ", "YARD_RESULTS", "YARD_RESULT_BLOBS", "YARD_EVENTS", "YARD_LOGS"} {
			if s := stream(name); s.LimitBytes != bound || s.WhenFull != api.Evicts {
				return fmt.Errorf("%+v", s)
			}
		}
		return nil
	})

	own := func(queue string) { // a queue whose records are all kept
		if err := m.API("queue.add", api.QueueRequest{Name: queue, Retention: api.QueueRetentionChange{Finished: api.RetentionAgeCount{Count: api.SetTo[int64](1000)}}}, nil); err != nil {
			t.Fatal(err)
		}
	}
	own("fails")
	own("works")
	m.AddQueue(t, "plain", 0)
	large := overhop.AppendStr(nil, strings.Repeat("r", 100<<10))
	m.Worker(t, "fails", 8, func(context.Context, *overhop.Quest) (overhop.Raw, error) {
		return nil, &overhop.FailError{Message: "no", Final: true}
	})
	m.Worker(t, "works", 8, func(ctx context.Context, q *overhop.Quest) (overhop.Raw, error) {
		return large, q.Log(ctx, strings.Repeat("l", 4<<10))
	})
	m.Worker(t, "plain", 8, func(context.Context, *overhop.Quest) (overhop.Raw, error) { return nil, nil })

	enqueue := func(queue string, size, n int) (ids []string) {
		for range n {
			ids = append(ids, m.Enqueue(t, queue, fmt.Sprintf(`{"params":{"text":%q}}`, strings.Repeat("x", size))).String())
		}
		return ids
	}
	withBlob := enqueue("fails", 100<<10, 3)
	for _, id := range withBlob {
		m.WaitState(t, id, "failed")
	}
	failed, worked, plain := enqueue("fails", 50<<10, 300), enqueue("works", 10, 150), enqueue("plain", 10, 150)
	for _, all := range [][]string{failed, worked} {
		for _, id := range all {
			m.WaitOutcome(t, id)
		}
	}
	metadata := strings.Repeat("m", 4000)
	for i := range 2500 {
		if err := m.Request(api.SubjectExec, fmt.Sprintf(`{"command":"QueueDispatch","request_id":"r%d","target":"t","metadata":{"m":%q}}`, i, metadata), nil); err != nil {
			t.Fatal(err)
		}
	}
	cl.Eventually("all streams are within their bounds and hold something", func() error {
		for _, name := range []string{"YARD_DLQ", "YARD_RESULT_BLOBS", "YARD_EVENTS", "YARD_LOGS"} {
			if s := stream(name); s.Bytes > bound || s.Messages == 0 || s.Oldest == nil {
				return fmt.Errorf("%+v", s)
			}
		}
		return nil
	})

	wantRefusal := func(what string, err error, code, text string) {
		t.Helper()
		var refused *api.Error
		if !errors.As(err, &refused) || refused.Code != code || !strings.Contains(refused.Text, text) {
			t.Errorf("%s: %v, want %s and %q", what, err, code, text)
		}
	}
	if j := m.Job(t, failed[0]); !j.LetterGone || j.DeadLetter == 0 {
		t.Errorf("the first failed job is %+v", j)
	}
	if j := m.Job(t, failed[len(failed)-1]); j.LetterGone {
		t.Error("the last failed job has no dead letter")
	}
	if j := m.Job(t, worked[0]); j.ResultGone != "result_evicted" || j.State != "completed" {
		t.Errorf("the first job with a result is %s, its result is gone: %q", j.State, j.ResultGone)
	}
	if j := m.Job(t, plain[0]); j.State != "completed" || j.Ended == nil || !j.PayloadGone && len(j.Params) == 0 {
		t.Errorf("a job that the ledger has forgotten is %+v", j)
	}
	cl.Eventually("a job whose letter and body are gone cannot be retried", func() error {
		err := m.API("job.retry", api.JobRequest{ID: withBlob[0]}, nil)
		if err == nil {
			t.Fatal("the job was retried")
		}
		if !strings.Contains(err.Error(), "letter_gone") {
			return err
		}
		return nil
	})

	set := func(change api.RetentionChange) (r api.Retention) {
		if err := m.API("retention.set", change, &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	set(api.RetentionChange{Failed: api.RetentionBounds{Count: api.SetTo[int64](20)}})
	waitDeadLetters(t, cl, m, 20)
	if err := m.API("queue.set", api.QueueChange{Name: "fails", Retention: api.QueueRetentionChange{Failed: api.RetentionAgeCount{Count: api.SetTo[int64](7)}}}, nil); err != nil {
		t.Fatal(err)
	}
	waitDeadLetters(t, cl, m, 7)
	m.Restart()
	cl.WaitReady()
	if s := stream("YARD_DLQ"); s.LimitMessages != 20 || s.LimitBytes != bound {
		t.Errorf("after the restart: %+v", s)
	}
	set(api.RetentionChange{Failed: api.RetentionBounds{Count: api.Reset[int64]()}})
	cl.Eventually("the default is back", func() error {
		if s := stream("YARD_DLQ"); s.LimitMessages != 100_000 || s.LimitBytes != bound {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	wantRefusal("bytes of records", m.API("retention.set", map[string]any{"finished": map[string]any{"bytes": 1 << 30}}, nil), api.CodeInvalid, "finished.count")
}
