package ledger

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// TestLevel checks that members that decode the ledger of an earlier build at different entries
// are equal, and count jobs, once a build of this level has the authority.
func TestLevel(t *testing.T) {
	early, at := New(), stampAt(1, 0, 0)
	early.Apply(at, []Command{&Lead{Owner: "n1", Until: scriptStart.Add(time.Hour)}})
	at.Epoch = early.Authority().Epoch
	apply := func(l *Ledger, index uint64, cmds ...Command) {
		at.Index = index
		l.Apply(at, cmds)
	}
	ids := []job.ID{{1}, {2}, {3}}
	apply(early, 2, &Bootstrap{Lanes: []string{"lane"}})
	apply(early, 3, &Ingest{Identity: "lane", To: 3, CreateQueues: true, Jobs: []job.Job{
		{ID: ids[0], Queue: "mail", Position: job.Position{Seq: 1}}, {ID: ids[1], Queue: "mail", Position: job.Position{Seq: 2}},
		{ID: ids[2], Queue: "mail", Position: job.Position{Seq: 3}},
	}})
	first := decodedFormat(t, early, limitsFormat)
	apply(early, 4, &RemoveJob{Job: ids[0]})
	apply(first, 4, &RemoveJob{Job: ids[0]})
	later := decodedFormat(t, early, limitsFormat)
	members := []*Ledger{early, first, later}
	for _, l := range members {
		at.Term++
		apply(l, 5, &Lead{Owner: "n1", Until: scriptStart.Add(time.Hour), Level: Level})
		at.Term--
	}
	at.Epoch = early.Authority().Epoch
	for i, l := range members {
		apply(l, 6, &RemoveJob{Job: ids[1]})
		if hash(t, l) != hash(t, early) || hash(t, decoded(t, l)) != hash(t, early) {
			t.Errorf("member %d differs", i)
		}
		want := Balance{Accepted: 2, Removed: 1}
		want.States[job.Waiting] = 1
		if got := l.Balance(); got != want {
			t.Errorf("member %d counts %+v, want %+v", i, got, want)
		}
	}
}

// decodedFormat returns the ledger that a snapshot of l in an earlier format has.
func decodedFormat(t *testing.T, l *Ledger, format uint64) *Ledger {
	t.Helper()
	var snapshot bytes.Buffer
	c := newEncoder(&snapshot)
	c.uint(&format)
	c.ledger(l, format)
	if err := c.flush(); err != nil {
		t.Fatal(err)
	}
	restored, err := Decode(&snapshot)
	if err != nil {
		t.Fatal(err)
	}
	return restored
}

// Texts of events have durations as builds of the entry's level write them.
func TestLevel_Durations(t *testing.T) {
	for level, want := range map[uint8]string{7: "age=5m0s", level8: "age=5m"} {
		h := newLeveledTest(t, level)
		h.apply(0, &AddQueue{Name: "mail"}, &ChangeQueue{Name: "mail", Change: job.QueueChange{Age: new(5 * time.Minute)}})
		got := ""
		h.EventsAfter(0, func(_ uint64, _ time.Time, e *Event) bool {
			if _, rest, ok := strings.Cut(string(e.append(nil, 0, time.Time{})), `"age=`); ok {
				got, _, _ = strings.Cut("age="+rest, `"`)
			}
			return true
		})
		if got != want {
			t.Errorf("at level %d the text is %q, want %q", level, got, want)
		}
	}
}
