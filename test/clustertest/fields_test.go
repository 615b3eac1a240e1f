package clustertest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// TestJobFields checks that the limit key, the labels and the expiry of a job are shown,
// whichever door it came through, and that a job which names an unknown limit is refused.
func TestJobFields(t *testing.T) {
	t.Parallel()
	cl := clustertest.Start(t, 1)
	m := cl.Members[0]
	m.AddQueue(t, "mail", 0)
	shown := func(id, key string) {
		t.Helper()
		j := m.WaitState(t, id, "delayed")
		if j.LimitKey != key || !slices.Equal(j.Tags, []string{"a", "b"}) || j.Meta["ticket"] != "7" || j.Expires == nil || j.Expires.Before(j.Created) {
			t.Errorf("%+v", j)
		}
	}
	const labels = `"function":"f","tags":["a","b"],"meta":{"ticket":"7"},"delay_ms":3600000,"expires_in_ms":7200000`
	shown(m.Enqueue(t, "mail", `{`+labels+`,"limit_key":"acme"}`).String(), "acme")
	shown(m.Enqueue(t, "mail", `{`+labels+`,"key":"acme"}`).String(), "acme")
	m.Enqueue(t, "mail", `{`+labels+`,"key":"acme","id":"order-1"}`)
	shown("order-1", "acme")
	_, js := connect(t, m)
	for key, body := range map[string]string{"order-2": `{` + labels + `,"key":"beta"}`, "order-3": `{` + labels + `,"key":"beta","limit_key":"beta"}`} {
		if _, err := js.Publish(shortContext(t), "yard.jobs.mail", []byte(body), jetstream.WithMsgID(key)); err != nil {
			t.Fatal(err)
		}
		shown(key, "beta")
	}
	args := strings.Fields("enqueue mail f --id order-4 --limit-key acme --tag a --tag b --meta ticket=7 --in 1h --expires-in 2h")
	mustRunCommand(t, m, args...)
	shown("order-4", "acme")
	if text := mustRunCommand(t, m, "job", "show", "order-4"); !strings.Contains(text, "a, b") || !strings.Contains(text, "limit key") {
		t.Error(text)
	}

	err := m.Request("yard.enqueue.mail", `{"function":"f","limits":{"stripe":""}}`, nil)
	if refused, ok := errors.AsType[*api.Error](err); !ok || refused.Code != api.CodeInvalid || !strings.Contains(refused.Text, "yardmaster limit set stripe") {
		t.Errorf("an unknown limit: %v", err)
	}
	if _, err := js.Publish(shortContext(t), "yard.jobs.mail", []byte(`{"function":"f","limits":{"stripe":""}}`), jetstream.WithMsgID("order-5")); err != nil {
		t.Fatal(err)
	}
	cl.Eventually("the record is a dead letter", func() error {
		var page api.DeadLetterPage
		if err := m.API("dlq.list", map[string]any{"queue": "mail", "error": "stripe"}, &page); err != nil {
			return err
		}
		if text := fmt.Sprintf("%+v", page); !strings.Contains(text, "the limit stripe, which does not exist") {
			return fmt.Errorf("the dead letters are %s", text)
		}
		return nil
	})
}

// TestJobExpires checks how a job ends that does not start in time, and that it can be retried.
func TestJobExpires(t *testing.T) {
	t.Parallel()
	cl := clustertest.Start(t, 1)
	m := cl.Members[0]
	m.AddQueue(t, "mail", 0)
	waiting := m.Enqueue(t, "mail", `{"function":"f","expires_in_ms":50}`).String()
	delayed := m.Enqueue(t, "mail", `{"function":"f","expires_in_ms":50,"run_at":"2100-01-01T00:00:00Z"}`).String()
	for _, id := range []string{waiting, delayed} {
		j := m.WaitOutcome(t, id)
		if j.State != job.Expired.String() || j.Error == nil || j.Error.Type != "expired" || j.Attempts != 0 || j.DeadLetter != 0 {
			t.Errorf("%+v", j)
		}
		var explained api.JobExplanation
		if err := m.API("job.explain", api.JobRequest{ID: id}, &explained); err != nil || !strings.Contains(fmt.Sprintf("%+v", explained), "before it could start") {
			t.Errorf("%+v, %v", explained, err)
		}
	}
	if err := m.CheckCount("mail", "expired", 2); err != nil {
		t.Error(err)
	}
	var list api.JobList
	if err := m.API("job.list", api.JobListRequest{States: []string{"expired"}}, &list); err != nil || len(list.Jobs) != 2 {
		t.Errorf("%+v, %v", list, err)
	}
	record, err := m.Overhop(t, overhop.Options{}).Job(t.Context(), "mail:"+waiting)
	if status, _ := record.Get("status").Str(); err != nil || status != "failed" {
		t.Errorf("over Overhop it is %s, %v", status, err)
	}

	m.Worker(t, "mail", 4, func(context.Context, *overhop.Quest) (overhop.Raw, error) { return nil, nil })
	mustRunCommand(t, m, "job", "retry", waiting)
	if j := m.WaitState(t, waiting, "completed"); j.Expires != nil {
		t.Errorf("it still expires at %s", j.Expires)
	}
	if text := mustRunCommand(t, m, "queue", "clear", "mail", "--state", "expired"); !strings.Contains(text, delayed) {
		t.Error(text)
	}
}
