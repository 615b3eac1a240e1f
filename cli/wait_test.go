package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
)

// A wait ends at its timeout, whether the node replies 408 or not at all.
func TestWait_Timeout(t *testing.T) {
	release := make(chan struct{})
	timeouts := make(chan int64, 100) // of the requests, in ms
	notYet := func(hold bool) func([]byte) ([]byte, error) {
		return func(body []byte) ([]byte, error) {
			var asked struct {
				Timeout int64 `json:"timeout_ms"`
			}
			if err := json.Unmarshal(body, &asked); err != nil {
				return nil, err
			}
			timeouts <- asked.Timeout
			if hold {
				<-release
			}
			return nil, &api.Error{Code: api.CodeTimeout, Text: "job has not ended"}
		}
	}
	const enqueued = `{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a28","queue":"mail","duplicate":false}`
	prompt := startFakeAPI(t, cannedReplies{"yard.enqueue.*": enqueued, "yard.api.v1.job.wait": notYet(false)})
	silent := startFakeAPI(t, cannedReplies{"yard.api.v1.job.wait": notYet(true)})
	defer close(release) // before the servers stop, which wait for their handlers
	for _, tt := range []struct {
		f         *fakeAPI
		line, err string
	}{
		{prompt, "job wait j --for 300ms",
			"job j is not known to have ended within 300ms; the job continues; 'yardmaster job wait j' waits until it ends"},
		{prompt, "job wait k1 --queue mail --timeout 300ms",
			"job k1 is not known to have ended within 300ms; the job continues; 'yardmaster job wait k1 --queue mail' waits until it ends"},
		{prompt, "enqueue mail x --wait --for 300ms", "accepted as 0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a28\nyardmaster: " +
			"job 0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a28 is not known to have ended within 300ms; the job continues; 'yardmaster job wait 0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a28' waits until it ends"},
		{silent, "job wait j --timeout 300ms",
			"job j is not known to have ended within 300ms; the job continues; 'yardmaster job wait j' waits until it ends"},
	} {
		began := time.Now()
		got := tt.f.run(t, strings.Fields(tt.line)...)
		if got.code != 5 || got.out != "" || got.err != "yardmaster: "+tt.err+"\n" {
			t.Errorf("%s: %+v", tt.line, got)
		}
		if took := time.Since(began); took < 300*time.Millisecond || took > 10*time.Second {
			t.Errorf("%s: took %s", tt.line, took)
		}
		if ms := <-timeouts; ms < 1 || ms > 300 {
			t.Errorf("%s: the request has timeout_ms %d", tt.line, ms)
		}
		for len(timeouts) > 0 {
			<-timeouts
		}
	}
}

// An interrupted wait shows the job and that it continues.
func TestWait_Interrupted(t *testing.T) {
	for line, want := range map[string]string{
		"enqueue mail x --wait": "yardmaster: accepted as 0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a28\n" +
			"yardmaster: interrupted; job 0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a28 is accepted and has not ended yet; the job continues; 'yardmaster job wait 0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a28' waits for it again\n",
		"job wait k1 -q mail": "yardmaster: interrupted while waiting for job k1; the job continues; 'yardmaster job wait k1 --queue mail' waits for it again\n",
	} {
		ctx, interrupt := context.WithCancel(t.Context())
		f := startFakeAPI(t, cannedReplies{
			"yard.enqueue.*": `{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a28","queue":"mail","duplicate":false}`,
			"yard.api.v1.job.wait": func([]byte) ([]byte, error) {
				interrupt()
				return nil, errors.New("not received")
			},
		})
		var out, errs bytes.Buffer
		code := Run(ctx, append(strings.Fields(line), "--server", f.url), Streams{Out: &out, Err: &errs}, Program{})
		if code != 1 || out.Len() != 0 || errs.String() != want {
			t.Errorf("%s: code %d, %q, %q", line, code, out.String(), errs.String())
		}
	}
}

// A removed job or queue is shown without a state.
func TestRemoved(t *testing.T) {
	f := startFakeAPI(t, cannedReplies{
		"yard.api.v1.job.remove":   `{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a28","removed":true}`,
		"yard.api.v1.queue.remove": `{"name":"mail","removed":true}`,
	})
	for line, want := range map[string]string{"job rm j": "0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a28  removed\n", "queue rm mail": "mail  removed, with its ended jobs\n"} {
		if got := f.run(t, strings.Fields(line)...); got != (cmdResult{out: want}) {
			t.Errorf("%s: %+v", line, got)
		}
	}
	sameJSON(t, f.run(t, "job", "rm", "j", "--json").out, `{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a28","removed":true}`)
	sameJSON(t, f.run(t, "queue", "rm", "mail", "--json").out, `{"name":"mail","removed":true}`)
}

// The reason why a job does not run is shown once, and again when it changes.
func TestWait_ReportsReason(t *testing.T) {
	var shown []string
	for _, reason := range []string{"queue mail is paused", "queue mail is paused", "no worker has credit for queue mail", ""} {
		shown = append(shown, `{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a28","state":"waiting","waiting_because":"`+reason+`"}`)
	}
	allShown := make(chan struct{})
	f := startFakeAPI(t, cannedReplies{
		"yard.enqueue.*": `{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a28","queue":"mail","duplicate":false}`,
		"yard.api.v1.job.show": func([]byte) ([]byte, error) {
			text := shown[0]
			if shown = shown[1:]; len(shown) == 0 {
				close(allShown)
			}
			return []byte(text), nil
		},
		"yard.api.v1.job.wait": func([]byte) ([]byte, error) {
			select {
			case <-allShown:
				return []byte(`{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a28","state":"completed"}`), nil
			default:
				return nil, &api.Error{Code: api.CodeTimeout, Text: "job has not ended"}
			}
		},
	})
	got := f.run(t, "enqueue", "mail", "x", "--wait", "--json")
	const want = "yardmaster: accepted as 0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a28\nyardmaster: job 0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a28 does not run yet: queue mail is paused\n" +
		"yardmaster: job 0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a28 does not run yet: no worker has credit for queue mail\n"
	if got.code != 0 || got.err != want {
		t.Errorf("%+v", got)
	}
}
