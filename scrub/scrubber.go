package scrub

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
)

// How a round goes.
const (
	firstAfter = 30 * time.Second // of a node's life, at least
	againAfter = time.Minute      // what was found wrong is looked at again
	settle     = 3 * time.Second  // until what seems wrong is read again
	askTime    = 10 * time.Second
	pageSize   = 4096 * ChunkSize // sequences whose sums are asked for at once
)

// Config is how often and how fast a node reads its copies.
type Config struct {
	Node  string
	Every time.Duration // from one round to the next
	Rate  int64         // bytes a second
}

// Scrubber reads one node's copies.
type Scrubber struct {
	cfg  Config
	yard Yard
	log  *slog.Logger

	fresh sync.Mutex // one reading at a time for those who ask

	mu     sync.Mutex
	report Report
	walked map[string]*walk
}

// walk is what was summed when a copy was last read.
type walk struct {
	from, to uint64
	messages uint64
	chunks   map[uint64]Chunk
}

// New makes a scrubber that has read nothing; [Scrubber.Run] runs it.
func New(cfg Config, yard Yard, log *slog.Logger) *Scrubber {
	return &Scrubber{cfg: cfg, yard: yard, log: log, report: Report{Node: cfg.Node}, walked: map[string]*walk{}}
}

// Run reads all copies again and again until ctx ends, and more often those in
// which something was found, or that could not be proved.
func (s *Scrubber) Run(ctx context.Context) error {
	next := time.Now().Add(spread(min(s.cfg.Every, firstAfter)))
	for ctx.Err() == nil {
		all := !time.Now().Before(next)
		if all {
			s.Round(ctx)
		} else {
			s.round(ctx, false)
		}
		if all {
			next = time.Now().Add(spread(s.cfg.Every))
		}
		wait := time.Until(next)
		if len(s.open()) > 0 {
			wait = min(wait, againAfter)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
	return nil
}

// spread is a time around d, so that members do not all read at once.
func spread(d time.Duration) time.Duration { return d*9/10 + rand.N(d/5+1) }

// Round reads all copies now, and keeps what it finds.
func (s *Scrubber) Round(ctx context.Context) { s.round(ctx, true) }

// round reads all copies, or only those that are open.
func (s *Scrubber) round(ctx context.Context, all bool) {
	began := time.Now()
	copies, err := s.yard.Copies()
	if err != nil {
		s.log.Warn("copies of streams are not read", "error", err)
		return
	}
	open := s.open()
	for i := range copies {
		if ctx.Err() == nil && (all || slices.Contains(open, copies[i].Stream)) {
			s.Recheck(ctx, copies[i])
		}
	}
	if ctx.Err() != nil || !all {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Ended, s.report.Took = time.Now(), time.Since(began).Milliseconds()
	s.report.Results = slices.DeleteFunc(s.report.Results, func(r Result) bool { // it lies elsewhere now
		return !slices.ContainsFunc(copies, func(c Copy) bool { return c.Stream == r.Stream })
	})
}

// keep puts a result in the place of the one before. What that found stands as long
// as nobody can look again.
func (s *Scrubber) keep(r Result) {
	if r.Error != "" {
		s.log.Warn("this node's copy of a stream is not proved", "stream", r.Stream, "error", r.Error)
	}
	for _, f := range r.Findings {
		s.log.Error("this node's copy of a stream is not sound", "stream", r.Stream, "finding", f.Kind, "messages", f.Count, "sequences", f.Which, "compared_with", strings.Join(f.With, ","))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i, there := slices.BinarySearchFunc(s.report.Results, r.Stream, func(a Result, name string) int { return strings.Compare(a.Stream, name) })
	if there {
		if r.Error != "" && len(r.Findings) == 0 {
			r.Findings = s.report.Results[i].Findings
		}
		s.report.Results[i] = r
		return
	}
	s.report.Results = slices.Insert(s.report.Results, i, r)
}

// Report is what was last found.
func (s *Scrubber) Report() Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.report
	r.Results = slices.Clone(r.Results)
	return r
}

// Wrong are the copies in which something was found when they were last read.
func (s *Scrubber) Wrong() []Result {
	return slices.DeleteFunc(s.Report().Results, func(r Result) bool { return len(r.Findings) == 0 })
}

// open are the streams whose copies are to be read again soon.
func (s *Scrubber) open() (streams []string) {
	for _, r := range s.Report().Results {
		if r.Error != "" || len(r.Findings) > 0 {
			streams = append(streams, r.Stream)
		}
	}
	return streams
}

// Recheck reads one copy now, and keeps what it finds.
func (s *Scrubber) Recheck(ctx context.Context, c Copy) Result {
	r := s.Check(ctx, c)
	if ctx.Err() == nil {
		s.keep(r)
	}
	return r
}

// Check reads one copy and compares it, without keeping what comes of it.
func (s *Scrubber) Check(ctx context.Context, c Copy) Result {
	r := Result{Stream: c.Stream, First: c.First, Last: c.Last}
	w, damaged, err := s.walk(ctx, c)
	r.Damaged, r.At = damaged, time.Now()
	if err != nil {
		r.Error = err.Error()
		return r
	}
	r.Messages = w.messages
	suspect := map[uint64]bool{}
	for n := c.First / ChunkSize; c.Dense && n <= c.Last/ChunkSize; n++ {
		expected := min(c.Last+1, (n+1)*ChunkSize) - max(c.First, n*ChunkSize)
		suspect[n] = c.Last >= c.First && w.chunks[n].Count != expected
	}
	for _, member := range s.yard.Others() {
		if s.differing(ctx, c, w, member, suspect) {
			r.With = append(r.With, member)
		}
	}
	chunks := slices.DeleteFunc(slices.Sorted(maps.Keys(suspect)), func(n uint64) bool { return !suspect[n] })
	if r.Findings, err = s.look(ctx, c, chunks, &r.With); err != nil {
		r.Error = err.Error()
	}
	r.At = time.Now()
	return r
}

// walk reads a copy and sums it.
func (s *Scrubber) walk(ctx context.Context, c Copy) (w *walk, damaged int, err error) {
	w = &walk{from: c.First, to: c.Last, chunks: map[uint64]Chunk{}}
	if c.Last >= c.First {
		damaged, err = s.yard.Walk(c.Stream, c.First, c.Last, s.pace(ctx), func(seq, sum uint64) {
			n := seq / ChunkSize
			chunk := w.chunks[n]
			w.chunks[n] = Chunk{n, chunk.Count + 1, chunk.Sum + sum}
			w.messages++
		})
	}
	if err == nil {
		s.mu.Lock()
		s.walked[c.Stream] = w
		s.mu.Unlock()
	}
	return w, damaged, err
}

// pace has a reader wait so that it reads no faster than it may.
func (s *Scrubber) pace(ctx context.Context) func(bytes int) error {
	return func(bytes int) error {
		select {
		case <-time.After(time.Duration(float64(bytes) / float64(s.cfg.Rate) * float64(time.Second))):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// differing marks the chunks of which a member has another sum, and tells whether
// it has a copy that it has read.
func (s *Scrubber) differing(ctx context.Context, c Copy, w *walk, member string, suspect map[uint64]bool) bool {
	theirs, first, until := map[uint64]Chunk{}, uint64(0), uint64(0)
	for from := c.First; ; from += pageSize {
		a, err := s.ask(ctx, member, Question{Stream: c.Stream, From: from, To: from + pageSize - 1})
		if err != nil || !a.Has {
			return false
		}
		for _, chunk := range a.Chunks {
			theirs[chunk.N] = chunk
		}
		if first, until = a.First, a.Last; from+pageSize > until {
			break
		}
	}
	for n := max(c.First, first) / ChunkSize; n <= until/ChunkSize; n++ { // what they had not read is theirs to compare
		suspect[n] = suspect[n] || theirs[n] != w.chunks[n] && (c.Dense || theirs[n].Count > 0)
	}
	return true
}

func (s *Scrubber) ask(ctx context.Context, member string, q Question) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return s.yard.Ask(ctx, member, q)
}

// look compares chunks message by message; where something seems wrong, twice. Who
// is not heard about one of them is struck off compared: nobody knows whether the
// two copies are alike there.
func (s *Scrubber) look(ctx context.Context, c Copy, chunks []uint64, compared *[]string) ([]Finding, error) {
	wrong, with := map[Kind][]uint64{}, map[string]bool{}
	var again []uint64
	for _, n := range chunks {
		found, heard, err := s.lookAt(ctx, c, n, 0)
		if err != nil {
			return nil, err
		}
		*compared = slices.DeleteFunc(*compared, func(member string) bool { return !slices.Contains(heard, member) })
		if len(found) > 0 {
			again = append(again, n)
		}
	}
	for _, n := range again {
		pause := time.Duration(0)
		if (n+1)*ChunkSize > c.Last { // what others have behind the end may be on its way
			pause = settle
		}
		found, heard, err := s.lookAt(ctx, c, n, pause)
		if err != nil {
			return nil, err
		}
		for kind, seqs := range found {
			wrong[kind] = append(wrong[kind], seqs...)
		}
		for _, member := range heard {
			with[member] = true
		}
	}
	var findings []Finding
	for _, kind := range slices.Sorted(maps.Keys(wrong)) {
		findings = append(findings, Finding{kind, len(wrong[kind]), ranges(wrong[kind]), slices.Sorted(maps.Keys(with))})
	}
	return findings, nil
}

// lookAt compares one chunk: the others' first, then this node's, so that what
// they have had the time to come here.
func (s *Scrubber) lookAt(ctx context.Context, c Copy, n uint64, wait time.Duration) (wrong map[Kind][]uint64, heard []string, err error) {
	from, to := n*ChunkSize, (n+1)*ChunkSize-1
	others := map[string]*reading{}
	for _, member := range s.yard.Others() {
		a, err := s.ask(ctx, member, Question{Stream: c.Stream, From: from, To: to, Messages: true})
		if err == nil && a.Has {
			others[member] = readingOf(&a)
			heard = append(heard, member)
		}
	}
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	mine, err := s.messages(Question{Stream: c.Stream, From: from, To: to})
	switch {
	case err != nil:
		return nil, heard, err
	case !mine.Has:
		return nil, heard, errNotCurrent
	}
	wrong = judge(readingOf(&mine), others, from, to, c.Dense)
	if !c.Dense {
		err = s.strikeRemoved(ctx, c.Stream, wrong)
	}
	return wrong, heard, err
}

// errNotCurrent: what is on the disk may be about to be replaced.
var errNotCurrent = errors.New("the copy is not current any more")

// strikeRemoved strikes off what this copy lacks because it was removed: it may
// still lie on others' disks.
func (s *Scrubber) strikeRemoved(ctx context.Context, stream string, wrong map[Kind][]uint64) error {
	var lacks []uint64
	for _, seq := range wrong[Lacks] {
		keeps, err := s.yard.Keeps(ctx, stream, seq)
		if err != nil {
			return fmt.Errorf("whether message %d was removed is not known: %w", seq, err)
		}
		if keeps {
			lacks = append(lacks, seq)
		}
	}
	if wrong[Lacks] = lacks; len(lacks) == 0 {
		delete(wrong, Lacks)
	}
	return nil
}

// Serve answers another member's question about this node's copy.
func (s *Scrubber) Serve(q Question) (Answer, error) {
	if q.From > q.To || q.To-q.From >= pageSize || q.Messages && q.To-q.From >= ChunkSize {
		return Answer{}, fmt.Errorf("sequences %d to %d are too many to be told at once", q.From, q.To)
	}
	if q.Messages {
		s.fresh.Lock()
		defer s.fresh.Unlock()
		return s.messages(q)
	}
	s.mu.Lock()
	w := s.walked[q.Stream]
	s.mu.Unlock()
	if w == nil {
		return Answer{}, nil
	}
	a := Answer{Has: true, First: w.from, Last: w.to}
	for n := q.From / ChunkSize; n <= min(q.To, w.to)/ChunkSize; n++ {
		if chunk, there := w.chunks[n]; there {
			a.Chunks = append(a.Chunks, chunk)
		}
	}
	return a, nil
}

// messages reads a chunk from the disk now. What is purged meanwhile is not
// missing: where the copy begins is asked at the end.
func (s *Scrubber) messages(q Question) (a Answer, err error) {
	a.First, a.Last, a.Has, err = s.bounds(q.Stream)
	if err != nil || !a.Has {
		return a, err
	}
	_, err = s.yard.Walk(q.Stream, q.From, q.To, func(int) error { return nil }, func(seq, sum uint64) {
		a.Messages = append(a.Messages, Message{seq, sum})
	})
	if err != nil {
		return a, err
	}
	a.First, _, a.Has, err = s.bounds(q.Stream)
	return a, err
}

// bounds are a copy's first and last sequence; ok tells whether there is one.
func (s *Scrubber) bounds(stream string) (first, last uint64, ok bool, err error) {
	copies, err := s.yard.Copies()
	i := slices.IndexFunc(copies, func(c Copy) bool { return c.Stream == stream })
	if err != nil || i < 0 {
		return 0, 0, false, err
	}
	return copies[i].First, copies[i].Last, true, nil
}
