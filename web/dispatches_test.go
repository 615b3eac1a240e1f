package web

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
)

// counted returns the value of a counter for each queue and function.
func counted(t *testing.T, m *Metrics, name string) map[string]float64 {
	t.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			values[label(metric, "queue")+" "+label(metric, "function")] += metric.GetCounter().GetValue()
		}
	}
	return values
}

func label(metric *dto.Metric, name string) string {
	for _, pair := range metric.GetLabel() {
		if pair.GetName() == name {
			return pair.GetValue()
		}
	}
	return ""
}

// The names of queues and functions, which producers choose, do not make any number of
// series, and one that is in use keeps its series.
func TestDispatches_Bounded(t *testing.T) {
	m := NewMetrics()
	name := func(i int) Dispatch {
		return Dispatch{Kind: "worker", Queue: "mail", Function: fmt.Sprintf("f%03d", i)}
	}
	for i := range 3 * maxDispatches {
		m.Started(name(i), time.Second)
		m.Ended(name(i), "success", time.Second)
		m.Finished(name(i), "completed")
	}
	for _, metric := range []string{"yard_dispatches_started_total", "yard_dispatches_ended_total", "yard_jobs_finished_total"} {
		values := counted(t, m, metric)
		if len(values) != maxDispatches+1 || values["mail f000"] != 1 || values[Others+" "+Others] != 2*maxDispatches {
			t.Errorf("%s: %d series, %v of others", metric, len(values), values[Others+" "+Others])
		}
	}

	later := time.Now().Add(dispatchIdle)
	for i := 1; i < maxDispatches; i++ {
		m.dispatches.series(name(i), later)
	}
	want := []string{"worker", "", "new", "g"}
	if diff := cmp.Diff(want, m.dispatches.series(Dispatch{Kind: "worker", Queue: "new", Function: "g"}, later).labels); diff != "" {
		t.Errorf("a new function after an hour (-want +got):\n%s", diff)
	}
	values := counted(t, m, "yard_dispatches_started_total")
	if _, kept := values["mail f000"]; kept || values["mail f001"] != 1 {
		t.Errorf("the idle function has series: %t; one in use has counted %v", kept, values["mail f001"])
	}
	if got := m.dispatches.series(Dispatch{Kind: "worker", Queue: "newer"}, later).labels; got[2] != Others {
		t.Errorf("no function is idle, and a new one is counted under %q", got)
	}
}

// A name that is not valid UTF-8 is counted and does not break the scrape.
func TestDispatches_InvalidName(t *testing.T) {
	m := NewMetrics()
	m.Started(Dispatch{Kind: "worker", Queue: "mail", Function: "a\xff"}, 0)
	if values := counted(t, m, "yard_dispatches_started_total"); values["mail a\uFFFD"] != 1 {
		t.Errorf("%v", values)
	}
}

// Two names that have the same series, because they are not valid UTF-8, are counted in it
// also after one of them was idle and the series was removed.
func TestDispatches_SharedSeries(t *testing.T) {
	m := NewMetrics()
	idle, other := Dispatch{Kind: "worker", Queue: "mail", Function: "a\xff"}, Dispatch{Kind: "worker", Queue: "mail", Function: "a\xfe"}
	m.Started(idle, 0)
	m.Started(other, 0)
	later := time.Now().Add(dispatchIdle)
	m.dispatches.series(other, later)
	for i := range maxDispatches - 1 {
		m.dispatches.series(Dispatch{Queue: fmt.Sprint(i)}, later)
	}
	m.Started(other, 0)
	if values := counted(t, m, "yard_dispatches_started_total"); values["mail a\uFFFD"] != 1 {
		t.Errorf("counted %v after the removal, want 1", values)
	}
}

// BenchmarkDispatches measures the counting of one dispatch.
func BenchmarkDispatches(b *testing.B) {
	m, d := NewMetrics(), Dispatch{Kind: "worker", Queue: "mail", Function: "send"}
	b.ReportAllocs()
	for b.Loop() {
		m.Started(d, time.Millisecond)
		m.Ended(d, "success", time.Millisecond)
		m.Finished(d, "completed")
	}
}
