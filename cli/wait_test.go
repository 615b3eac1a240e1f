package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"yardmaster/cluster"
)

// The wait ends when it is told to, whether the node says "not yet" or nothing.
func TestWait_Limited(t *testing.T) {
	release := make(chan struct{})
	patience := make(chan int64, 100) // of each request, in ms
	notYet := func(hold bool) func([]byte) ([]byte, error) {
		return func(body []byte) ([]byte, error) {
			var asked struct {
				Timeout int64 `json:"timeout_ms"`
			}
			if err := json.Unmarshal(body, &asked); err != nil {
				return nil, err
			}
			patience <- asked.Timeout
			if hold {
				<-release
			}
			return nil, &cluster.APIError{Code: "408", Text: "job has not ended"}
		}
	}
	const enqueued = `{"id":"j","queue":"mail","duplicate":false}`
	prompt := startFake(t, answers{"yard.enqueue.*": enqueued, "yard.api.v1.job.wait": notYet(false)})
	silent := startFake(t, answers{"yard.api.v1.job.wait": notYet(true)})
	defer close(release) // before the yards stop: they wait for what is under way
	for _, tt := range []struct {
		f         *fakeYard
		line, err string
	}{
		{prompt, "job wait j --for 300ms",
			"job j is not known to have ended within 300ms; it goes on: 'yardmaster job wait j' waits until it ends"},
		{prompt, "job wait k1 --queue mail --timeout 300ms",
			"job k1 is not known to have ended within 300ms; it goes on: 'yardmaster job wait k1 --queue mail' waits until it ends"},
		{prompt, "enqueue mail x --wait --for 300ms", "accepted as j\nyardmaster: " +
			"job j is not known to have ended within 300ms; it goes on: 'yardmaster job wait j' waits until it ends"},
		{silent, "job wait j --timeout 300ms",
			"job j is not known to have ended within 300ms; it goes on: 'yardmaster job wait j' waits until it ends"},
	} {
		began := time.Now()
		got := tt.f.run(t, strings.Fields(tt.line)...)
		if got.code != 1 || got.out != "" || got.err != "yardmaster: "+tt.err+"\n" {
			t.Errorf("%s: %+v", tt.line, got)
		}
		if took := time.Since(began); took < 300*time.Millisecond || took > 10*time.Second {
			t.Errorf("%s: took %s", tt.line, took)
		}
		if ms := <-patience; ms < 1 || ms > 300 {
			t.Errorf("%s: the node was to wait %d ms", tt.line, ms)
		}
		for len(patience) > 0 {
			<-patience
		}
	}
}

// Whoever interrupts a wait knows which job it was, and that it goes on.
func TestWait_Interrupted(t *testing.T) {
	for line, want := range map[string]string{
		"enqueue mail x --wait": "yardmaster: accepted as j\n" +
			"yardmaster: interrupted; job j is accepted and has not ended yet; it goes on: 'yardmaster job wait j' waits again\n",
		"job wait k1 -q mail": "yardmaster: interrupted while waiting for job k1; it goes on: 'yardmaster job wait k1 --queue mail' waits again\n",
	} {
		ctx, interrupt := context.WithCancel(t.Context())
		f := startFake(t, answers{
			"yard.enqueue.*": `{"id":"j","queue":"mail","duplicate":false}`,
			"yard.api.v1.job.wait": func([]byte) ([]byte, error) {
				interrupt()
				return nil, errors.New("nobody hears this")
			},
		})
		var out, errs bytes.Buffer
		code := Run(ctx, append(strings.Fields(line), "--server", f.url), Streams{Out: &out, Err: &errs}, Program{})
		if code != 1 || out.Len() != 0 || errs.String() != want {
			t.Errorf("%s: code %d, %q, %q", line, code, out.String(), errs.String())
		}
	}
}

// What is removed has no state any more.
func TestRemoved(t *testing.T) {
	f := startFake(t, answers{
		"yard.api.v1.job.remove":   `{"id":"j","removed":true}`,
		"yard.api.v1.queue.remove": `{"name":"mail","removed":true}`,
	})
	for line, want := range map[string]string{"job rm j": "j  removed\n", "queue rm mail": "mail  removed, with the records of its jobs that had ended\n"} {
		if got := f.run(t, strings.Fields(line)...); got != (ran{out: want}) {
			t.Errorf("%s: %+v", line, got)
		}
	}
	sameJSON(t, f.run(t, "job", "rm", "j", "--json").out, `{"id":"j","removed":true}`)
	sameJSON(t, f.run(t, "queue", "rm", "mail", "--json").out, `{"name":"mail","removed":true}`)
}

// Why a job does not run is told once, and again when it is something else.
func TestWait_Because(t *testing.T) {
	var shown []string
	for _, why := range []string{"queue mail is paused", "queue mail is paused", "no worker has credit for queue mail", ""} {
		shown = append(shown, `{"id":"j","state":"waiting","waiting_because":"`+why+`"}`)
	}
	over := make(chan struct{})
	f := startFake(t, answers{
		"yard.enqueue.*": `{"id":"j","queue":"mail","duplicate":false}`,
		"yard.api.v1.job.show": func([]byte) ([]byte, error) {
			text := shown[0]
			if shown = shown[1:]; len(shown) == 0 {
				close(over)
			}
			return []byte(text), nil
		},
		"yard.api.v1.job.wait": func([]byte) ([]byte, error) {
			select {
			case <-over:
				return []byte(`{"id":"j","state":"completed"}`), nil
			default:
				return nil, &cluster.APIError{Code: "408", Text: "job has not ended"}
			}
		},
	})
	got := f.run(t, "enqueue", "mail", "x", "--wait", "--json")
	const want = "yardmaster: accepted as j\nyardmaster: job j does not run yet: queue mail is paused\n" +
		"yardmaster: job j does not run yet: no worker has credit for queue mail\n"
	if got.code != 0 || got.err != want {
		t.Errorf("%+v", got)
	}
}
