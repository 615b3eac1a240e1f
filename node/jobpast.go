package node

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"yardmaster/cluster"
	"yardmaster/job"
	"yardmaster/ledger"
)

// Bounds of a look at a job's history, which lies among all others'.
const (
	pastTime  = 900 * time.Millisecond
	pastBytes = 24 << 20 // from each time that the ledger knows something of
	pastTales = 64       // read at once
	pastEarly = 2 * time.Second
	maxUntold = 100_000 // events looked at that are not published yet
	maxPast   = 1000    // events shown: the last
)

// past is a job's history.
type past struct {
	Events   []json.RawMessage `json:"events"`   // in their order, as in the stream YARD_EVENTS
	Complete bool              `json:"complete"` // these are all there are
	Note     string            `json:"note,omitempty"`
}

// reader finds the past of one job. It begins to read the stream where the
// ledger says that something was done with the job, and ends at the last event
// that there can be.
type reader struct {
	since func(ctx context.Context, at time.Time, most int) ([]cluster.Tale, error)
	from  func(ctx context.Context, seq uint64, most int) ([]cluster.Tale, error)

	id      []byte
	last    pastEvent // the last that there can be
	next    uint64    // sequence after the last tale read; 0: none
	gap     bool      // tales between were not read
	end     bool      // last was read, or there are no more
	failure error
	found   []pastEvent
}

// pastEvent is one event about the job.
type pastEvent struct {
	Event    string `json:"event"`
	Request  string `json:"request_id"`
	Number   uint64 `json:"seq"`
	Dispatch uint32 `json:"-"`
	line     []byte
}

// pastOf reads a job's history; untold are lines that are not published yet.
func (n *Node) pastOf(ctx context.Context, p *ledger.Plight, untold [][]byte, untoldAll bool) past {
	if p.Dispatches == 0 {
		return past{Events: []json.RawMessage{}, Complete: true, Note: "no dispatch of it was ever made"}
	}
	ctx, cancel := context.WithTimeout(ctx, pastTime)
	defer cancel()
	r := &reader{since: n.messages.ReadHistorySince, from: n.messages.ReadHistory, id: p.ID.Append(nil), last: lastOf(p)}
	for _, line := range untold {
		r.take(line)
	}
	ended := r.end
	r.end = false
	r.read(ctx, timesOf(p))
	r.end = r.end || ended
	return r.past(untoldAll)
}

// lastOf is the last event that a job in its state can have.
func lastOf(p *ledger.Plight) pastEvent {
	kind := ledger.DispatchFailed
	switch p.State {
	case job.Waiting:
		kind = ledger.DispatchQueued
	case job.Active:
		kind = ledger.WorkerAssigned
	case job.Completed:
		kind = ledger.DispatchDelivered
	}
	return pastEvent{Event: kind.String(), Dispatch: p.Dispatches}
}

// timesOf are the moments at which the ledger knows that something was done.
func timesOf(p *ledger.Plight) (times []time.Time) {
	for _, at := range []time.Time{p.Created, p.Asked, p.Started, p.Ended} {
		if !at.IsZero() {
			times = append(times, at)
		}
	}
	slices.SortFunc(times, time.Time.Compare)
	return times
}

// read reads from each time on, as far as its share goes. What lies between is
// left out if that is more.
func (r *reader) read(ctx context.Context, times []time.Time) {
	for _, at := range times {
		tales, err := r.since(ctx, at.Add(-pastEarly), pastTales)
		r.gap = r.gap || r.next > 0 && len(tales) > 0 && tales[0].Seq > r.next
		for left := pastBytes; ; {
			if r.failure = err; err != nil || r.end {
				return
			}
			if tales = r.fresh(tales); len(tales) == 0 {
				break
			}
			for i := range tales {
				r.tale(&tales[i])
				left -= len(tales[i].Body)
			}
			if left <= 0 {
				break
			}
			tales, err = r.from(ctx, r.next, pastTales)
		}
	}
}

// fresh leaves out what has been read.
func (r *reader) fresh(tales []cluster.Tale) []cluster.Tale {
	for len(tales) > 0 && tales[0].Seq < r.next {
		tales = tales[1:]
	}
	return tales
}

func (r *reader) tale(t *cluster.Tale) {
	r.next = t.Seq + 1
	if !bytes.Contains(t.Body, r.id) {
		return
	}
	for line := range bytes.SplitSeq(t.Body, []byte("\n")) {
		if bytes.Contains(line, r.id) {
			r.take(line)
		}
	}
}

// take keeps an event that is about the job.
func (r *reader) take(line []byte) {
	var e pastEvent
	if json.Unmarshal(line, &e) != nil {
		return
	}
	if id, n, ok := job.ParseRequestID(e.Request); ok && id.String() == string(r.id) {
		e.Dispatch = n
	} else if e.Event != ledger.WorkerAssigned.String() { // another job's, which speaks of this one
		return
	} else if k := len(r.found); k > 0 { // it names no dispatch, but follows its notice
		e.Dispatch = r.found[k-1].Dispatch
	}
	e.line = bytes.Clone(line)
	r.found = append(r.found, e)
	r.end = r.end || e.Event == r.last.Event && e.Dispatch == r.last.Dispatch
}

// past sorts what was found, and says what is missing.
func (r *reader) past(untoldAll bool) past {
	slices.SortStableFunc(r.found, func(a, b pastEvent) int { return int(int64(a.Number - b.Number)) })
	r.found = slices.CompactFunc(r.found, func(a, b pastEvent) bool { return a.Number == b.Number })
	p := past{Events: []json.RawMessage{}, Complete: r.whole()}
	switch {
	case p.Complete:
	case r.failure != nil:
		p.Note = "history could not be read to the end: " + r.failure.Error()
	case r.gap:
		p.Note = "there is too much history of other jobs between to look through: events are missing; 'yardmaster events --job' looks at all"
	case !r.end || !untoldAll:
		p.Note = "the last events are not published yet, or no longer kept"
	default:
		p.Note = "the first events are no longer kept"
	}
	if cut := len(r.found) - maxPast; cut > 0 {
		r.found, p.Complete = r.found[cut:], false
		p.Note = strings.TrimPrefix(fmt.Sprintf("%s; %d older events are left out", p.Note, cut), "; ")
	}
	for _, e := range r.found {
		p.Events = append(p.Events, e.line)
	}
	return p
}

// whole tells that no event is missing: each dispatch is queued, then notified,
// then delivered or failed, once each, up to where the last one stands.
func (r *reader) whole() bool {
	queued, notified, ended := uint32(0), uint32(0), uint32(0)
	for _, e := range r.found {
		switch e.Event {
		case ledger.DispatchQueued.String():
			queued++
		case ledger.DispatchNotified.String():
			notified++
		case ledger.DispatchDelivered.String(), ledger.DispatchFailed.String():
			ended++
		}
	}
	n := r.last.Dispatch
	switch r.last.Event {
	case ledger.DispatchQueued.String():
		return queued == n && notified == n-1 && ended == n-1
	case ledger.WorkerAssigned.String():
		return queued == n && notified == n && ended == n-1
	}
	return queued == n && notified == n && ended == n
}
