package chronicle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/ledger/history"
	"github.com/yardmaster-dev/yardmaster/timeline"
)

// yard is a ledger whose history is published to streams in memory after each entry.
type yard struct {
	t      *testing.T
	ledger *ledger.Ledger
	at     ledger.Stamp
	silent bool  // no server answers
	lag    []int // how many batches of history a replica lacks in the next reads
	stored map[string][]streams.Batch
}

func newYard(t *testing.T) *yard {
	y := &yard{t: t, ledger: ledger.New(), stored: map[string][]streams.Batch{}}
	y.at = ledger.Stamp{Term: 1, At: time.Date(2026, 3, 19, 1, 0, 0, 0, time.UTC)}
	y.apply(&ledger.Lead{Owner: "n1", Until: y.at.At.Add(time.Hour), Level: ledger.Level})
	y.apply(&ledger.Bootstrap{Lanes: []string{"lane"}})
	return y
}

// apply applies an entry a second after the last one, and publishes its events.
func (y *yard) apply(cmds ...ledger.Command) {
	y.t.Helper()
	y.at.Index, y.at.At, y.at.Epoch = y.at.Index+1, y.at.At.Add(time.Second), y.ledger.Authority().Epoch
	after := y.ledger.LastEvent()
	for _, r := range y.ledger.Apply(y.at, cmds) {
		if r.Err != nil {
			y.t.Fatal(r.Err)
		}
	}
	if y.ledger.LastEvent() == after {
		return
	}
	enc := history.NewEncoder(0, after+1, y.at.At)
	y.ledger.EventsAfter(after, func(number uint64, at time.Time, e *ledger.Event) bool {
		enc.Add(number, at, e)
		return true
	})
	y.store(subjects.StreamEvents, streams.Batch{First: after + 1, Count: y.ledger.LastEvent() - after, Body: enc.Bytes()})
}

// enqueue ingests a job.
func (y *yard) enqueue(j job.Job) {
	y.t.Helper()
	from := y.ledger.Lanes()[0].Cursor
	j.ID, j.Queue, j.Position = job.ID{byte(from + 1)}, "mail", job.Position{Seq: from + 1}
	y.apply(&ledger.Ingest{Identity: "lane", From: from, To: from + 1, CreateQueues: true, Jobs: []job.Job{j}})
}

func (y *yard) store(stream string, b streams.Batch) {
	b.Seq, b.Stored = uint64(len(y.stored[stream])+1), y.at.At
	y.stored[stream] = append(y.stored[stream], b)
}

func (y *yard) LastPublished(_ context.Context, stream string) (seq, number uint64, err error) {
	if n := len(y.stored[stream]); n > 0 {
		return uint64(n), y.stored[stream][n-1].Last(), nil
	}
	return 0, 0, nil
}

func (y *yard) FindLast(_ context.Context, stream string, accept func(*streams.Batch) bool) (found streams.Batch, err error) {
	if y.silent {
		return found, streams.ErrNoLeader
	}
	for _, b := range y.stored[stream] {
		if b.Body != nil && accept(&b) {
			found = b
		}
	}
	if found.Seq == 0 {
		err = streams.ErrNotStored
	}
	return found, err
}

func (y *yard) FirstBatch(ctx context.Context, stream string) (streams.Batch, error) {
	for _, b := range y.stored[stream] {
		if b.Body != nil {
			return b, nil
		}
	}
	return streams.Batch{}, streams.ErrNotStored
}

func (y *yard) ReadBatch(_ context.Context, stream string, seq uint64) (streams.Batch, error) {
	if seq > uint64(len(y.stored[stream])) || y.stored[stream][seq-1].Body == nil {
		return streams.Batch{}, streams.ErrNotStored
	}
	return y.stored[stream][seq-1], nil
}

func (y *yard) ReadHistory(_ context.Context, from uint64, limit int) (batches []streams.Batch, err error) {
	stored := y.stored[subjects.StreamEvents]
	if len(y.lag) > 0 {
		stored, y.lag = stored[:len(stored)-y.lag[0]], y.lag[1:]
	}
	for _, b := range stored {
		if b.Body != nil && b.Seq >= from && len(batches) < min(limit, 2) {
			batches = append(batches, b)
		}
	}
	return batches, nil
}

// chronicle returns a chronicle of the authority.
func (y *yard) chronicle() *Chronicle {
	return New(Config{
		View: func(view func(*ledger.Ledger)) { view(y.ledger) }, Copy: y.ledger.Copy, IsAuthority: func() bool { return true }, Reader: y,
		Append: func(stream string, b streams.Batch, expect uint64, done func(uint64, error)) {
			if seq := uint64(len(y.stored[stream])); seq != expect {
				y.t.Errorf("%s ends at %d, expected %d", stream, seq, expect)
			}
			y.store(stream, b)
			done(expect+1, nil)
		},
	}, slog.New(slog.DiscardHandler))
}

func (y *yard) step(c *Chronicle) {
	y.t.Helper()
	if err := c.step(y.t.Context()); err != nil {
		y.t.Fatal(err)
	}
}

