package diagnose

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/ledger/history"
)

// Bounds of a search for a job's history, which is in one stream with that of all jobs.
const (
	historyTimeout   = 900 * time.Millisecond
	historyMaxBytes  = 24 << 20        // bytes read from each of eventTimes on
	historyBatchSize = 64              // messages read at once
	historySlack     = 2 * time.Second // how much earlier than the ledger's time reading begins
	maxUnpublished   = 100_000         // events searched that are not published yet
	maxHistoryEvents = 1000            // events returned: the latest
)

// historyReader finds the events of one job. It reads the stream from each time at which
// the ledger knows that something happened to the job, up to the last event that the job
// can have.
type historyReader struct {
	readSince func(ctx context.Context, at time.Time, limit int) ([]streams.Batch, error)
	readFrom  func(ctx context.Context, seq uint64, limit int) ([]streams.Batch, error)

	id        job.ID
	lastEvent historyEvent // the last that the job can have
	next      uint64       // sequence after the last batch read; 0: none
	gap       bool         // batches were skipped
	ended     bool         // lastEvent was found
	err       error
	found     []historyEvent
}

// historyEvent is one event about the job.
type historyEvent struct {
	Event    string `json:"event"`
	Request  string `json:"request_id"`
	Job      string `json:"job"` // of an act
	Number   uint64 `json:"seq"`
	Dispatch uint32 `json:"-"`
	line     []byte
}

// readHistory reads a job's history. unpublished are lines of events that are still in
// the ledger's outbox, and therefore not in the stream; allUnpublished reports whether
// these are all such events of the job.
func (g *Diagnoser) readHistory(ctx context.Context, p *ledger.JobDiagnosis, unpublished [][]byte, allUnpublished bool) api.JobHistory {
	if p.Dispatches == 0 && !p.State.Ended() {
		return api.JobHistory{Events: []json.RawMessage{}, Complete: true, Note: "no dispatch of it was ever made"}
	}
	ctx, cancel := context.WithTimeout(ctx, historyTimeout)
	defer cancel()
	r := &historyReader{readSince: g.cfg.Records.ReadHistorySince, readFrom: g.cfg.Records.ReadHistory, id: p.ID, lastEvent: lastEventOf(p)}
	for _, line := range unpublished {
		r.addLine(line)
	}
	endedUnpublished := r.ended
	r.ended = false // or read would stop at once
	r.read(ctx, eventTimes(p))
	r.ended = r.ended || endedUnpublished
	return r.history(allUnpublished)
}

// lastEventOf returns the last event that a job in its state can have.
func lastEventOf(p *ledger.JobDiagnosis) historyEvent {
	kind := ledger.DispatchFailed
	switch p.State {
	case job.Cancelled, job.Expired:
		if p.Dispatches == 0 { // it ended while it was delayed
			kind = ledger.OperatorActed
		}
	case job.Waiting:
		kind = ledger.DispatchQueued
	case job.Active:
		kind = ledger.WorkerAssigned
	case job.Completed:
		kind = ledger.DispatchDelivered
	}
	return historyEvent{Event: kind.String(), Dispatch: p.Dispatches}
}

// eventTimes returns the times of the job's events that the ledger has, earliest first.
func eventTimes(p *ledger.JobDiagnosis) (times []time.Time) {
	for _, at := range []time.Time{p.Created, p.RequestedAt, p.Started, p.Ended} {
		if !at.IsZero() {
			times = append(times, at)
		}
	}
	slices.SortFunc(times, time.Time.Compare)
	return times
}

