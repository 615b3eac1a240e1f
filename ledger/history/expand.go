package history

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Mentions reports whether a message may have events about a job, so that a search for them
// need not expand others.
func Mentions(body []byte, id job.ID) bool {
	return bytes.Contains(body, idEncoding.AppendEncode(nil, id[:])) || bytes.Contains(body, id.Append(nil))
}

// Expand returns the events of a message in the contract's form, one per line, as
// [ledger.Event.AppendLine] writes them. It also accepts the messages of builds before the
// compact form, and several messages, one after another.
func Expand(body []byte) (expanded []byte, err error) {
	d := decoder{
		add:  func(number uint64, at time.Time, e *ledger.Event) { expanded = e.AppendLine(expanded, number, at) },
		full: func(line []byte) error { expanded = append(append(expanded, line...), '\n'); return nil },
	}
	if err := d.read(body); err != nil {
		return nil, err
	}
	return expanded, nil
}

// read reads the lines of messages.
func (d *decoder) read(body []byte) error {
	for line := range bytes.Lines(body) {
		line = bytes.TrimSuffix(line, []byte("\n"))
		if err := d.addLine(line); err != nil {
			return fmt.Errorf("malformed line of history %.200q: %w", line, err)
		}
	}
	return nil
}

// decoder reads messages.
type decoder struct {
	add        func(number uint64, at time.Time, e *ledger.Event) // is called with each event of an array
	full       func(line []byte) error                            // and with each line that is an event
	number     uint64                                             // of the next event
	start, now time.Time
	accepted   int64  // Unix time in nanoseconds: of the last JobDetails
	key        string // of the last job that has no label but its key
	result     uint64 // number of the last result
	records    records
	dispatches []dispatch
	names      []string
}

func (d *decoder) addLine(line []byte) error {
	switch {
	case bytes.HasPrefix(line, []byte(`{"event":`)):
		d.number++
		return d.full(line)
	case bytes.HasPrefix(line, []byte("{")):
		return d.begin(line)
	case bytes.HasPrefix(line, []byte("[")):
		return d.addEvents(line)
	}
	sinceStart, err := strconv.ParseInt(string(line), 10, 64)
	d.now = d.start.Add(time.Duration(sinceStart) * time.Millisecond)
	return err
}

// begin begins a message with its first line.
func (d *decoder) begin(line []byte) error {
	var first struct {
		Seq uint64
		At  time.Time
	}
	err := json.Unmarshal(line, &first)
	*d = decoder{add: d.add, full: d.full, number: first.Seq, start: first.At, now: first.At, accepted: first.At.UnixNano()}
	return err
}

// addEvents adds the events of an array.
func (d *decoder) addEvents(line []byte) error {
	fields := fieldReader{decoder: d}
	if err := json.Unmarshal(line, &fields.left); err != nil {
		return err
	}
	letters, _ := fields.next().(string)
	if letters == "-" {
		e := ledger.Event{Kind: ledger.JobsForgotten, B: fields.name(), Extra: new(ledger.Extra)}
		e.Extra.Metadata, _ = json.Marshal(fields.next())
		d.addEvent(&e)
		return fields.err
	}
	about := fields.dispatch()
	queue, channel := fields.name(), ""
	var record *job.Position // of the next JobDetails; nil: the first of the next message of the lane
	for _, letter := range letters {
		if letter == 'p' || letter == 'P' {
			record = fields.record(letter)
			continue
		}
		e := ledger.Event{Job: about.job, N: about.n, B: queue}
		if err := fields.readEvent(&e, letter, &channel); err != nil {
			return err
		}
		if e.Kind == ledger.JobDetails {
			e.Extra.Record = d.records.nextMessage()
			if record != nil {
				e.Extra.Record, record = *record, nil
			}
			d.records.add(e.Extra.Record)
		}
		d.addEvent(&e)
	}
	return fields.err
}

// record returns the place of a record with the letter p or P.
func (f *fieldReader) record(letter rune) *job.Position {
	if letter == 'p' {
		return new(f.records.nextInMessage())
	}
	p := job.Position{Lane: uint8(f.number())}
	p.Seq = uint64(int64(f.records.seqs[p.Lane]) + f.number())
	p.Index = uint8(f.number())
	return &p
}

// addEvent passes on an event.
func (d *decoder) addEvent(e *ledger.Event) {
	d.add(d.number, d.now, e)
	d.number++
}

// readEvent reads the event with a letter. channel is that of the last DispatchNotified.
func (f *fieldReader) readEvent(e *ledger.Event, letter rune, channel *string) error {
	switch letter {
	case 'q', 'N', 'Q':
		e.Kind, e.A = ledger.DispatchQueued, f.name()
		switch letter {
		case 'N':
			e.From = ledger.OutNew
		case 'Q':
			e.From = f.whereabouts()
		}
	case 'n':
		*channel = f.name()
		e.Kind, e.A = ledger.DispatchNotified, *channel
	case 'a':
		e.Kind, e.A = ledger.WorkerAssigned, *channel
	case 'A', 'B':
		run := &ledger.Run{Node: f.name(), Function: f.name(), Attempt: 1}
		e.Kind, e.A, e.Extra = ledger.WorkerAssigned, *channel, &ledger.Extra{Run: run}
		if letter == 'B' {
			run.Attempt, run.Key, run.Limits = uint32(f.number()), f.name(), f.name()
		}
	case 'd':
		e.Kind = ledger.DispatchDelivered
	case 'D', 'R':
		f.result++
		if letter == 'R' {
			f.result = uint64(f.number())
		}
		e.Kind, e.Extra = ledger.DispatchDelivered, &ledger.Extra{Result: f.result}
	case 'f', 'F':
		e.Kind, e.A, e.Extra = ledger.DispatchFailed, f.name(), &ledger.Extra{C: f.name()}
		if letter == 'F' {
			e.To = f.whereabouts()
			f.due(e)
		}
	case 'E', 'K', 'e':
		f.accepted += f.number()
		e.Kind, e.N, e.Extra = ledger.JobDetails, 0, &ledger.Extra{Accepted: f.accepted, Priority: job.DefaultPriority}
		switch letter {
		case 'K':
			e.Extra.C = (&job.Labels{Key: f.jobKey()}).Encode()
		case 'e':
			e.Extra.Priority, e.A, e.Extra.C = uint8(f.number()), f.name(), f.labels()
		}
	case 'c':
		e.Kind, e.N, e.A, e.From, e.To, e.Extra = ledger.JobChanged, 0, f.name(), f.whereabouts(), f.whereabouts(), new(ledger.Extra)
		f.due(e)
	default:
		return fmt.Errorf("unknown event %q: a newer build has written it", letter)
	}
	return f.err
}

