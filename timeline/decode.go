package timeline

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// event is one event of a message.
type event struct {
	Kind   string    `json:"event"`
	Number uint64    `json:"seq"`
	At     time.Time `json:"at"`

	id       ID // of the job that it is about
	aboutJob bool

	Request  string `json:"request_id"`
	Task     string `json:"task_id"`
	Job      string `json:"job"`
	Queue    string `json:"queue"`
	Function string `json:"function"`
	From     string `json:"from"`
	To       string `json:"to"`
	Channel  string `json:"channel"`
	Worker   string `json:"worker"`
	Node     string `json:"node"`
	Attempt  uint32 `json:"attempt"`
	Key      string `json:"key"`
	Limits   string `json:"limits"`

	Action   string           `json:"action"`
	Target   string           `json:"target"`
	Settings json.RawMessage  `json:"settings"`
	Jobs     map[string]int64 `json:"jobs"`

	Owner       string `json:"owner"`
	LeaseID     string `json:"lease_id"`
	LeasedUntil string `json:"leased_until"`
}

// reader reads the events of messages.
type reader struct {
	start, now time.Time
	number     uint64 // of the next event
	jobs       []ID   // of the dispatches
	names      []string
}

// read calls visit with each event of the body of a message, or of several, until it returns an
// error. The event is valid until visit returns.
func read(body []byte, visit func(*event) error) error {
	var r reader
	for line := range bytes.Lines(body) {
		line = bytes.TrimSuffix(line, []byte("\n"))
		if err := r.line(line, visit); err != nil {
			return fmt.Errorf("%w; line %.200q", err, line)
		}
	}
	return nil
}

// errMalformed is returned for a line that no build has written.
var errMalformed = errors.New("malformed line of history")

func (r *reader) line(line []byte, visit func(*event) error) error {
	if len(line) == 0 {
		return errMalformed
	}
	switch line[0] {
	case '[':
		return r.array(line, visit)
	case '{':
		return r.object(line, visit)
	}
	milliseconds, err := strconv.ParseInt(string(line), 10, 64)
	r.now = r.start.Add(time.Duration(milliseconds) * time.Millisecond)
	return err
}

// object reads the first line of a message, or an event that is written in full.
func (r *reader) object(line []byte, visit func(*event) error) error {
	e := event{}
	if err := json.Unmarshal(line, &e); err != nil {
		return err
	}
	if e.Kind == "" {
		*r = reader{start: e.At, now: e.At, number: e.Number}
		return nil
	}
	id, _, _ := strings.Cut(e.Request, "#")
	if e.Job != "" {
		id = e.Job
	}
	if queue, job, found := strings.Cut(e.Task, ":"); found {
		id, e.Queue = job, queue
	}
	if e.Kind == "DispatchQueued" && e.Queue == "" {
		e.Queue = e.Target // unless it is for a runner, the target of a job is its queue
	}
	e.id, e.aboutJob = parseID(id)
	r.number = e.Number + 1
	return visit(&e)
}

// array reads the events of an array.
func (r *reader) array(line []byte, visit func(*event) error) error {
	f := fields{reader: r, left: line[1:]}
	letters := f.text()
	if letters == "-" {
		e := event{Kind: "jobs.forgotten", Queue: f.name()}
		f.object(&e.Jobs)
		return r.visit(&e, f.err, visit)
	}
	about, queue := f.job(), f.name()
	var worker string
	for i := range len(letters) {
		if letters[i] == 'p' {
			continue // it is no event
		}
		if letters[i] == 'P' {
			f.number() // the lane of a record,
			f.number() // its sequence there,
			f.number() // and its index
			continue
		}
		e := event{id: about, aboutJob: true, Queue: queue}
		f.event(letters[i], &e, &worker)
		if err := r.visit(&e, f.err, visit); err != nil {
			return err
		}
	}
	return f.err
}

// visit numbers an event of an array and visits it.
func (r *reader) visit(e *event, err error, visit func(*event) error) error {
	if err != nil {
		return err
	}
	e.Number, e.At = r.number, r.now
	r.number++
	return visit(e)
}

