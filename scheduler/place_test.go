package scheduler

import (
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"yardmaster/job"
	"yardmaster/ledger"
)

// waiting makes jobs, "<queue><priority>@<second of acceptance>" each.
func waiting(texts ...string) (jobs []ledger.Waiting) {
	for _, text := range texts {
		w := ledger.Waiting{N: 1, Attempt: 1}
		var at int
		if _, err := fmt.Sscanf(text, "%1s%1d@%d", &w.Queue, &w.Priority, &at); err != nil {
			panic(text + ": " + err.Error())
		}
		w.Accepted = time.Unix(int64(at), 0)
		w.Position.Seq = uint64(at)
		copy(w.ID[:], text)
		jobs = append(jobs, w)
	}
	return jobs
}

func name(w *ledger.Waiting) string {
	return fmt.Sprintf("%s%d@%d", w.Queue, w.Priority, w.Accepted.Unix())
}

func TestMerge(t *testing.T) {
	all := func(*ledger.Waiting) step { return goOn }
	tests := []struct {
		name  string
		lines [][]string
		visit func(*ledger.Waiting) step
		want  string
	}{
		{"nothing", nil, all, "[]"},
		{"empty lines", [][]string{{}, {}}, all, "[]"},
		{"one line", [][]string{{"a9@5", "a5@1", "a5@2"}}, all, "[a9@5 a5@1 a5@2]"},
		{"by acceptance", [][]string{{"a5@1", "a5@4", "a5@5"}, {"b5@2", "b5@3", "b5@6"}}, all, "[a5@1 b5@2 b5@3 a5@4 a5@5 b5@6]"},
		{"by priority first", [][]string{{"a5@1", "a1@2"}, {"b9@9", "b1@1"}, {"c7@3"}}, all, "[b9@9 c7@3 a5@1 b1@1 a1@2]"},
		{"stopped", [][]string{{"a5@1", "a5@3"}, {"b5@2"}}, func(w *ledger.Waiting) step {
			if w.Queue == "b" {
				return stop
			}
			return goOn
		}, "[a5@1 b5@2]"},
		{"a line without room", [][]string{{"a5@1", "a5@3", "a5@5"}, {"b5@2", "b5@4"}}, func(w *ledger.Waiting) step {
			if w.Queue == "a" {
				return skipLine
			}
			return goOn
		}, "[a5@1 b5@2 b5@4]"},
		{"the only line without room", [][]string{{"a5@1", "a5@3"}}, func(*ledger.Waiting) step { return skipLine }, "[a5@1]"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := []string{}
			var lines []iter.Seq[ledger.Waiting]
			for _, texts := range test.lines {
				lines = append(lines, slices.Values(waiting(texts...)))
			}
			merge(lines, func(w *ledger.Waiting) step { got = append(got, name(w)); return test.visit(w) })
			if fmt.Sprint(got) != test.want {
				t.Errorf("visited %v, want %s", got, test.want)
			}
		})
	}
}

// TestMerge_IsASort: many lines of any length come out as one sorted line.
func TestMerge_IsASort(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []ledger.Waiting
		var lines []iter.Seq[ledger.Waiting]
		for i := range rapid.IntRange(1, 5).Draw(t, "lines") {
			line := waiting(rapid.SliceOfN(rapid.StringMatching(`[a-c][0-9]@[1-9][0-9]?`), 0, 60).Draw(t, "line")...)
			for k := range line {
				line[k].Position = job.Position{Lane: uint8(i), Seq: uint64(k)}
			}
			slices.SortFunc(line, compare)
			all = append(all, line...)
			lines = append(lines, slices.Values(line))
		}
		slices.SortFunc(all, compare)
		var got []ledger.Waiting
		merge(lines, func(w *ledger.Waiting) step { got = append(got, *w); return goOn })
		if !slices.EqualFunc(got, all, func(a, b ledger.Waiting) bool { return a.Position == b.Position }) {
			t.Fatalf("visited %d jobs in another order than the %d there are", len(got), len(all))
		}
	})
}

func compare(a, b ledger.Waiting) int {
	switch {
	case a.Before(&b):
		return -1
	case b.Before(&a):
		return 1
	}
	return 0
}

// placer is a mind without its loop, over a ledger with waiting jobs.
type placer struct {
	*mind
	raft *fakeRaft
	seq  uint64
}

func newPlacer(t testing.TB, cfg Config) *placer {
	p := &placer{raft: newFakeRaft(t)}
	p.mind = newMind(New(cfg, p.raft, nil, nil, nil, slog.New(slog.DiscardHandler)), stampClock{}, time.Now().Add(time.Hour))
	p.mind.timer.Stop()
	p.epoch = 1 // the index of the entry that leads
	p.apply(&ledger.Lead{Owner: "n1", Until: time.Now().Add(time.Hour)}, &ledger.Found{Lanes: []string{"lane"}})
	return p
}

func (p *placer) apply(cmds ...ledger.Command) {
	p.raft.index++
	for _, r := range p.raft.ledger.Apply(ledger.Stamp{Index: p.raft.index, Term: 1, At: time.Now(), Epoch: p.epoch}, cmds) {
		if r.Err != nil {
			p.raft.t.Fatal(r.Err)
		}
	}
}

// line folds jobs of a queue.
func (p *placer) line(queue, function string, count int) {
	for count > 0 {
		n := min(count, 1000)
		c := &ledger.Fold{Identity: "lane", From: p.seq, To: p.seq + uint64(n), CreateQueues: true}
		for range n {
			p.seq++
			j := job.Job{Queue: queue, Function: function, Position: job.Position{Seq: p.seq}, Accepted: time.Unix(int64(p.seq), 0), Priority: 5}
			j.ID = job.RecordID("lane", p.seq, j.Accepted)
			c.Jobs = append(c.Jobs, j)
		}
		p.apply(c)
		count -= n
	}
	p.apply(&ledger.Told{Events: p.raft.ledger.LastEvent()})
}