// due reads when the job is due if the event has made it delayed.
func (f *fieldReader) due(e *ledger.Event) {
	if e.To == delayed {
		e.Extra.Due = f.start.Add(time.Duration(f.number()) * time.Millisecond).UnixNano()
	}
}

// jobKey returns the next field, which is the key of a job, or the next two: how many characters it
// shares with the key before it, and the rest.
func (f *fieldReader) jobKey() string {
	field := f.next()
	shared, abridged := field.(float64)
	if abridged {
		field = f.next()
	}
	rest, ok := field.(string)
	if (!ok || shared < 0 || int(shared) > len(f.key)) && f.err == nil {
		f.err = errors.New("the key of a job is missing, or shares more than the one before it has")
	}
	if f.err == nil {
		f.key = f.key[:int(shared)] + rest
	}
	return f.key
}

// labels returns the next field, which has labels, in the form of [job.Labels.Encode].
func (f *fieldReader) labels() string {
	field := f.next()
	if field == nil {
		return ""
	}
	object, _ := field.(map[string]any)
	return labelsOf(object)
}

// labelsOf returns labels in the form of [job.Labels.Encode], from an object with their parts.
func labelsOf(object map[string]any) string {
	list := func(name string) (labels []job.Label) {
		values, _ := object[name].(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(values)) {
			value, _ := values[key].(string)
			labels = append(labels, job.Label{Name: key, Value: value})
		}
		return labels
	}
	l := job.Labels{Meta: list("meta"), Params: list("params")}
	l.Key, _ = object["key"].(string)
	tags, _ := object["tags"].([]any)
	for _, tag := range tags {
		text, _ := tag.(string)
		l.Tags = append(l.Tags, text)
	}
	return cmp.Or(l.Encode(), job.NoLabels)
}

// whereabouts returns the next field, which is a name of whereabouts.
func (f *fieldReader) whereabouts() ledger.Whereabouts {
	name := f.name()
	w, ok := whereaboutsOf(name)
	if !ok && f.err == nil {
		f.err = fmt.Errorf("unknown state %q of a job: a newer build has written it", name)
	}
	return w
}

// whereaboutsOf returns the whereabouts of a name, and reports whether there are any.
func whereaboutsOf(name string) (w ledger.Whereabouts, ok bool) {
	for w := ledger.OutNew; w <= ledger.OutGone; w++ {
		if w.String() == name {
			return w, true
		}
	}
	return 0, false
}

// number returns the next field, which is a number.
func (f *fieldReader) number() int64 {
	n, ok := f.next().(float64)
	if !ok && f.err == nil {
		f.err = errors.New("a number is missing")
	}
	return int64(n)
}

// fieldReader reads the fields of an array. After an error it returns zero values.
type fieldReader struct {
	*decoder
	left []any
	err  error
}

func (f *fieldReader) next() any {
	if len(f.left) == 0 {
		f.err = errors.New("fields are missing")
		return nil
	}
	field := f.left[0]
	f.left = f.left[1:]
	return field
}

// name returns the next field, which is a name.
func (f *fieldReader) name() string {
	text, isNew, i := f.textOrIndex(len(f.names))
	if isNew {
		f.names = append(f.names, text)
	}
	if f.err != nil {
		return ""
	}
	return f.names[i]
}

// dispatch returns the next field, which is a dispatch.
func (f *fieldReader) dispatch() dispatch {
	text, isNew, i := f.textOrIndex(len(f.dispatches))
	if isNew {
		about, err := parseDispatch(text)
		f.dispatches, f.err = append(f.dispatches, about), err
	}
	if f.err != nil {
		return dispatch{}
	}
	return f.dispatches[i]
}

// textOrIndex returns the next field: a new text and the index that it gets, or the index of
// one of the known texts.
func (f *fieldReader) textOrIndex(known int) (text string, isNew bool, index int) {
	switch field := f.next().(type) {
	case string:
		return field, true, known
	case float64:
		if index = int(field); index >= 0 && index < known {
			return "", false, index
		}
	}
	if f.err == nil {
		f.err = errors.New("neither a text nor the index of an earlier one")
	}
	return "", false, 0
}

func parseDispatch(text string) (dispatch, error) {
	id, number, hasNumber := strings.Cut(text, "#")
	d := dispatch{n: 1}
	raw, err := idEncoding.DecodeString(id)
	if err == nil && len(raw) != len(d.job) {
		err = fmt.Errorf("the id of a job has %d bytes", len(raw))
	}
	copy(d.job[:], raw)
	if hasNumber && err == nil {
		var n uint64
		n, err = strconv.ParseUint(number, 10, 32)
		d.n = uint32(n)
	}
	return d, err
}