// read reads the stream from each of the times on, at most historyMaxBytes each, until
// lastEvent is found. It sets gap if it skips what is between two such parts, and err if
// the stream cannot be read.
func (r *historyReader) read(ctx context.Context, times []time.Time) {
	for _, at := range times {
		batches, err := r.readSince(ctx, at.Add(-historySlack), historyBatchSize)
		skipped := r.next > 0 && len(batches) > 0 && batches[0].Seq > r.next
		r.gap = r.gap || skipped
		remaining := historyMaxBytes
		for {
			r.err = err
			if err != nil || r.ended {
				return
			}
			batches = slices.DeleteFunc(batches, func(b streams.Batch) bool { return b.Seq < r.next }) // those that were read before
			if len(batches) == 0 {
				break
			}
			for i := range batches {
				if r.err = r.readBatch(&batches[i]); r.err != nil {
					return
				}
				remaining -= len(batches[i].Body)
			}
			if remaining <= 0 {
				break
			}
			batches, err = r.readFrom(ctx, r.next, historyBatchSize)
		}
	}
}

// readBatch adds the events of the job that a batch contains.
func (r *historyReader) readBatch(b *streams.Batch) error {
	r.next = b.Seq + 1
	if !history.Mentions(b.Body, r.id) {
		return nil
	}
	lines, err := history.Expand(b.Body)
	id := r.id.Append(nil)
	for line := range bytes.SplitSeq(lines, []byte("\n")) {
		if bytes.Contains(line, id) {
			r.addLine(line)
		}
	}
	return err
}

// addLine adds an event if it is about the job.
func (r *historyReader) addLine(line []byte) {
	var e historyEvent
	if json.Unmarshal(line, &e) != nil {
		return
	}
	if id, n, ok := job.ParseRequestID(e.Request); ok && id == r.id {
		e.Dispatch = n
	} else if e.Event == ledger.OperatorActed.String() && e.Job == r.id.String() {
		e.Dispatch = 0
	} else if e.Event != ledger.WorkerAssigned.String() { // an event of another job that mentions this one
		return
	} else if k := len(r.found); k > 0 { // WorkerAssigned names no dispatch, but follows its DispatchNotified
		e.Dispatch = r.found[k-1].Dispatch
	}
	e.line = bytes.Clone(line)
	r.found = append(r.found, e)
	r.ended = r.ended || e.Event == r.lastEvent.Event && e.Dispatch == r.lastEvent.Dispatch
}

// history returns the events that were found, sorted and without duplicates, with a note
// about what is missing. allUnpublished is as in readHistory.
func (r *historyReader) history(allUnpublished bool) api.JobHistory {
	slices.SortStableFunc(r.found, func(a, b historyEvent) int { return int(int64(a.Number - b.Number)) })
	r.found = slices.CompactFunc(r.found, func(a, b historyEvent) bool { return a.Number == b.Number })
	h := api.JobHistory{Events: []json.RawMessage{}, Complete: r.complete()}
	switch {
	case h.Complete:
	case r.err != nil:
		h.Note = "history could not be read to the end: " + r.err.Error()
	case r.gap:
		h.Note = "there is too much history of other jobs in between: events are missing; 'yardmaster events --job' searches all of it"
	case !r.ended || !allUnpublished:
		h.Note = "the last events are not published yet, or no longer kept"
	default:
		h.Note = "the first events are no longer kept"
	}
	if cut := len(r.found) - maxHistoryEvents; cut > 0 {
		r.found, h.Complete = r.found[cut:], false
		h.Note = strings.TrimPrefix(fmt.Sprintf("%s; %d older events are omitted", h.Note, cut), "; ")
	}
	for _, e := range r.found {
		h.Events = append(h.Events, e.line)
	}
	return h
}

// complete reports whether no event is missing: each dispatch has one DispatchQueued, one
// DispatchNotified, and one DispatchDelivered or DispatchFailed, up to lastEvent.
func (r *historyReader) complete() bool {
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
	n := r.lastEvent.Dispatch
	switch r.lastEvent.Event {
	case ledger.DispatchQueued.String():
		return queued == n && notified == n-1 && ended == n-1
	case ledger.WorkerAssigned.String():
		return queued == n && notified == n && ended == n-1
	}
	return queued == n && notified == n && ended == n
}