func (p *placer) offer(kind job.Kind, key, worker string, free int) {
	n := p.nodeOf("n1", 1)
	p.setState(n, false, false)
	p.hearOffer(n, &job.Offer{Kind: kind, Key: key, Worker: worker, Free: free})
}

// picked chooses and tells what, by queue and function, on which worker.
func (p *placer) picked() map[string]int {
	p.choose(p.raft.ledger)
	picked := map[string]int{}
	for _, k := range p.entry.picks {
		picked[k.Queue+" "+k.Function+" "+k.seat.worker]++
	}
	return picked
}

func TestChoose(t *testing.T) {
	tests := []struct {
		name string
		cfg  Config
		set  func(p *placer)
		want map[string]int
	}{
		{"no jobs", Config{}, func(p *placer) { p.offer(job.Overhop, "a", "w", 3) }, map[string]int{}},
		{"no room", Config{}, func(p *placer) { p.line("a", "", 3) }, map[string]int{}},
		{"as many as there is room", Config{}, func(p *placer) {
			p.line("a", "", 9)
			p.offer(job.Overhop, "a", "w1", 2)
			p.offer(job.Overhop, "a", "w2", 3)
			p.offer(job.Overhop, "b", "w3", 3)
		}, map[string]int{"a  w1": 2, "a  w2": 3}},
		{"workers of a queue take plain and bare jobs", Config{}, func(p *placer) {
			p.line("a", "", 2)
			p.line("a", "f", 2)
			p.line("a", "py#f", 2)
			p.offer(job.Overhop, "a", "w1", 9)
		}, map[string]int{"a  w1": 2, "a f w1": 2}},
		{"a runner takes its own", Config{}, func(p *placer) {
			p.line("a", "", 2)
			p.line("a", "f", 2)
			p.line("a", "py#f", 2)
			p.line("b", "py#g", 2)
			p.offer(job.RRQ, "py", "py/1", 9)
		}, map[string]int{"a py#f py/1": 2, "b py#g py/1": 2}},
		{"the default runner takes bare ones", Config{DefaultRunner: "py", Routes: map[string]string{"r": "go"}}, func(p *placer) {
			p.line("a", "", 2)
			p.line("a", "f", 2)
			p.line("r", "f", 2)
			p.offer(job.RRQ, "py", "py/1", 9)
		}, map[string]int{"a f py/1": 2}},
		{"a routed queue is the runner's", Config{Routes: map[string]string{"r": "go"}}, func(p *placer) {
			p.line("r", "", 2)
			p.line("r", "f", 2)
			p.offer(job.Overhop, "r", "w", 9)
			p.offer(job.RRQ, "go", "go/1", 3)
		}, map[string]int{"r  go/1": 2, "r f go/1": 1}},
		{"a limit over two lines", Config{}, func(p *placer) {
			p.apply(&ledger.AddQueue{ID: job.ID{1}, Name: "a", Config: job.QueueConfig{Limit: 3}})
			p.line("a", "", 2)
			p.line("a", "f", 9)
			p.offer(job.Overhop, "a", "w", 9)
		}, map[string]int{"a  w": 2, "a f w": 1}},
		{"paused", Config{}, func(p *placer) {
			p.line("a", "", 2)
			p.apply(&ledger.PauseQueue{Name: "a", Paused: true})
			p.offer(job.Overhop, "a", "w", 9)
		}, map[string]int{}},
		{"silent", Config{}, func(p *placer) {
			p.line("a", "", 2)
			p.offer(job.Overhop, "a", "w", 9)
			p.setState(p.nodes["n1"], true, false)
		}, map[string]int{}},
		{"draining", Config{}, func(p *placer) {
			p.line("a", "", 2)
			p.offer(job.Overhop, "a", "w", 9)
			p.setState(p.nodes["n1"], false, true)
		}, map[string]int{}},
		{"no more than an entry takes", Config{}, func(p *placer) {
			p.line("a", "", maxPicks+500)
			p.offer(job.Overhop, "a", "w", maxPicks+500)
		}, map[string]int{"a  w": maxPicks}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := newPlacer(t, test.cfg)
			test.set(p)
			if got := p.picked(); fmt.Sprint(got) != fmt.Sprint(test.want) {
				t.Errorf("picked %v, want %v", got, test.want)
			}
			before := len(p.entry.picks)
			if p.choose(p.raft.ledger); len(p.entry.picks) != before {
				t.Errorf("a second look picks %d more", len(p.entry.picks)-before)
			}
		})
	}
}

// BenchmarkChoose places a hundred jobs, over backlogs of very different size.
func BenchmarkChoose(b *testing.B) {
	for _, backlog := range []int{1_000, 1_000_000} {
		for _, lines := range []int{1, 3} {
			b.Run(fmt.Sprintf("waiting=%d/lines=%d", backlog, lines), func(b *testing.B) {
				p := newPlacer(b, Config{})
				for i := range lines {
					p.line("a", []string{"", "f", "py#f"}[i], backlog/lines)
				}
				p.offer(job.Overhop, "a", "w1", 50)
				p.offer(job.Overhop, "a", "w2", 50)
				b.ReportAllocs()
				picks := 0
				for b.Loop() {
					p.choose(p.raft.ledger)
					picks += len(p.entry.picks)
					for _, k := range p.entry.picks {
						p.unplace(k)
						k.seat.cancel()
					}
					p.entry = entry{}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(picks), "ns/pick")
			})
		}
	}
}
