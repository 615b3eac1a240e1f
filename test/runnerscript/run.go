package runnerscript

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"
)

// scriptRun is the state of one running script.
type scriptRun struct {
	ctx    context.Context
	env    Env
	script Script
	jobs   map[string]*scriptJob
	out    strings.Builder

	// No fault is injected between a script's wait for an active job and its
	// cancel: if the job's runner were killed there, the job would end as one
	// that never started.
	pendingCancels *sync.WaitGroup // counts the scripts with cancels left
	cancelsDone    func()          // marks this script as having none left
	cancelsLeft    int             // cancels of this script not sent yet
}

// scriptJob is a job that the script has enqueued.
type scriptJob struct {
	id             job.ID
	jid            string    // id on the Overhop wire
	prevDispatches uint32    // number of dispatches at the last requeue
	due            time.Time // zero if not delayed
	losses         uint32    // lost dispatches, known at the end
}

// run plays the script and returns its text with the actual output.
func (run *scriptRun) run() (string, error) {
	if run.cancelsLeft == 0 {
		run.cancelsDone()
	}
	for line := range strings.Lines(run.script.Text) {
		line = strings.TrimRight(line, "\n")
		if line != "" && strings.IndexByte("#>?", line[0]) < 0 {
			continue // expected output
		}
		fmt.Fprintln(&run.out, line)
		var err error
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '>':
			err = run.exec(strings.TrimSpace(line[1:]))
		default:
			err = run.waitEnd(strings.Fields(line[1:]))
		}
		if err != nil {
			return run.out.String(), fmt.Errorf("%s: %s: %w", run.script.Name, line, err)
		}
	}
	return run.out.String(), nil
}

// exec executes a command line, without its ">".
func (run *scriptRun) exec(line string) error {
	verb, rest, _ := strings.Cut(line, " ")
	switch verb {
	case "job":
		return run.enqueue(rest)
	case "queue", "pause", "resume":
		return run.queueCommand(verb, strings.Fields(rest))
	case "inturn":
		return run.checkOrder(strings.Fields(rest))
	case "atonce":
		return run.checkConcurrency(strings.Fields(rest))
	case "quiet":
		run.cancelsDone()
		run.pendingCancels.Wait()
		return nil
	case "now":
		if run.env.OnNow == nil {
			return nil
		}
		var ids []job.ID
		for _, e := range run.jobs {
			ids = append(ids, e.id)
		}
		return run.env.OnNow(run.ctx, ids)
	}
	e := run.jobs[rest]
	if e == nil {
		return fmt.Errorf("unknown job %q", rest)
	}
	switch verb {
	case "active":
		return run.waitState(e, "active")
	case "started":
		return run.waitState(e, "active", "completed")
	case "waiting":
		return run.waitState(e, "waiting", "delayed")
	case "cancel":
		defer run.cancelSent()
		return run.recordRefusal(run.request("yard.api.v1.job.cancel", map[string]any{"id": e.id.String()}, nil))
	case "requeue":
		return run.requeue(e)
	}
	return fmt.Errorf("unknown command %q", verb)
}

// cancelSent counts a cancel as sent.
func (run *scriptRun) cancelSent() {
	if run.cancelsLeft--; run.cancelsLeft == 0 {
		run.cancelsDone()
	}
}

// queueCommand creates (words: <name> [<limit>]), pauses or resumes a queue. A
// conflict is not an error: it means that an earlier request was executed and
// its answer lost.
func (run *scriptRun) queueCommand(verb string, words []string) error {
	if len(words) == 0 {
		return errors.New("the name of a queue is missing")
	}
	params := map[string]any{"name": words[0]}
	if verb == "queue" {
		verb = "add"
		if len(words) == 2 {
			limit, err := strconv.Atoi(words[1])
			if err != nil {
				return err
			}
			params["concurrency_limit"] = limit
		}
	}
	err := run.request(api.SubjectAPI+".queue."+verb, params, nil)
	if refused := (*api.Error)(nil); errors.As(err, &refused) && refused.Code == "409" {
		return nil
	}
	return err
}

// repeatPattern matches "text*n" in a record, which means n times the text.
var repeatPattern = regexp.MustCompile(`"([^"]+)\*([0-9]+)"`)

// enqueue enqueues a job. line is <name> <queue> [delay=…] <record>.
func (run *scriptRun) enqueue(line string) error {
	name, line, _ := strings.Cut(line, " ")
	queue, line, _ := strings.Cut(line, " ")
	var due time.Time
	if rest, ok := strings.CutPrefix(line, "delay="); ok {
		text, record, _ := strings.Cut(rest, " ")
		delay, err := time.ParseDuration(text)
		if err != nil {
			return err
		}
		line, due = record, time.Now().Add(delay)
	}
	line = repeatPattern.ReplaceAllStringFunc(line, func(s string) string {
		found := repeatPattern.FindStringSubmatch(s)
		n, _ := strconv.Atoi(found[2])
		return `"` + strings.Repeat(found[1], n) + `"`
	})
	var spec map[string]json.RawMessage
	if err := json.Unmarshal([]byte(line), &spec); err != nil {
		return err
	}
	key := run.script.Name + "/" + name
	spec["id"], _ = json.Marshal(key)
	if !due.IsZero() {
		spec["run_at"], _ = json.Marshal(due)
	}
	id, err := job.KeyID(queue, key)
	if err != nil {
		return err
	}
	var accepted struct{ ID job.ID }
	if err := run.request(api.SubjectEnqueue+"."+queue, spec, &accepted); err != nil {
		return run.recordRefusal(err)
	}
	run.jobs[name] = &scriptJob{id: accepted.ID, jid: queue + ":" + accepted.ID.String(), due: due}
	if accepted.ID == id {
		return nil
	}
	for other, e := range run.jobs {
		if other != name && e.id == accepted.ID {
			fmt.Fprintf(&run.out, "it is %s\n", other)
			return nil
		}
	}
	return fmt.Errorf("accepted as %s, which is not a job of this script", accepted.ID)
}

