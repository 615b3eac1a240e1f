package deadletters

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
)

// Run completes the directory, so that no request has to wait until it is complete, and returns when ctx ends.
func (s *Server) Run(ctx context.Context) error {
	for {
		k, err := s.directory.update(ctx)
		for err == nil && !k.complete() {
			k, err = s.directory.extend(ctx)
		}
		if err == nil {
			<-ctx.Done()
			return nil
		}
		select { // the stream may not exist yet, or have no leader
		case <-time.After(directoryRetry):
		case <-ctx.Done():
			return nil
		}
	}
}

// directoryRetry is the time after which Run tries again.
const directoryRetry = time.Second

// scan calls fn for each dead letter that the request selects, newest first, until fn returns false or the
// request's deadline has passed. Then Next of the result is the number at which another request can continue,
// downwards; otherwise it is 0. Until is the newest number of the scan. Letters that are added meanwhile are
// not part of it.
func (s *Server) scan(ctx context.Context, req *request, fn func(*entry) (more bool)) (continuation api.Continuation, err error) {
	k, err := s.directory.update(ctx)
	if err != nil {
		return continuation, deadLetterReadError(err)
	}
	continuation.Until = cmp.Or(req.Until, k.end-1)
	next := continuation.Until
	if req.From > 0 {
		next = min(req.From, next)
	}
	for {
		entries := k.before(next)
		for i := len(entries) - 1; i >= 0; i-- {
			e := &entries[i]
			selected, err := s.selects(ctx, req, e)
			if err != nil {
				return continuation, deadLetterReadError(err)
			}
			if stopped := selected && !fn(e); stopped || i%1024 == 0 && time.Now().After(req.deadline) {
				if next = e.seq - 1; i > 0 || !k.complete() {
					continuation.Next = next
				}
				return continuation, nil
			}
		}
		if next = min(next, k.low-1); k.complete() || next == 0 {
			return continuation, nil
		}
		if time.Now().After(req.deadline) {
			continuation.Next = next
			return continuation, nil
		}
		if k, err = s.directory.extend(ctx); err != nil {
			return continuation, deadLetterReadError(err)
		}
	}
}

// selects reports whether a request selects the letter of an entry. It reads the letter if the request looks
// for a text and the entry has only a part of the letter's texts.
func (s *Server) selects(ctx context.Context, r *request, e *entry) (bool, error) {
	switch failed := time.Unix(0, e.failed); {
	case r.Queue != "" && e.queue != r.Queue,
		r.Function != "" && e.function != r.Function,
		r.FailedBefore != nil && !failed.Before(*r.FailedBefore),
		r.FailedAfter != nil && !failed.After(*r.FailedAfter),
		len(r.Jobs) > 0 && !slices.Contains(r.Jobs, e.job),
		len(r.Letters) > 0 && !slices.Contains(r.Letters, e.seq):
		return false, nil
	case r.Error == "" || e.failedWith(r.Error):
		return true, nil
	case !e.isCut:
		return false, nil
	}
	b, err := s.cfg.Reader.DeadLetter(ctx, e.seq)
	if errors.Is(err, streams.ErrNotStored) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	l := parse(&b)
	return r.matches(&l), nil
}

// maxParallelReads is how many letters of a page are read at the same time.
const maxParallelReads = 32

// list returns a page of the dead letters that q selects, without their records.
func (s *Server) list(ctx context.Context, q *request) (*api.DeadLetterPage, error) {
	answer := &api.DeadLetterPage{Letters: []api.DeadLetter{}}
	size := 0
	add := func(l *letter) (more bool) {
		l.Job, l.Record = nil, nil
		answer.Letters = append(answer.Letters, *s.shown(l))
		size += l.size()
		return len(answer.Letters) < q.Limit && size < maxDeadLetterBytes
	}
	var err error
	if q.Order == api.OrderOldest {
		answer.Continuation, err = s.walk(ctx, q, func(l letter) bool { return add(&l) })
		return answer, err
	}
	var numbers []uint64
	if answer.Continuation, err = s.scan(ctx, q, func(e *entry) bool {
		numbers = append(numbers, e.seq)
		return len(numbers) < q.Limit
	}); err != nil {
		return nil, err
	}
	for part := range slices.Chunk(numbers, maxParallelReads) {
		letters, err := s.read(ctx, part)
		if err != nil {
			return nil, deadLetterReadError(err)
		}
		for i := range letters {
			if letters[i].number == 0 || add(&letters[i]) {
				continue
			}
			if last := letters[i].number; last != numbers[len(numbers)-1] {
				answer.Next = last - 1
			}
			return answer, nil
		}
	}
	return answer, nil
}

