package scenario

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"yardmaster/edge/overhop"
	"yardmaster/job"
)

// view is a job as a node shows it.
type view struct {
	Queue       string          `json:"queue"`
	State       string          `json:"state"`
	Created     time.Time       `json:"created_at"`
	Started     time.Time       `json:"started_at"`
	Attempts    uint32          `json:"attempts"`
	MaxAttempts uint32          `json:"max_attempts"`
	Dispatches  uint32          `json:"dispatches"`
	Losses      uint32          `json:"losses"`
	Reason      string          `json:"reason"`
	Error       *job.Fault      `json:"error"`
	Result      json.RawMessage `json:"result"`
	ResultBytes int             `json:"result_bytes"`
}

func (p *player) show(e *entry) (v view, err error) {
	return v, p.ask("yard.api.v1.job.show", map[string]any{"id": e.id.String()}, &v)
}

// end waits for a job's end and writes its record: <name> [after=…].
func (p *player) end(words []string) error {
	var after time.Duration
	var err error
	if len(words) == 2 {
		after, err = time.ParseDuration(strings.TrimPrefix(words[1], "after="))
	}
	if err != nil || len(words) == 0 || p.jobs[words[0]] == nil {
		return errors.Join(err, errors.New("want ? <name> [after=<duration>] of a job above"))
	}
	e := p.jobs[words[0]]
	v, err := p.show(e)
	for err == nil && (v.State != "completed" && v.State != "failed" || v.Dispatches <= e.past && e.past > 0) {
		if p.pause() != nil {
			return fmt.Errorf("it is %s: %+v", v.State, v)
		}
		v, err = p.show(e)
	}
	if err != nil {
		return err
	}
	letter, err := p.letter(e, v.State == "failed")
	if err != nil {
		return err
	}
	if letter != (v.State == "failed") {
		return fmt.Errorf("it is %s, and has a dead letter: %t", v.State, letter)
	}
	e.losses = v.Losses
	if n := v.ResultBytes; n > 0 && n < overhop.DefaultFrameLimit-longestMessage {
		text, err := p.whole(e)
		if err != nil {
			return err
		}
		if v.Result, err = json.Marshal(text); err != nil {
			return err
		}
		v.ResultBytes = 0
	}
	fmt.Fprintln(&p.out, v.record(p.world.Attempts))
	from := v.Created
	if !e.due.IsZero() && v.State == "completed" {
		from, after = e.due, skew
	}
	if took := v.Started.Sub(from); after > 0 && took < after-skew {
		return fmt.Errorf("it began for the last time %s after it was accepted or due, want %s at least", took, after)
	}
	return p.ran(e)
}

// skew is how much later the clock that a record's acceptance is read from may
// be than the ledger's.
const skew = 25 * time.Millisecond

// letter tells whether a job has a dead letter, and waits for one that must be.
func (p *player) letter(e *entry, must bool) (bool, error) {
	for {
		var answer struct{ Letters []struct{ ID string } }
		if err := p.ask("yard.api.v1.dlq.list", map[string]any{"jobs": []job.ID{e.id}}, &answer); err != nil {
			return false, err
		}
		if n := len(answer.Letters); n > 1 {
			return true, fmt.Errorf("it has %d dead letters", n)
		} else if n == 1 || !must {
			return n == 1, nil
		}
		if p.pause() != nil {
			return false, nil
		}
	}
}

// record is the job's end without what differs from run to run: times, places,
// and how often its worker was lost. Who is the first to tell that a deadline
// has passed, runner or node, is chance, and so are the words for it.
func (v *view) record(attempts uint32) string {
	if v.MaxAttempts == 0 {
		v.MaxAttempts = attempts
	}
	text := fmt.Sprintf("%s in %s: attempts %d of %d", v.State, v.Queue, v.Attempts, v.MaxAttempts)
	switch {
	case v.State == "completed":
		return text + ", result " + value(v.Result, v.ResultBytes)
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

// frameSize differs with the length of ids and numbers in the frame.
var frameSize = regexp.MustCompile(`frame of [0-9]+ bytes`)

// longest is how much of a value is written down, in bytes; of the rest there is
// a hash.
const longest = 120

// value writes a value as all runners would: they differ in white space, and in
// what they escape.
func value(raw json.RawMessage, size int) string {
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
	if len(text) > longest {
		return fmt.Sprintf("%s… of %d bytes, SHA-256 %.8x…", text[:longest/6], len(text), sha256.Sum256([]byte(text)))
	}
	return text
}