// event reads the fields of the event with a letter. worker is the channel of the last "n".
func (f *fields) event(letter byte, e *event, worker *string) {
	switch letter {
	case 'N':
		e.Kind, e.Function, e.From = "DispatchQueued", f.name(), "new"
	case 'Q':
		e.Kind, e.Function, e.From = "DispatchQueued", f.name(), f.name()
	case 'n':
		*worker = f.name()
		e.Kind, e.Channel = "DispatchNotified", *worker
	case 'A', 'B':
		e.Kind, e.Worker, e.Node, e.Function, e.Attempt = "worker.assigned", *worker, f.name(), f.name(), 1
		if letter == 'B' {
			e.Attempt, e.Key, e.Limits = uint32(f.number()), f.name(), f.name()
		}
	case 'd', 'D', 'R':
		e.Kind = "DispatchDelivered"
		if letter == 'R' {
			f.number() // of its result
		}
	case 'F':
		f.name() // the reason
		f.name() // the type of the error
		e.Kind, e.To = "DispatchFailed", f.name()
		if e.To == "delayed" {
			f.number()
		}
	case 'E', 'K', 'e':
		e.Kind = "job.details"
		f.number() // when it was accepted
		switch letter {
		case 'K':
			f.key()
		case 'e':
			f.number() // its priority
			f.name()   // the key of its limits
			f.object(new(json.RawMessage))
		}
	case 'c':
		e.Kind, e.Function, e.From, e.To = "job.changed", f.name(), f.name(), f.name()
		if e.To == "delayed" {
			f.number()
		}
	case 'q', 'a', 'f':
		f.err = ErrEarlier
	default:
		f.err = fmt.Errorf("unknown event %q: a newer build has written it", letter)
	}
}

// ErrEarlier is returned for events of builds whose history is not sufficient.
var ErrEarlier = errors.New("an earlier build has written this, whose history does not say where jobs were before")

// fields reads the fields of an array.
type fields struct {
	*reader
	left []byte // from the beginning of a field on
	err  error
}

func (f *fields) fail() {
	if f.err == nil {
		f.err = errMalformed
	}
	f.left = nil
}

// text reads a field that is a text, and the character after it.
func (f *fields) text() string {
	if len(f.left) == 0 || f.left[0] != '"' {
		f.fail()
		return ""
	}
	escaped := false
	for i := 1; i < len(f.left); i++ {
		switch f.left[i] {
		case '\\':
			escaped = true
			i++
		case '"':
			text := string(f.left[1:i])
			if escaped && json.Unmarshal(f.left[:i+1], &text) != nil {
				f.fail()
				return ""
			}
			f.skip(i + 1)
			return text
		}
	}
	f.fail()
	return ""
}

// skip goes on after n bytes and the character that ends the field.
func (f *fields) skip(n int) {
	if n >= len(f.left) || f.left[n] != ',' && f.left[n] != ']' {
		f.fail()
		return
	}
	f.left = f.left[n+1:]
}

// key reads the key of a job: how many characters it shares with the one before it, if any, and the rest.
func (f *fields) key() {
	if len(f.left) > 0 && f.left[0] != '"' {
		f.number()
	}
	f.text()
}

// number reads a field that is a number.
func (f *fields) number() int64 {
	end := bytes.IndexAny(f.left, ",]")
	if end < 0 {
		f.fail()
		return 0
	}
	n, err := strconv.ParseInt(string(f.left[:end]), 10, 64)
	if err != nil {
		f.fail()
		return 0
	}
	f.skip(end)
	return n
}

// object reads a field that is an object.
func (f *fields) object(into any) {
	dec := json.NewDecoder(bytes.NewReader(f.left))
	if err := dec.Decode(into); err != nil {
		f.fail()
		return
	}
	f.skip(int(dec.InputOffset()))
}

// name reads a field that is a name, or the index of an earlier one.
func (f *fields) name() string {
	if len(f.left) > 0 && f.left[0] == '"' {
		f.names = append(f.names, f.text())
		return f.names[len(f.names)-1]
	}
	i := f.number()
	if f.err != nil || i < 0 || i >= int64(len(f.names)) {
		f.fail()
		return ""
	}
	return f.names[i]
}

// job reads a field that is a dispatch, or the index of an earlier one.
func (f *fields) job() ID {
	if len(f.left) > 0 && f.left[0] == '"' {
		text, _, _ := strings.Cut(f.text(), "#")
		raw, err := base64.RawURLEncoding.DecodeString(text)
		if err != nil || len(raw) != len(ID{}) {
			f.fail()
			return ID{}
		}
		f.jobs = append(f.jobs, ID(raw))
		return f.jobs[len(f.jobs)-1]
	}
	i := f.number()
	if f.err != nil || i < 0 || i >= int64(len(f.jobs)) {
		f.fail()
		return ID{}
	}
	return f.jobs[i]
}