// read returns the letters with numbers, in that order; one that was removed has the number 0.
func (s *Server) read(ctx context.Context, numbers []uint64) ([]letter, error) {
	letters := make([]letter, len(numbers))
	group, ctx := crash.WithContext(ctx)
	for i, number := range numbers {
		group.Go(func() error {
			b, err := s.cfg.Reader.DeadLetter(ctx, number)
			if errors.Is(err, streams.ErrNotStored) {
				return nil
			}
			if err == nil {
				letters[i] = parse(&b)
			}
			return err
		})
	}
	return letters, group.Wait()
}

// last returns the newest dead letter that q selects, or nil. If q names no letters by number, it scans the whole
// directory if necessary, in parts.
func (s *Server) last(ctx context.Context, q *request) (last *letter, err error) {
	if len(q.Letters) > 0 {
		return s.lastNamed(ctx, q)
	}
	for c := (api.Continuation{Next: q.From}); ; {
		q.From, q.Until, q.deadline = c.Next, c.Until, time.Now().Add(walkTimeout)
		number := uint64(0)
		if c, err = s.scan(ctx, q, func(e *entry) bool { number = e.seq; return false }); err != nil {
			return nil, err
		}
		if number > 0 {
			found, err := s.read(ctx, []uint64{number})
			if err != nil {
				return nil, deadLetterReadError(err)
			}
			if found[0].number > 0 {
				return &found[0], nil
			}
		}
		if c.Next == 0 {
			return nil, nil
		}
	}
}

// lastNamed is last for a request that names letters by number. It needs no directory, which may not be complete.
func (s *Server) lastNamed(ctx context.Context, q *request) (*letter, error) {
	numbers := q.Letters // sorted
	if numbers[0] == 0 { // the first letter has the number 1
		numbers = numbers[1:]
	}
	letters, err := s.read(ctx, numbers)
	if err != nil {
		return nil, deadLetterReadError(err)
	}
	for i := len(letters) - 1; i >= 0; i-- {
		if l := &letters[i]; l.number > 0 && q.matches(l) {
			return l, nil
		}
	}
	return nil, nil
}

// stats counts the dead letters that q selects.
func (s *Server) stats(ctx context.Context, q *request) (_ *api.DeadLetterStats, err error) {
	stats := &api.DeadLetterStats{DeadLetterCounts: api.DeadLetterCounts{Queues: map[string]int{}, Functions: map[string]int{}, Errors: map[string]int{}}}
	groups := map[api.DeadLetterGroup]int{}
	stats.Continuation, err = s.scan(ctx, q, func(e *entry) bool {
		e.count(&stats.DeadLetterCounts, groups)
		return true
	})
	stats.Groups = api.DeadLetterGroups(groups)
	return stats, err
}

// count adds the letter of e to the statistics.
func (e *entry) count(s *api.DeadLetterCounts, groups map[api.DeadLetterGroup]int) {
	s.Count++
	failed := time.Unix(0, e.failed).UTC()
	if s.Oldest == nil || failed.Before(*s.Oldest) {
		s.Oldest = &failed
	}
	if s.Newest == nil || failed.After(*s.Newest) {
		s.Newest = &failed
	}
	countName(s.Queues, e.queue)
	countName(s.Functions, e.function)
	countName(s.Errors, e.errorType)
	group := api.DeadLetterGroup{Type: shortName(e.errorType), Code: shortName(e.code)}
	if _, known := groups[group]; !known && len(groups) >= maxStatNames {
		group = api.DeadLetterGroup{Type: otherNames}
	}
	groups[group]++
}
