package deadletters

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/job"
)

// letter is a dead letter in its stream.
type letter struct {
	api.DeadLetterMessage
	number     uint64
	job        job.ID
	n          uint32 // the dispatch that failed; 0: the job failed before its first
	unreadable bool   // its message cannot be decoded
	record     []byte // the job as it was accepted; nil: no longer available
}

// parse decodes a message of the stream. A message that cannot be decoded
// becomes an unreadable dead letter with the reason.
func parse(t *streams.Batch) letter {
	l := letter{number: t.Seq}
	err := json.Unmarshal(t.Body, &l.DeadLetterMessage)
	var valid bool
	name := strings.TrimPrefix(t.ID, "dead/")
	l.job, l.n, valid = job.ParseRequestID(name)
	if !valid { // a job without a dispatch has the number 0, which is not a request's id
		id, unstarted := strings.CutSuffix(name, "#0")
		idErr := l.job.UnmarshalText([]byte(id))
		valid = unstarted && idErr == nil
	}
	if err == nil && !valid {
		err = fmt.Errorf("it is named %q", t.ID)
	}
	if err != nil {
		return letter{number: t.Seq, unreadable: true, DeadLetterMessage: api.DeadLetterMessage{
			Queue: t.Subject[strings.LastIndexByte(t.Subject, '.')+1:], Failed: t.Stored,
			Reason: "this letter cannot be read: " + err.Error(),
		}}
	}
	l.record = l.RecordBody()
	return l
}

// isAbout reports whether l is a dead letter of this job, and not of an earlier one with
// the same id.
func (l *letter) isAbout(v *job.View) bool { return l.job == v.ID && l.Accepted.Equal(v.Created) }

// errorType returns what dead letters are grouped by: the fault's type, or the reason
// up to its first colon.
func (l *letter) errorType() string {
	if l.Error != nil && l.Error.Type != "" {
		return l.Error.Type
	}
	kind, _, _ := strings.Cut(l.Reason, ":")
	return kind
}

// size returns how many bytes the JSON of the dead letter has, without its record.
func (l *letter) size() int {
	message := l.DeadLetterMessage
	message.Job, message.Record = nil, nil
	text, _ := json.Marshal(&message) // what was decoded from JSON can be encoded
	return len(text)
}

// failedWith reports whether the error's type or code is text, or its message or the
// reason contains it.
func (l *letter) failedWith(text string) bool {
	if containsFold(l.Reason, text) {
		return true
	}
	e := l.Error
	return e != nil && (strings.EqualFold(e.Type, text) || strings.EqualFold(e.Code, text) || containsFold(e.Message, text))
}

// containsFold reports whether text contains part, without regard to case.
func containsFold(text, part string) bool {
	return strings.Contains(strings.ToLower(text), strings.ToLower(part))
}

// maxStatNames is how many different queues, functions or errors one part of the
// statistics distinguishes.
const maxStatNames = 500

// otherNames is the name under which all further names are counted.
const otherNames = "…"

// countName adds one to the count of name, or to that of "…" if there are too many.
func countName(counts map[string]int, name string) {
	name = shortName(name)
	if _, known := counts[name]; !known && len(counts) >= maxStatNames {
		name = otherNames
	}
	counts[name]++
}

// shortName returns name, cut to the length of the longest function name.
func shortName(name string) string {
	if len(name) > job.MaxFunctionLen {
		name = strings.ToValidUTF8(name[:job.MaxFunctionLen], "")
	}
	return name
}
