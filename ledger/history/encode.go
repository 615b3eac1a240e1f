package history

import (
	"encoding/base64"
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

var idEncoding = base64.RawURLEncoding

// Encoder writes events as one message.
type Encoder struct {
	body       []byte
	start, now int64  // Unix time in milliseconds: of the first event, and of the last line with a time
	accepted   int64  // Unix time in nanoseconds: when the last JobDetails' job was accepted, at first start
	key        string // of the last job that has no label but its key
	result     uint64 // number of the last result
	records    records
	dispatches map[dispatch]int
	names      map[string]int

	// The line that is not in body yet: the events that it has, as letters, and what
	// follows them.
	events  []byte
	fields  []byte
	about   dispatch
	queue   string
	channel string // of the last DispatchNotified
}

type dispatch struct {
	job job.ID
	n   uint32
}

// NewEncoder returns an encoder of a message of about this many events that begins with
// the event with this number and time.
func NewEncoder(events int, first uint64, at time.Time) *Encoder {
	enc := &Encoder{
		body: make([]byte, 0, typicalHeader+typicalEvent*events), start: at.UnixMilli(), now: at.UnixMilli(), accepted: at.UnixMilli() * int64(time.Millisecond),
		dispatches: make(map[dispatch]int, events/4), names: make(map[string]int),
	}
	enc.body = strconv.AppendUint(append(enc.body, `{"seq":`...), first, 10)
	enc.body = append(append(append(enc.body, `,"at":"`...), ledger.FormatTime(at)...), "\"}\n"...)
	return enc
}

// Sizes in bytes that determine the space reserved for a message.
const (
	typicalHeader = 512 // with names
	typicalEvent  = 28
)

// Len returns the number of bytes of the message, without the line that the next event may
// continue.
func (enc *Encoder) Len() int { return len(enc.body) }

// Bytes returns the message. Nothing can be added after it.
func (enc *Encoder) Bytes() []byte {
	enc.endLine()
	return enc.body
}

// Add appends an event. Its number must be the one after the last event's.
func (enc *Encoder) Add(number uint64, at time.Time, e *ledger.Event) {
	about, now := dispatch{e.Job, e.N}, at.UnixMilli()
	if e.Kind == ledger.JobChanged || e.Kind == ledger.JobDetails {
		about.n = 1 // as the first dispatch, so that the id is not written again
	}
	if about != enc.about || e.B != enc.queue || now != enc.now {
		enc.endLine()
	}
	letter := enc.letter(e)
	if letter == 0 {
		enc.endLine()
		enc.body = e.AppendLine(enc.body, number, at)
		return
	}
	if now != enc.now {
		enc.now = now
		enc.body = append(strconv.AppendInt(enc.body, now-enc.start, 10), '\n')
	}
	if letter == '-' {
		enc.endLine()
		enc.events = append(enc.events, letter)
		enc.addName(e.B)
		enc.fields = append(append(enc.fields, ','), e.Extra.Metadata...)
		enc.endLine()
		return
	}
	if len(enc.events) == 0 {
		enc.about, enc.queue = about, e.B
		enc.addDispatch(about)
		enc.addName(e.B)
	}
	if e.Kind == ledger.JobDetails {
		enc.addRecord(e.Extra.Record)
	}
	enc.events = append(enc.events, letter)
	enc.addFields(letter, e)
}

// addFields adds the fields of an event to the open line.
func (enc *Encoder) addFields(letter byte, e *ledger.Event) {
	switch letter {
	case 'q', 'N':
		enc.addName(e.A)
	case 'Q':
		enc.addName(e.A)
		enc.addName(e.From.String())
	case 'n':
		enc.addName(e.A)
		enc.channel = e.A
	case 'A', 'B':
		run := e.Extra.Run
		enc.addName(run.Node)
		enc.addName(run.Function)
		if letter == 'B' {
			enc.addNumber(int64(run.Attempt))
			enc.addName(run.Key)
			enc.addName(run.Limits)
		}
	case 'D':
		enc.result++
	case 'R':
		enc.result = e.Extra.Result
		enc.addNumber(int64(enc.result))
	case 'f', 'F':
		enc.addName(e.A)
		enc.addName(errorType(e))
		if letter == 'F' {
			enc.addName(e.To.String())
			enc.addDue(e)
		}
	case 'E', 'K', 'e':
		enc.addNumber(e.Extra.Accepted - enc.accepted)
		enc.accepted = e.Extra.Accepted
		switch letter {
		case 'E':
			return
		case 'K':
			key, _ := job.OnlyKey(e.Extra.C)
			enc.addKey(key)
			return
		}
		enc.addNumber(int64(e.Extra.Priority))
		enc.addName(e.A)
		enc.fields = append(enc.fields, ',')
		if e.Extra.C == "" {
			enc.fields = append(enc.fields, "null"...)
		} else {
			enc.fields = ledger.AppendLabels(enc.fields, e.Extra.C)
		}
	case 'c':
		enc.addName(e.A)
		enc.addName(e.From.String())
		enc.addName(e.To.String())
		enc.addDue(e)
	}
}

// addRecord adds where the record of a job is to the open line, unless that follows from the one before it.
func (enc *Encoder) addRecord(p job.Position) {
	switch r := &enc.records; p {
	case r.nextMessage():
	case r.nextInMessage():
		enc.events = append(enc.events, 'p')
	default:
		enc.events = append(enc.events, 'P')
		enc.addNumber(int64(p.Lane))
		enc.addNumber(int64(p.Seq) - int64(r.seqs[p.Lane]))
		enc.addNumber(int64(p.Index))
	}
	enc.records.add(p)
}

// minShared is how many characters a key must share with the one before it for these to be left out.
const minShared = 4

// addKey adds the key of a job to the open line, without what it shares with the one before it.
func (enc *Encoder) addKey(key string) {
	shared := 0
	for shared < len(key) && shared < len(enc.key) && key[shared] == enc.key[shared] && key[shared] < utf8.RuneSelf {
		shared++
	}
	if shared < minShared {
		shared = 0
	} else {
		enc.addNumber(int64(shared))
	}
	enc.fields = ledger.AppendString(append(enc.fields, ','), key[shared:])
	enc.key = key
}

// addNumber adds a number to the open line.
func (enc *Encoder) addNumber(n int64) {
	enc.fields = strconv.AppendInt(append(enc.fields, ','), n, 10)
}

// addDue adds to the open line when a job that is delayed is due, in milliseconds since the first
// event.
func (enc *Encoder) addDue(e *ledger.Event) {
	if isDelayed(e) {
		enc.addNumber(time.Unix(0, e.Extra.Due).UnixMilli() - enc.start)
	}
}

// isDelayed reports whether the event has made a job delayed.
func isDelayed(e *ledger.Event) bool { return e.Extra != nil && e.Extra.Due != 0 && e.To == delayed }

var delayed = ledger.InState(job.Delayed)

// letter returns the letter of an event, or 0 if the event has to be written in full.
func (enc *Encoder) letter(e *ledger.Event) byte {
	// JSON cannot represent other texts, and AppendLine replaces their bytes in its own way.
	if !utf8.ValidString(e.A) || !utf8.ValidString(e.B) || !utf8.ValidString(errorType(e)) {
		return 0
	}
	switch {
	case e.Kind == ledger.JobsForgotten:
		return '-'
	case e.Kind == ledger.JobChanged:
		return enc.letterOfChange(e)
	case e.Kind == ledger.JobDetails:
		return enc.letterOfDetails(e)
	case e.N == 0:
		return 0
	case e.Kind == ledger.WorkerAssigned:
		return enc.letterOfRun(e)
	case e.Kind == ledger.DispatchFailed:
		return letterOfFailure(e)
	case e.Kind == ledger.DispatchDelivered:
		return enc.letterOfDelivery(e)
	case e.Extra != nil:
		return 0
	}
	switch e.Kind {
	case ledger.DispatchQueued:
		switch e.From {
		case 0:
			return 'q'
		case ledger.OutNew:
			return 'N'
		}
		return 'Q'
	case ledger.DispatchNotified:
		return 'n'
	}
	return 0
}

// letterOfDelivery returns the letter of a DispatchDelivered.
func (enc *Encoder) letterOfDelivery(e *ledger.Event) byte {
	switch {
	case e.Extra == nil:
		return 'd'
	case e.Extra.Result == 0 || e.Extra.Result > maxNumber:
		return 0
	case e.Extra.Result == enc.result+1:
		return 'D'
	}
	return 'R'
}

// letterOfChange returns the letter of a JobChanged.
func (enc *Encoder) letterOfChange(e *ledger.Event) byte {
	if (e.To == delayed) != isDelayed(e) || e.N != 0 {
		return 0
	}
	return 'c'
}

// maxNumber is the largest number in a field: those of JSON have 53 bits.
const maxNumber = 1 << 53

// letterOfDetails returns the letter of a JobDetails.
func (enc *Encoder) letterOfDetails(e *ledger.Event) byte {
	since := e.Extra.Accepted - enc.accepted
	switch {
	case since>>52 != 0 && since>>52 != -1 || e.N != 0 || e.Extra.Record.Seq > maxNumber:
		return 0
	case e.A != "" || e.Extra.Priority != job.DefaultPriority:
		return 'e'
	case e.Extra.C == "":
		return 'E'
	}
	if _, ok := job.OnlyKey(e.Extra.C); ok {
		return 'K'
	}
	return 'e'
}

// letterOfRun returns the letter of a WorkerAssigned.
func (enc *Encoder) letterOfRun(e *ledger.Event) byte {
	k := len(enc.events)
	if k == 0 || enc.events[k-1] != 'n' || enc.channel != e.A {
		return 0
	}
	switch {
	case e.Extra == nil:
		return 'a'
	case e.Extra.Run == nil:
		return 0
	}
	run := e.Extra.Run
	if !utf8.ValidString(run.Node) || !utf8.ValidString(run.Function) || !utf8.ValidString(run.Key) || !utf8.ValidString(run.Limits) {
		return 0
	}
	if run.Attempt == 1 && run.Key == "" && run.Limits == "" {
		return 'A'
	}
	return 'B'
}

// letterOfFailure returns the letter of a DispatchFailed.
func letterOfFailure(e *ledger.Event) byte {
	switch {
	case (e.To == delayed) != isDelayed(e):
		return 0
	case e.To == 0:
		return 'f'
	}
	return 'F'
}

// errorType returns the type of the error of a DispatchFailed, or "".
func errorType(e *ledger.Event) string {
	if e.Extra == nil {
		return ""
	}
	return e.Extra.C
}

// addDispatch adds a dispatch to the open line.
func (enc *Encoder) addDispatch(d dispatch) {
	if i, known := enc.dispatches[d]; known {
		enc.fields = strconv.AppendInt(append(enc.fields, ','), int64(i), 10)
		return
	}
	enc.dispatches[d] = len(enc.dispatches)
	enc.fields = idEncoding.AppendEncode(append(enc.fields, `,"`...), d.job[:])
	if d.n != 1 {
		enc.fields = strconv.AppendUint(append(enc.fields, '#'), uint64(d.n), 10)
	}
	enc.fields = append(enc.fields, '"')
}

// addName adds a name to the open line.
func (enc *Encoder) addName(name string) {
	i, known := enc.names[name]
	if known {
		enc.fields = strconv.AppendInt(append(enc.fields, ','), int64(i), 10)
		return
	}
	enc.names[name] = len(enc.names)
	text, _ := json.Marshal(name) // a string has no error
	enc.fields = append(append(enc.fields, ','), text...)
}

// endLine moves the open line, if there is one, to body.
func (enc *Encoder) endLine() {
	if len(enc.events) == 0 {
		return
	}
	enc.body = append(append(append(enc.body, `["`...), enc.events...), '"')
	enc.body = append(append(enc.body, enc.fields...), "]\n"...)
	enc.events, enc.fields = enc.events[:0], enc.fields[:0]
}
