package chronicle

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/timeline"
)

// ErrNotKept means that history does not reach back to a point.
var ErrNotKept = errors.New("history does not reach back to this point")

// point is a point of history: an event, or a time.
type point struct {
	event uint64
	at    time.Time // if event is 0
}

// parsePoint parses an event's number or a time; "" is the time now.
func parsePoint(text string, now time.Time) (point, error) {
	if text == "" {
		return point{at: now}, nil
	}
	if event, err := strconv.ParseUint(text, 10, 64); err == nil && event > 0 {
		return point{event: event}, nil
	}
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return pastPoint(at, now)
	}
	for _, layout := range []string{"2006-01-02T15:04:05", "2006-01-02T15:04", time.DateOnly} {
		if at, err := time.Parse(layout, text); err == nil {
			return pastPoint(at, now)
		}
	}
	if ago, err := duration.Parse(text); err == nil && ago >= 0 {
		return point{at: now.Add(-ago)}, nil
	}
	if clock, err := time.Parse("15:04:05", text+":00"[min(3, 3*max(0, len(text)-5)):]); err == nil {
		today := now.UTC()
		return pastPoint(time.Date(today.Year(), today.Month(), today.Day(), clock.Hour(), clock.Minute(), clock.Second(), 0, time.UTC), now)
	}
	return point{}, &job.InvalidError{Reason: fmt.Sprintf("%.40q is no point of history; must be the number of an event, a time such as 2026-03-19T14:03:00Z, a date, a time of today such as 14:03 (UTC), or a duration before now such as 1h or 2d", text)}
}

// maxClockSkew is how far the clock of a node may be behind that of a caller.
const maxClockSkew = 10 * time.Second

// pastPoint returns the point at a time, which must not be in the future.
func pastPoint(at, now time.Time) (point, error) {
	if at.After(now.Add(maxClockSkew)) {
		return point{}, &job.InvalidError{Reason: fmt.Sprintf("%s is in the future: it is %s; a time of an earlier day needs its date", ledger.FormatTime(at.UTC()), ledger.FormatTime(now.UTC()))}
	}
	return point{at: at}, nil
}

// within reports whether an event is not after the point.
func (p point) within(number uint64, at time.Time) bool {
	if p.event > 0 {
		return number <= p.event
	}
	return !at.After(p.at)
}

// At returns the state at a point. The error is [ErrNotKept] if history does not reach back to it.
func (c *Chronicle) At(ctx context.Context, text string) (*timeline.State, error) {
	p, err := parsePoint(text, time.Now())
	if err != nil {
		return nil, err
	}
	var lineage, last uint64
	c.cfg.View(func(l *ledger.Ledger) { lineage, last = l.FenceBase(), l.LastEvent() })
	s, err := c.base(ctx, lineage, func(b *streams.Batch) bool { return p.within(b.First, b.Stored) })
	if errors.Is(err, streams.ErrNotStored) {
		return nil, c.notKept(ctx, lineage)
	}
	if p.event > 0 {
		last = min(last, p.event)
	}
	if err == nil {
		err = c.foldAll(ctx, s, p.within, last)
	}
	switch {
	case errors.Is(err, ErrNotKept):
		return nil, c.notKept(ctx, lineage)
	case errors.Is(err, streams.ErrNoLeader), errors.Is(err, streams.ErrStreamMissing), errors.Is(err, context.DeadlineExceeded):
		return nil, &job.UnavailableError{Reason: "history cannot be read: " + err.Error(), RetryAfter: time.Second}
	case err != nil:
		return nil, fmt.Errorf("rebuild the state at %s: %w", cmp.Or(text, "present"), err)
	case s.Event < p.event:
		return nil, &job.InvalidError{Reason: fmt.Sprintf("event %d has not been published; the last one is %d", p.event, s.Event)}
	}
	return s, nil
}

// foldAll folds events like [Chronicle.fold], and again until the state has event last, or an event follows that
// within does not permit: a replica may lack events, or they may not be published yet. After readTimeout it returns
// with those that there are.
func (c *Chronicle) foldAll(ctx context.Context, s *timeline.State, within func(number uint64, at time.Time) bool, last uint64) error {
	for deadline := time.Now().Add(readTimeout); ; {
		stopped, err := c.fold(ctx, s, within)
		if err != nil || stopped || s.Event >= last || !time.Now().Before(deadline) {
			return err
		}
		if err := backoff.Sleep(ctx, readRetry); err != nil {
			return err
		}
	}
}

// notKept returns the error for a point that history does not reach back to, with the first base
// from which it does.
func (c *Chronicle) notKept(ctx context.Context, lineage uint64) error {
	events, err := c.cfg.Reader.ReadHistory(ctx, 1, 1)
	if err != nil {
		return err
	}
	useless, err := c.cfg.Reader.FindLast(ctx, subjects.StreamState, func(b *streams.Batch) bool {
		return !isOf(b, lineage) || len(events) > 0 && b.First+1 < events[0].First
	})
	if err != nil && !errors.Is(err, streams.ErrNotStored) {
		return err
	}
	first, err := c.cfg.Reader.FirstBatch(ctx, subjects.StreamState)
	if err == nil && useless.Seq >= first.Seq {
		first, err = c.cfg.Reader.ReadBatch(ctx, subjects.StreamState, useless.Seq+1)
	}
	if errors.Is(err, streams.ErrNotStored) {
		return &job.InvalidError{Reason: "no state has been stored yet; the authority stores one every half minute"}
	}
	if err != nil {
		return err
	}
	return &job.InvalidError{Reason: fmt.Sprintf("%v; the earliest is event %d, from %s on", ErrNotKept, first.First, ledger.FormatTime(first.Stored))}
}

// HandleState answers a request for the state at a point.
func (c *Chronicle) HandleState(ctx context.Context, q *api.StateRequest) (*api.State, error) {
	s, err := c.At(ctx, q.At)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	total, err := json.Marshal(s.Total())
	if err != nil {
		return nil, err
	}
	reply := &api.State{Event: s.Event, At: s.At, Imbalance: s.Imbalance(), State: text}
	return reply, json.Unmarshal(total, &reply.Jobs)
}

// HandleDiff answers a request for what differs between the states at two points.
func (c *Chronicle) HandleDiff(ctx context.Context, q *api.StateDiffRequest) (*api.StateDiff, error) {
	if q.From == "" {
		return nil, &job.InvalidError{Reason: "from is missing: give the number of an event or a time"}
	}
	from, err := c.At(ctx, q.From)
	if err != nil {
		return nil, fmt.Errorf("from: %w", err)
	}
	to, err := c.At(ctx, q.To)
	if err != nil {
		return nil, fmt.Errorf("to: %w", err)
	}
	reply := &api.StateDiff{
		From: api.StatePoint{Event: from.Event, At: from.At}, To: api.StatePoint{Event: to.Event, At: to.At}, Differences: []api.StateDifference{},
	}
	for _, d := range from.Changes(to) {
		reply.Differences = append(reply.Differences, api.StateDifference{What: d.What, From: d.From, To: d.To})
	}
	return reply, nil
}
