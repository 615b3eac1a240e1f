package job

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
	"time"
)

// Limits of a message that holds several records.
const (
	MaxPacked      = 256      // records
	MaxPackedBytes = 64 << 10 // of the message, unless it holds one record
	maxPackedBody  = 32 << 10 // bytes of a record's body
)

// A record in a message of several is a line of JSON whose fields are always in this order:
//
//	{"id":"0197c5a2-…","queue":"mail","at":1764144000000000000,"job":{"function":"send"}}
//
// So the parts can be found without parsing the body. The id is the record's key, and at the
// time at which a node accepted it, in Unix nanoseconds.
const (
	packedID    = `{"id":"`
	packedQueue = `","queue":"`
	packedAt    = `","at":`
	packedBody  = `,"job":`
)

// Packable reports whether [AppendPacked] may write a record: its body is a small text without
// a line break that does not refer to a blob, which is looked for in messages with one record
// only, and its key needs no escapes.
func Packable(key string, body []byte) bool {
	return len(body) <= maxPackedBody && bytes.IndexByte(body, '\n') < 0 && !bytes.Contains(body, []byte(`"blob"`)) && !strings.ContainsFunc(key, func(r rune) bool {
		return r < ' ' || r > '~' || r == '"' || r == '\\'
	})
}

// AppendPacked appends a record to a message of several. The record must be [Packable] and its
// queue's name valid.
func AppendPacked(message []byte, queue, key string, at time.Time, body []byte) []byte {
	message = append(append(message, packedID...), key...)
	message = append(append(message, packedQueue...), queue...)
	message = strconv.AppendInt(append(message, packedAt...), at.UnixNano(), 10)
	message = append(append(message, packedBody...), body...)
	return append(message, "}\n"...)
}

// PackedSize returns how many bytes [AppendPacked] appends for a record at most.
func PackedSize(queue, key string, body []byte) int {
	const longestInt = 20
	return len(packedID) + len(key) + len(packedQueue) + len(queue) + len(packedAt) + longestInt + len(packedBody) + len(body) + len("}\n")
}

// errPacked is the reason why a damaged line of a message is rejected.
var errPacked = errors.New("the line is not a record of a message with several")

// Unpack returns the records of a message that [AppendPacked] wrote, in their order. Their
// bodies share the message's memory. A line that is damaged becomes a record that is rejected, and
// so does an empty message. Of a message with more than [MaxPacked] lines, which nothing writes,
// none is the last record, so that it is not taken for complete.
func Unpack(message []byte, lane uint8, seq uint64, stored time.Time) []Record {
	records := make([]Record, 0, bytes.Count(message, []byte("\n")))
	if len(message) == 0 {
		message = []byte("\n")
	}
	complete := true
	for line := range bytes.Lines(message) {
		if len(records) == MaxPacked {
			complete = false
			break
		}
		r := Record{Position: Position{lane, seq, uint8(len(records))}, Stored: stored, Body: line}
		if !r.unpack(line) {
			r.Invalid = &InvalidError{Reason: errPacked.Error()}
		}
		records = append(records, r)
	}
	records[len(records)-1].Last = complete
	return records
}

// unpack sets the fields of r that the line holds, and reports whether it is well formed.
func (r *Record) unpack(line []byte) bool {
	rest, hasID := bytes.CutPrefix(line, []byte(packedID))
	key, rest, hasQueue := bytes.Cut(rest, []byte(packedQueue))
	queue, rest, hasAt := bytes.Cut(rest, []byte(packedAt))
	at, rest, hasBody := bytes.Cut(rest, []byte(packedBody))
	body, complete := bytes.CutSuffix(rest, []byte("}\n"))
	nanoseconds, err := strconv.ParseInt(string(at), 10, 64)
	if !hasID || !hasQueue || !hasAt || !hasBody || !complete || err != nil {
		return false
	}
	r.Key, r.Queue, r.Stored, r.Body = string(key), string(queue), time.Unix(0, nanoseconds), body
	return true
}
