package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"yardmaster/cluster"
	"yardmaster/job"
	"yardmaster/ledger"
	"yardmaster/scheduler"
)

// dlq answers about dead letters: it walks through their stream, a part at a
// time, and removes or requeues what a question names.
type dlq struct {
	messages    *cluster.Cluster
	view        func(func(*ledger.Ledger))
	commander   *commander
	viewer      *viewer
	door        *door
	maxAttempts uint32        // of a job that names none
	places      chan struct{} // one for each question under way
}

func newDLQ(n *Node) *dlq {
	return &dlq{
		messages: n.messages, view: n.raft.View, commander: n.commander, viewer: n.viewer, door: n.door,
		maxAttempts: n.cfg.Scheduler.MaxAttempts, places: make(chan struct{}, maxWalks),
	}
}

// dlqVerb is one thing to ask about dead letters.
type dlqVerb struct {
	verb, about string
	do          func(context.Context, *cluster.Request) (any, error)
}

func (d *dlq) verbs() []dlqVerb {
	place := func(do func(context.Context, *letterQuestion) (any, error)) func(context.Context, *cluster.Request) (any, error) {
		return func(ctx context.Context, r *cluster.Request) (any, error) {
			q, err := aboutLetters(r.Data)
			if err != nil {
				return nil, err
			}
			leave, err := d.enter()
			if err != nil {
				return nil, err
			}
			defer leave()
			return do(ctx, q)
		}
	}
	return []dlqVerb{
		{"list", "dead letters, oldest first", place(d.list)},
		{"show", "one dead letter, with its record", place(d.show)},
		{"stats", "dead letters by queue, function and error", place(d.stats)},
		{"requeue", "give the jobs of dead letters a new life", place(d.requeue)},
		{"remove", "remove dead letters", place(d.remove)},
	}
}

// enter takes a place among those who may read bodies and letters.
func (d *dlq) enter() (leave func(), err error) {
	select {
	case d.places <- struct{}{}:
		return func() { <-d.places }, nil
	default:
		return nil, &job.UnavailableError{Reason: "too many questions about dead letters at once", RetryAfter: time.Second}
	}
}

// Bounds of one walk. Whoever wants more goes on from its "next".
const (
	maxWalks       = 8                       // at once
	walkTime       = 1500 * time.Millisecond // after it an answer only ends what it has begun
	maxLetters     = 1000                    // in an answer, and named in a question
	defaultLetters = 100
	maxLetterBytes = 512 << 10 // of letters in an answer
)

// letterQuestion says which letters are meant: all fields that are given must
// fit. From, Until and Limit cut a long walk in parts.
type letterQuestion struct {
	Letters      []uint64   `json:"letters"` // by number
	Jobs         []job.ID   `json:"jobs"`
	Queue        string     `json:"queue"`
	Function     string     `json:"function"`
	Error        string     `json:"error"` // type or code of the error, or a part of its text or of the reason
	FailedBefore *time.Time `json:"failed_before"`
	FailedAfter  *time.Time `json:"failed_after"`

	From  uint64 `json:"from"`  // a number; 0 is the oldest
	Until uint64 `json:"until"` // a number; 0 is the newest there is now
	Limit int    `json:"limit"` // most letters in the answer; 0 is 100

	// Of a change.
	All          bool   `json:"all"` // all letters are meant: needed where nothing else says which
	DryRun       bool   `json:"dry_run"`
	To           string `json:"to"`            // another queue
	KeepAttempts bool   `json:"keep_attempts"` // those it has had go on counting

	over time.Time // when the answer should be on its way
}

// walked says where a walk ended, for the next part of it.
type walked struct {
	Next  uint64 `json:"next,omitempty"` // 0: that was all
	Until uint64 `json:"until"`
}

// letter is a dead letter as it lies in its stream.
type letter struct {
	scheduler.DeadLetter
	number uint64
	job    job.ID
	n      uint32 // the dispatch whose failure it tells; 0: it failed before its first
	broken bool   // it cannot be read
	record []byte // the job as it was accepted; nil: it was gone
}

// readLetter reads a message of the stream. What cannot be read is shown as a
// letter that says so.
func readLetter(t *cluster.Tale) letter {
	l := letter{number: t.Seq}
	err := json.Unmarshal(t.Body, &l.DeadLetter)
	var ok bool
	name := strings.TrimPrefix(t.ID, "dead/")
	if l.job, l.n, ok = job.ParseRequestID(name); !ok {
		id, unstarted := strings.CutSuffix(name, "#0")
		bad := l.job.UnmarshalText([]byte(id))
		ok = unstarted && bad == nil
	}
	if err == nil && !ok {
		err = fmt.Errorf("it is named %q", t.ID)
	}
	if err != nil {
		return letter{number: t.Seq, broken: true, DeadLetter: scheduler.DeadLetter{
			Queue: t.Subject[strings.LastIndexByte(t.Subject, '.')+1:], Failed: t.Stored,
			Reason: "this letter cannot be read: " + err.Error(),
		}}
	}
	if l.record = l.Job; l.record == nil {
		l.record = l.Record
	}
	return l
}

