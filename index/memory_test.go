package index

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/index/query"
	"github.com/yardmaster-dev/yardmaster/index/segment"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// TestMemory_Parts changes many documents at random. It checks that the parts have all present documents, and
// beside these only some of jobs that have ended since, and that each part knows its times.
func TestMemory_Parts(t *testing.T) {
	const jobs = 3 * partSize
	r := rand.New(rand.NewPCG(1, 2))
	m := newMemory(1, 0)
	model := make(map[ledger.JobPlace]*job.Document)
	document := func(i int, state job.State) *job.Document {
		d := &job.Document{ID: job.ID{14: byte(i >> 8), 15: byte(i)}, Created: time.Unix(int64(i), 0), State: state, Dispatches: r.Uint32()}
		if state.Ended() {
			d.Ended = d.Created.Add(time.Duration(r.IntN(1000)) * time.Second)
		}
		return d
	}
	for i := range jobs {
		d := document(i, job.Waiting)
		model[placeOf(d)] = d
		m.put(d)
	}
	for range 300 {
		for range 1 + r.IntN(jobs/20) { // few changes make the parts again
			d := document(r.IntN(jobs), []job.State{job.Waiting, job.Completed, job.Failed}[r.IntN(3)])
			at := placeOf(d)
			switch before := model[at]; {
			case r.IntN(1000) == 0:
				delete(model, at)
				m.remove(at)
				continue
			case before != nil && before.State.Ended() && r.IntN(1000) > 0, before != nil && !d.State.Ended():
				continue
			}
			model[at] = d
			m.put(d)
		}
		checkParts(t, m, model)
	}
}

func checkParts(t *testing.T, m *memory, model map[ledger.JobPlace]*job.Document) {
	t.Helper()
	found := make(map[*job.Document]bool)
	for kind, parts := range map[string][]segment.Memory{"ended": m.ended.all(), "live": m.live.all()} {
		for _, part := range parts {
			low, high := part.Span(query.Sort{})
			for i := range part.Len() {
				d, _ := part.Document(i)
				now := model[placeOf(d)]
				if now != d && (kind == "ended" || now == nil || !now.State.Ended()) {
					t.Fatalf("%s: document %+v, the present one is %+v", kind, d, now)
				}
				if at := d.Created.UnixNano(); at < low || at > high {
					t.Fatalf("created at %d, in a part from %d to %d", at, low, high)
				}
				found[d] = true
			}
		}
	}
	for _, d := range model {
		if !found[d] {
			t.Fatalf("document %+v is in no part", d)
		}
		if m.get(placeOf(d)) != d {
			t.Fatalf("document %+v is not in its place", d)
		}
	}
	if m.len() != len(model) {
		t.Fatalf("%d documents, want %d", m.len(), len(model))
	}
}