// request sends a request until it is answered or refused, and decodes the answer
// into answer unless that is nil.
func (run *scriptRun) request(subject string, request, answer any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	for {
		var raw []byte
		if queue, ok := strings.CutPrefix(subject, api.SubjectEnqueue+"."); ok && len(body) > maxNATSRecord {
			raw, err = run.enqueueHTTP(queue, body)
		} else {
			raw, err = run.env.Request(run.ctx, subject, body)
		}
		if err == nil {
			if answer == nil {
				return nil
			}
			return json.Unmarshal(raw, answer)
		}
		var refused *api.Error
		if errors.As(err, &refused) && refused.Code[0] == '4' {
			return refused
		}
		if run.pause() != nil {
			return err
		}
	}
}

// pause waits for the time between two polls, or until run.ctx ends.
func (run *scriptRun) pause() error { return backoff.Sleep(run.ctx, 20*time.Millisecond) }

// durationPattern matches durations, which differ between runs of a script.
var durationPattern = regexp.MustCompile(`\b[0-9]+(h|m|s|ms)[0-9.hms]*\b`)

// recordRefusal records err as output of the script if it is a refusal, and
// returns any other error.
func (run *scriptRun) recordRefusal(err error) error {
	var refused *api.Error
	if errors.As(err, &refused) {
		fmt.Fprintf(&run.out, "refused with %s: %s\n", refused.Code, durationPattern.ReplaceAllString(refused.Text, "…"))
		return nil
	}
	return err
}

// waitState waits until a job is in one of the states. It fails if the job ends
// first.
func (run *scriptRun) waitState(e *scriptJob, states ...string) error {
	for {
		v, err := run.show(e)
		if err != nil {
			return err
		}
		if slices.Contains(states, v.State) {
			return nil
		}
		if hasEnded(&v) {
			return fmt.Errorf("the job is already %s: %s", v.State, v.Reason)
		}
		if err := run.pause(); err != nil {
			return fmt.Errorf("the job is still %s: %w", v.State, err)
		}
	}
}

// hasEnded reports whether a job is in a state in which it does not run again unless it is
// retried.
func hasEnded(v *api.Job) bool {
	return v.State == "completed" || v.State == "failed" || v.State == "cancelled"
}

// requeue requeues the dead letter of a job. The request names the letter by its number,
// so that it can be repeated until the letter is gone: the job may have failed again by
// then, if an answer was lost.
func (run *scriptRun) requeue(e *scriptJob) error {
	v, err := run.show(e)
	if err != nil {
		return err
	}
	e.prevDispatches = v.Dispatches
	letter, err := run.deadLetter(e, true)
	if err != nil {
		return err
	}
	for {
		var answer api.DeadLetterResults
		if err := run.request("yard.api.v1.dlq.requeue", api.DeadLetterRequest{Letters: []uint64{letter}}, &answer); err != nil {
			return run.recordRefusal(err)
		}
		if len(answer.Items) == 0 || answer.Items[0].Error == "" {
			return nil
		}
		if run.pause() != nil {
			return fmt.Errorf("requeue answered %+v", answer)
		}
	}
}

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
	for err == nil && (!hasEnded(&v) || v.Dispatches <= e.prevDispatches && e.prevDispatches > 0) {
		if run.pause() != nil {
			return fmt.Errorf("the job is still %s: %+v", v.State, v)
		}
		v, err = run.show(e)
	}
	if err != nil {
		return err
	}
	letter, err := run.deadLetter(e, v.State == "failed")
	if err != nil {
		return err
	}
	if (letter > 0) != (v.State == "failed") {
		return fmt.Errorf("the job is %s; the number of its dead letter, 0 for none, is %d", v.State, letter)
	}
	e.losses = v.Losses
	if v.ResultBytes <= api.MaxShownBytes {
		v.ResultBytes = 0
	} else if v.ResultBytes < overhop.DefaultFrameLimit-maxNATSRecord {
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

// deadLetter returns the number of a job's dead letter, or 0 if it has none. If must is
// set, it waits for one until run.ctx ends.
func (run *scriptRun) deadLetter(e *scriptJob, must bool) (number uint64, err error) {
	for {
		var answer api.DeadLetterPage
		if err := run.request("yard.api.v1.dlq.list", api.DeadLetterRequest{Jobs: []job.ID{e.id}}, &answer); err != nil {
			return 0, err
		}
		switch n := len(answer.Letters); {
		case n > 1:
			return 0, fmt.Errorf("the job has %d dead letters", n)
		case n == 1:
			return answer.Letters[0].Number, nil
		case !must || run.pause() != nil:
			return 0, nil
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
		return text + ", result " + formatValue(v.Result, int(v.ResultBytes))
	case v.State == "cancelled":
		return fmt.Sprintf("%s, reason %q", text, v.Reason)
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