// errorType groups letters: the fault's type, or what is left of the reason.
func (l *letter) errorType() string {
	if l.Error != nil && l.Error.Type != "" {
		return l.Error.Type
	}
	kind, _, _ := strings.Cut(l.Reason, ":")
	return kind
}

// size is about how much of an answer it takes, without its record.
func (l *letter) size() int {
	n := 400 + len(l.Function) + len(l.Reason)
	if l.Error != nil {
		n += len(l.Error.Message) + len(l.Error.Details)
	}
	return n
}

// fits tells whether the question means this letter.
func (q *letterQuestion) fits(l *letter) bool {
	switch {
	case q.Queue != "" && l.Queue != q.Queue,
		q.Function != "" && l.Function != q.Function,
		q.FailedBefore != nil && !l.Failed.Before(*q.FailedBefore),
		q.FailedAfter != nil && !l.Failed.After(*q.FailedAfter),
		len(q.Jobs) > 0 && !slices.Contains(q.Jobs, l.job):
		return false
	}
	return q.Error == "" || l.failedWith(q.Error)
}

func (l *letter) failedWith(text string) bool {
	if has(l.Reason, text) {
		return true
	}
	e := l.Error
	return e != nil && (strings.EqualFold(e.Type, text) || strings.EqualFold(e.Code, text) || has(e.Message, text))
}

// has looks for a part of a text, in either case.
func has(text, part string) bool {
	return strings.Contains(strings.ToLower(text), strings.ToLower(part))
}

// aboutLetters reads a question. A field it does not know is refused: a
// misspelt filter would mean more letters than was intended.
func aboutLetters(text []byte) (*letterQuestion, error) {
	q := &letterQuestion{over: time.Now().Add(walkTime)}
	if len(text) > 0 {
		if err := job.ReadAsked("question about dead letters", text, q); err != nil {
			return nil, err
		}
	}
	if q.Limit == 0 {
		q.Limit = defaultLetters
	}
	switch {
	case q.Limit < 0 || q.Limit > maxLetters:
		return nil, &job.InvalidError{Reason: fmt.Sprintf("limit is %d; must be 1 to %d letters an answer", q.Limit, maxLetters)}
	case max(len(q.Letters), len(q.Jobs)) > maxLetters:
		return nil, &job.InvalidError{Reason: fmt.Sprintf("%d letters and %d jobs are named; at most %d at once", len(q.Letters), len(q.Jobs), maxLetters)}
	}
	slices.Sort(q.Letters)
	q.Letters = slices.Compact(q.Letters)
	return q, nil
}

// meansSome refuses a change of letters that nothing names.
func (q *letterQuestion) meansSome() error {
	if q.All || len(q.Letters)+len(q.Jobs) > 0 || q.Queue+q.Function+q.Error != "" || q.FailedBefore != nil || q.FailedAfter != nil {
		return nil
	}
	return &job.InvalidError{Reason: `no dead letters are named: give letters, jobs, queue, function, error, failed_before or failed_after, or "all": true`}
}

// walk gives the letters that a question means to fn, oldest first, until fn
// wants no more or the time for one answer is over.
func (d *dlq) walk(ctx context.Context, q *letterQuestion, fn func(letter) (more bool)) (w walked, err error) {
	if w.Until = q.Until; w.Until == 0 {
		if w.Until, err = d.messages.LastLetter(ctx); err != nil {
			return w, lettersAway(err)
		}
	}
	look := func(t cluster.Tale) bool {
		if l := readLetter(&t); q.fits(&l) && !fn(l) || time.Now().After(q.over) {
			w.Next = t.Seq + 1
			return false
		}
		return true
	}
	if len(q.Letters) > 0 {
		err = d.named(ctx, q, w.Until, look)
	} else {
		err = d.messages.Letters(ctx, q.Queue, q.From, w.Until, look)
	}
	if w.Next > w.Until {
		w.Next = 0
	}
	return w, lettersAway(err)
}

// named looks at the letters that a question names by number. Those that are
// not there are left out: a list of what is done may be given twice.
func (d *dlq) named(ctx context.Context, q *letterQuestion, until uint64, look func(cluster.Tale) bool) error {
	for _, number := range q.Letters {
		if number < max(q.From, 1) || number > until {
			continue
		}
		t, err := d.messages.Letter(ctx, number)
		if errors.Is(err, cluster.ErrNotStored) {
			continue
		}
		if err != nil {
			return err
		}
		if !look(t) {
			return nil
		}
	}
	return nil
}

