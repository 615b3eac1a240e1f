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
	start, now int64 // Unix time in milliseconds: of the first event, and of the last line with a time
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
		body: make([]byte, 0, typicalHeader+typicalEvent*events), start: at.UnixMilli(), now: at.UnixMilli(),
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
	if len(enc.events) == 0 {
		enc.about, enc.queue = about, e.B
		enc.addDispatch(about)
		enc.addName(e.B)
	}
	enc.events = append(enc.events, letter)
	switch letter {
	case 'q':
		enc.addName(e.A)
	case 'n':
		enc.addName(e.A)
		enc.channel = e.A
	case 'f':
		enc.addName(e.A)
		enc.addName(errorType(e))
	}
}

// letter returns the letter of an event, or 0 if the event has to be written in full.
func (enc *Encoder) letter(e *ledger.Event) byte {
	if e.N == 0 || e.Extra != nil && e.Kind != ledger.DispatchFailed {
		return 0
	}
	// JSON cannot represent other texts, and AppendLine replaces their bytes in its own way.
	if !utf8.ValidString(e.A) || !utf8.ValidString(e.B) || !utf8.ValidString(errorType(e)) {
		return 0
	}
	switch e.Kind {
	case ledger.DispatchQueued:
		return 'q'
	case ledger.DispatchNotified:
		return 'n'
	case ledger.WorkerAssigned:
		if k := len(enc.events); k > 0 && enc.events[k-1] == 'n' && enc.channel == e.A {
			return 'a'
		}
	case ledger.DispatchDelivered:
		return 'd'
	case ledger.DispatchFailed:
		return 'f'
	}
	return 0
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