// TestChronicle_At checks that the state at each event and time is what the ledger was, across
// two authorities, and that a point before the first base is refused.
func TestChronicle_At(t *testing.T) {
	y := newYard(t)
	y.enqueue(job.Job{Function: "send"})
	first, second := y.chronicle(), y.chronicle()
	y.step(first)
	firstBase := y.ledger.LastEvent()
	type moment struct {
		at   time.Time
		want *timeline.State
	}
	var moments []moment
	for i := range 20 {
		switch i % 4 {
		case 0:
			y.enqueue(job.Job{Function: "send"})
		case 1:
			y.enqueue(job.Job{RunAt: y.at.At.Add(3 * time.Second)})
		case 2:
			y.apply(&ledger.PauseQueue{Name: "mail", Paused: i%8 == 2})
		case 3:
			y.apply(&ledger.SetLimit{Name: "stripe", Change: job.LimitChange{Total: new(job.Slots(i))}})
		}
		want, err := timeline.Decode(y.ledger.Base().JSON())
		if err != nil {
			t.Fatal(err)
		}
		moments = append(moments, moment{y.at.At, want})
		if i%3 == 0 {
			y.step([]*Chronicle{first, second}[i/10])
		}
	}
	if reasons := slices.Concat(first.Reasons(y.ledger), second.Reasons(y.ledger)); len(reasons) > 0 {
		t.Error(reasons)
	}
	for i, m := range moments {
		y.lag = []int{i % 8, 6, 0, 1}
		for _, text := range []string{fmt.Sprint(m.want.Event), m.at.Add(time.Millisecond).Format(time.RFC3339Nano)} {
			got, err := first.At(t.Context(), text)
			if err != nil {
				t.Fatal(err)
			}
			if differences := got.Diff(m.want); len(differences) > 0 || got.Event != m.want.Event || got.Imbalance() != 0 {
				t.Errorf("at %s event %d, want %d: %v", text, got.Event, m.want.Event, differences)
			}
		}
	}
	for text, want := range map[string]string{
		"1": fmt.Sprintf("the earliest is event %d,", firstBase), "2026-03-19T01:00:01Z": "the earliest is event", "2026-03-19": "the earliest is event", "2026-03-19T01:00": "the earliest is event", "9999-12-31": "in the future", "99999": "has not been published",
		"x": "no point of history", "-1h": "no point of history", "14:3": "no point of history",
	} {
		if _, err := first.At(t.Context(), text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	for _, text := range []string{"2d", "1d12h"} { // by the clock, all that happened is longer ago
		if got, err := first.At(t.Context(), text); err != nil || got.Event != y.ledger.LastEvent() {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}

	// The first half of history is removed: the bases before it are of no use.
	events := y.stored[subjects.StreamEvents]
	for i := range len(events) / 2 {
		events[i].Body = nil
	}
	kept := events[len(events)/2].First
	if _, err := first.At(t.Context(), fmt.Sprint(firstBase+1)); err == nil || !strings.Contains(err.Error(), "the earliest is event") {
		t.Errorf("%v, history begins at event %d", err, kept)
	}

	from, to := moments[15].want, moments[19].want
	d, err := first.HandleDiff(t.Context(), &api.StateDiffRequest{From: fmt.Sprint(from.Event), To: fmt.Sprint(to.Event)})
	if err != nil || len(d.Differences) != len(from.Diff(to)) || len(d.Differences) == 0 {
		t.Errorf("%+v, %v", d, err)
	}
	y.silent = true
	_, err = first.HandleState(t.Context(), &api.StateRequest{})
	if _, unavailable := errors.AsType[*job.UnavailableError](err); !unavailable {
		t.Errorf("without a majority: %v", err)
	}
	y.silent = false
	if s, err := first.HandleState(t.Context(), &api.StateRequest{}); err != nil || s.Event != y.ledger.LastEvent() || s.Jobs["waiting"] == 0 {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestChronicle_Finds checks that a ledger whose history is not what happened makes the node
// unready, until it is right again.
func TestChronicle_Finds(t *testing.T) {
	y := newYard(t)
	y.enqueue(job.Job{})
	c := y.chronicle()
	y.step(c)
	c.state.Queues["mail"].Counts[1]++ // as if the ledger had lost a delayed job
	y.enqueue(job.Job{})
	y.step(c)
	const want = "the ledger differs from its history at event"
	if reasons := c.Reasons(y.ledger); len(reasons) != 1 || !strings.HasPrefix(reasons[0], want) || !strings.Contains(reasons[0], "queue mail delayed: 1, then none") {
		t.Errorf("%q, want %s", reasons, want)
	}
	if differences, event := c.Differences(); differences != 1 || event != y.ledger.LastEvent() {
		t.Errorf("%d differences at %d", differences, event)
	}
	c.setFinding(nil, 0)
	if reasons := c.Reasons(y.ledger); len(reasons) != 0 {
		t.Error(reasons)
	}
}

// TestChronicle_Restored checks that a ledger that a backup has replaced is not compared with the state of the one
// before it.
func TestChronicle_Restored(t *testing.T) {
	y := newYard(t)
	y.enqueue(job.Job{})
	c := y.chronicle()
	y.step(c)
	c.state.Queues["mail"].Counts[1]++
	c.lineage = y.ledger.FenceBase() + 1 // of the ledger before it
	y.enqueue(job.Job{})
	y.step(c)
	if reasons := c.Reasons(y.ledger); len(reasons) != 0 {
		t.Error(reasons)
	}
	if differences, event := c.Differences(); differences != 0 || event != y.ledger.LastEvent() {
		t.Errorf("%d differences at %d", differences, event)
	}
}
