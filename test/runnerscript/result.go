package runnerscript

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

func (run *scriptRun) show(sj *scriptJob) (v api.Job, err error) {
	return v, run.request("yard.api.v1.job.show", api.JobRequest{ID: sj.id.String()}, &v)
}

// waitEnd waits for the end of a job and records it. words is <name> [after=…].
func (run *scriptRun) waitEnd(words []string) error {
	var after time.Duration
	var err error
	if len(words) == 2 {
		after, err = time.ParseDuration(strings.TrimPrefix(words[1], "after="))
	}
	if err != nil || len(words) == 0 || run.jobs[words[0]] == nil {
		return errors.Join(err, errors.New("want ? <name> [after=<duration>], with the name of a job enqueued above"))
	}
	e := run.jobs[words[0]]
	v, err := run.show(e)
	for err == nil && (v.State != "completed" && v.State != "failed" || v.Dispatches <= e.prevDispatches && e.prevDispatches > 0) {
		if run.pause() != nil {
			return fmt.Errorf("the job is still %s: %+v", v.State, v)
		}
		v, err = run.show(e)
	}
	if err != nil {
		return err
	}
	letter, err := run.hasDeadLetter(e, v.State == "failed")
	if err != nil {
		return err
	}
	if letter != (v.State == "failed") {
		return fmt.Errorf("the job is %s; it has a dead letter: %t", v.State, letter)
	}
	e.losses = v.Losses
	if n := v.ResultBytes; n > 0 && n < overhop.DefaultFrameLimit-maxNATSRecord {
		text, err := run.fullResult(e)
		if err != nil {
			return err
		}
		if v.Result, err = json.Marshal(text); err != nil {
			return err
		}
		v.ResultBytes = 0
	}
	fmt.Fprintln(&run.out, endText(&v, run.env.Attempts))
	from := v.Created
	if !e.due.IsZero() && v.State == "completed" {
		from, after = e.due, clockSkew
	}
	var took time.Duration
	if v.Started != nil {
		took = v.Started.Sub(from)
	}
	if after > 0 && took < after-clockSkew {
		return fmt.Errorf("the last start was %s after the job was accepted or due, want at least %s", took, after)
	}
	return run.writeAttempts(e)
}

// clockSkew is how far the clock behind a record's acceptance time may be ahead
// of the ledger's clock.
const clockSkew = 25 * time.Millisecond

// hasDeadLetter reports whether a job has a dead letter. If must is set, it waits
// for one until run.ctx ends.
func (run *scriptRun) hasDeadLetter(e *scriptJob, must bool) (bool, error) {
	for {
		var answer struct{ Letters []struct{ ID string } }
		if err := run.request("yard.api.v1.dlq.list", map[string]any{"jobs": []job.ID{e.id}}, &answer); err != nil {
			return false, err
		}
		if n := len(answer.Letters); n > 1 {
			return true, fmt.Errorf("the job has %d dead letters", n)
		} else if n == 1 || !must {
			return n == 1, nil
		}
		if run.pause() != nil {
			return false, nil
		}
	}
}

// endText formats the end of a job without what differs from run to run: times,
// places, and the number of lost dispatches. A timeout is reported by the runner
// or by the node, whichever detects it first, so its message is left out as well.
func endText(v *api.Job, attempts uint32) string {
	if v.MaxAttempts == 0 {
		v.MaxAttempts = attempts
	}
	text := fmt.Sprintf("%s in %s: attempts %d of %d", v.State, v.Queue, v.Attempts, v.MaxAttempts)
	switch {
	case v.State == "completed":
		return text + ", result " + formatValue(v.Result, v.ResultBytes)
	case v.Error == nil:
		return fmt.Sprintf("%s, dead letter, %s", text, v.Reason)
	case v.Error.Type == "":
		return fmt.Sprintf("%s, dead letter, %q", text, v.Error.Message)
	case v.Error.Type == job.FaultTimeout:
		return text + ", dead letter, timeout"
	}
	message := frameSize.ReplaceAllString(v.Error.Message, "frame of … bytes")
	return fmt.Sprintf("%s, dead letter, %s %q", text, v.Error.Type, message)
}

// frameSize matches a frame size in an error message. It depends on the length of
// ids and numbers in the frame.
var frameSize = regexp.MustCompile(`frame of [0-9]+ bytes`)

// maxValueLen is the length in bytes up to which a value is recorded in full. Of
// a longer one the beginning, the length and a hash are recorded.
const maxValueLen = 120

// formatValue formats a JSON value in the same way for all runners, which differ
// in white space and escaping. A size above 0 means that the value was not shown.
func formatValue(raw json.RawMessage, size int) string {
	if size > 0 {
		return fmt.Sprintf("of %d bytes", size)
	}
	if len(raw) == 0 {
		return "null"
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return err.Error()
	}
	var plain bytes.Buffer
	out := json.NewEncoder(&plain)
	out.SetEscapeHTML(false)
	if err := out.Encode(v); err != nil {
		return err.Error()
	}
	text := strings.TrimSpace(plain.String())
	if len(text) > maxValueLen {
		return fmt.Sprintf("%s… of %d bytes, SHA-256 %.8x…", text[:maxValueLen/6], len(text), sha256.Sum256([]byte(text)))
	}
	return text
}
