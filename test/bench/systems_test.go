package bench

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/program"
)

// memory is a system without servers. Its jobs pass through a channel.
type memory struct {
	full error // what Enqueue returns

	mu     sync.Mutex
	events []string
	dir    string
	jobs   chan Job
}

func (m *memory) system(name string) System {
	return System{Name: name, Title: "Title of " + name, Version: "1.2", Durability: "none", Copies: "2 of 3",
		Start: func(_ context.Context, dir string) (Server, error) {
			m.note("start " + name)
			m.dir, m.jobs = dir, make(chan Job, 1000)
			return m, nil
		}}
}

func (m *memory) note(what string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.events = append(m.events, what)
}

func (m *memory) Connect(context.Context, int) (Producer, error) { return m, nil }
func (m *memory) Unfinished(context.Context) (int, error)        { return len(m.jobs), nil }
func (m *memory) CPU() time.Duration                             { return 0 }
func (m *memory) Stop()                                          { m.note("stop") }
func (m *memory) Close()                                         { m.note("close") }
func (m *memory) Enqueue(ctx context.Context, j Job) (err error) {
	if m.full == nil {
		m.jobs <- j
	}
	return m.full
}

func (m *memory) Work(_ context.Context, slots int, run func(Job)) (func(), error) {
	var workers sync.WaitGroup
	for range slots {
		workers.Go(func() {
			for j := range m.jobs {
				run(j)
			}
		})
	}
	return func() {
		close(m.jobs)
		workers.Wait()
	}, nil
}

func few() SystemsOptions {
	return SystemsOptions{Jobs: 300, Slots: 6, Rounds: 2, Rate: 100, Open: 100 * time.Millisecond}
}

// TestRunSystems checks that systems take turns, that every round is measured, and that
// nothing is left.
func TestRunSystems(t *testing.T) {
	m := &memory{}
	figures, err := RunSystems(t.Context(), few(), []System{m.system("a"), m.system("b")})
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, name := range []string{"a", "b", "a", "b"} {
		want = append(want, "start "+name, "close", "stop")
	}
	if !slices.Equal(m.events, want) {
		t.Errorf("got %v, want %v", m.events, want)
	}
	for i, f := range figures {
		if f.System.Name != []string{"a", "b"}[i] || len(f.DoneRounds) != 2 || f.Done <= 0 || f.Enqueued < f.Done || f.StartP50 <= 0 || f.StartP99 < f.StartP50 || f.Ratio != f.Done/figures[0].Done {
			t.Errorf("%+v", f)
		}
	}
	if _, err := os.Stat(m.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the data are still there: %v", err)
	}
}

// TestRunSystems_Refused checks that a refused job is an error, after which the server is
// stopped and its data are removed.
func TestRunSystems_Refused(t *testing.T) {
	m := &memory{full: errors.New("the disk is full")}
	_, err := RunSystems(t.Context(), few(), []System{m.system("a"), m.system("b")})
	if err == nil || !strings.Contains(err.Error(), "a: ") || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("got %v", err)
	}
	if want := []string{"start a", "close", "stop"}; !slices.Equal(m.events, want) {
		t.Errorf("got %v, want %v", m.events, want)
	}
	if _, err := os.Stat(m.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the data are still there: %v", err)
	}
}

// TestRunSystems_Only checks the selection of systems: a ratio needs the first one, and an
// unknown name is an error.
func TestRunSystems_Only(t *testing.T) {
	m, o := &memory{}, few()
	systems := []System{m.system("a"), m.system("b")}
	o.Only = []string{"b"}
	figures, err := RunSystems(t.Context(), o, systems)
	if err != nil || len(figures) != 1 || figures[0].System.Name != "b" || figures[0].Ratio != 0 {
		t.Errorf("got %+v, %v", figures, err)
	}
	o.Only = []string{"b", "c"}
	if _, err := RunSystems(t.Context(), o, systems); err == nil || !strings.Contains(err.Error(), "there are a, b") {
		t.Errorf("got %v", err)
	}
}

// TestOwnSystems measures the real systems that need no other program, in very short
// rounds.
func TestOwnSystems(t *testing.T) {
	binary, err := program.Find(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	o := few()
	o.Rounds = 1
	figures, err := RunSystems(t.Context(), o, []System{JetStreamQueue(), Yardmaster(1, binary, "test")})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range figures {
		if f.Done <= 0 || f.StartP50 <= 0 || f.Micros <= 0 {
			t.Errorf("%+v", f)
		}
	}
}

// TestNewJob checks the size of a job and that its due time is preserved.
func TestNewJob(t *testing.T) {
	for _, due := range []time.Duration{0, time.Millisecond, time.Hour} {
		body, err := json.Marshal(newJob(due))
		if err != nil || len(body) != bodySize {
			t.Errorf("%d bytes, %v: %s", len(body), err, body)
		}
		var j Job
		if err := json.Unmarshal(body, &j); err != nil || j.Due != int64(due) {
			t.Errorf("%d became %d, %v", due, j.Due, err)
		}
	}
}

// TestSystemFigures checks medians and the table.
func TestSystemFigures(t *testing.T) {
	f := SystemFigures{Ratio: 0.5}
	s := System{Title: "Redis with asynq", Version: "redis 7", Durability: "1 server, fsync", Copies: "1"}
	for _, v := range []float64{3, 1, 2} {
		f.add(s, round{value: 1000 * v, accepted: 2000 * v, settled: 100, cpu: time.Duration(v) * time.Millisecond}, round{value: v, p99: 10 * v})
	}
	f.finish()
	var out strings.Builder
	if err := WriteSystems(&out, []SystemFigures{f}); err != nil {
		t.Fatal(err)
	}
	const want = "Redis with asynq  redis 7  1 server, fsync  1  4000  2000  1000 to 3000  0.50  2.00 / 20.0  20.0"
	if got := strings.Join(strings.Fields(out.String()), " "); !strings.HasSuffix(got, strings.Join(strings.Fields(want), " ")) {
		t.Errorf("got %s", got)
	}
}