// lettersAway says when to ask again: a stream without a leader gets one.
func lettersAway(err error) error {
	if errors.Is(err, cluster.ErrNoLeader) || errors.Is(err, cluster.ErrStreamMissing) {
		return &job.UnavailableError{Reason: "dead letters cannot be read: " + err.Error(), RetryAfter: time.Second}
	}
	return err
}

// letterJSON is a dead letter as people and programs see it.
type letterJSON struct {
	Number uint64 `json:"letter"`
	scheduler.DeadLetter
	State string `json:"state,omitempty"` // of its job now; "": the yard has forgotten it
}

func (d *dlq) letterToJSON(l *letter) letterJSON {
	j := letterJSON{Number: l.number, DeadLetter: l.DeadLetter}
	if found, ok := d.find(l); ok {
		j.State = found.State.String()
	}
	return j
}

// find gives what the ledger keeps of a letter's job. Another job that had the
// same id later is not it.
func (d *dlq) find(l *letter) (found job.View, ok bool) {
	d.view(func(lg *ledger.Ledger) { found, _, ok = lg.Find(l.job) })
	return found, ok && found.Position == job.Position{Lane: l.Lane, Seq: l.Seq}
}

// letterPage is some letters, and where to go on.
type letterPage struct {
	Letters []letterJSON `json:"letters"`
	walked
}

func (d *dlq) list(ctx context.Context, q *letterQuestion) (any, error) {
	answer := letterPage{Letters: []letterJSON{}}
	size := 0
	var err error
	answer.walked, err = d.walk(ctx, q, func(l letter) bool {
		l.Job, l.Record = nil, nil
		answer.Letters = append(answer.Letters, d.letterToJSON(&l))
		size += l.size()
		return len(answer.Letters) < q.Limit && size < maxLetterBytes
	})
	return answer, err
}

// show gives one letter with its record, by its number or the last one of a
// job.
func (d *dlq) show(ctx context.Context, q *letterQuestion) (any, error) {
	if len(q.Letters)+len(q.Jobs) != 1 {
		return nil, &job.InvalidError{Reason: `name one dead letter: {"letters": [<number>]} or {"jobs": ["<uuid>"]}`}
	}
	l, err := d.last(ctx, q)
	if err != nil {
		return nil, err
	}
	if l == nil {
		return nil, &cluster.APIError{Code: "404", Text: "dead letter does not exist; 'yardmaster dlq list' shows what there is"}
	}
	return d.letterToJSON(l), nil
}

// last is the newest letter that a question means, however long it takes to
// find; nil if there is none.
func (d *dlq) last(ctx context.Context, q *letterQuestion) (last *letter, err error) {
	for w := (walked{Next: 1}); w.Next > 0; {
		if w, err = d.walk(ctx, q, func(l letter) bool { last = &l; return true }); err != nil {
			return nil, err
		}
		q.From, q.Until, q.over = w.Next, w.Until, time.Now().Add(walkTime)
	}
	return last, nil
}

// maxKinds is how many different names of one sort a part of the statistics
// tells apart.
const maxKinds = 500

// letterStats counts letters. Parts of it can be added up.
type letterStats struct {
	Count     int            `json:"count"`
	Oldest    *time.Time     `json:"oldest,omitempty"` // when the first of them failed
	Newest    *time.Time     `json:"newest,omitempty"`
	Queues    map[string]int `json:"queues"`
	Functions map[string]int `json:"functions"` // "" for jobs that name none
	Errors    map[string]int `json:"errors"`    // by type; "…" for what is too much to tell apart
	walked
}

func (s *letterStats) add(l *letter) {
	s.Count++
	if s.Oldest == nil || l.Failed.Before(*s.Oldest) {
		s.Oldest = &l.Failed
	}
	if s.Newest == nil || l.Failed.After(*s.Newest) {
		s.Newest = &l.Failed
	}
	tally(s.Queues, l.Queue)
	tally(s.Functions, l.Function)
	tally(s.Errors, l.errorType())
}

func tally(counts map[string]int, name string) {
	if len(name) > job.MaxFunctionLen {
		name = strings.ToValidUTF8(name[:job.MaxFunctionLen], "")
	}
	if _, known := counts[name]; !known && len(counts) >= maxKinds {
		name = "…"
	}
	counts[name]++
}

func (d *dlq) stats(ctx context.Context, q *letterQuestion) (any, error) {
	s := letterStats{Queues: map[string]int{}, Functions: map[string]int{}, Errors: map[string]int{}}
	var err error
	s.walked, err = d.walk(ctx, q, func(l letter) bool {
		s.add(&l)
		return true
	})
	return &s, err
}
