package top

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/google/go-cmp/cmp"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files")

func TestMain(m *testing.M) {
	time.Local = time.UTC // frames have times of the viewer's zone
	os.Exit(m.Run())
}

var testTime = time.Date(2026, 11, 27, 10, 0, 0, 0, time.UTC)

// testOverview returns an overview with something of everything.
func testOverview() *api.Overview {
	o := &api.Overview{
		Node: "n1", At: testTime, AsOf: api.AsOf{Index: 77, At: testTime.Add(-time.Second)}, Certain: true, Window: 3_600_000,
		Backlog: map[string]int{"waiting": 1234, "active": 12, "delayed": 3}, Others: 2,
		Failures:  []api.OverviewFailure{{Type: "timeout", Count: 12}, {Type: "", Count: 3}},
		Limits:    []api.Limit{{Name: "stripe", Total: new(int64(20)), Running: 20, Waiting: 400}, {Name: "sms", Paused: true}},
		Members:   []api.MemberStatus{{Name: "n1", State: "up"}, {Name: "n2", State: "down"}, {Name: "n3", State: "draining"}},
		Authority: api.AuthorityStatus{Owner: "n1"},
		Readiness: api.Readiness{Readiness: ledger.Readiness{Ready: true}, Warnings: []string{"member n2 is down: start it"}},
		Timeline: []api.OverviewHappening{
			{At: testTime.Add(-time.Minute), Action: "queue.pause", Queue: "img", Actor: "ann", Door: "cli", Reason: "too slow"},
			{At: testTime.Add(-time.Hour), Action: "authority.acquired", Target: "n1"},
		},
		LastMinute: api.OverviewCounts{Accepted: 6000, Started: 6010, Completed: 5990, Retried: 15, Failed: 1},
		Totals:     api.OverviewTotals{Wait: api.OverviewTimes{Count: 1, P50: new(4.7), P99: new(1234.5)}, Run: api.OverviewTimes{Count: 1, P50: new(12.0), P99: new(75_000.0)}},
	}
	o.Points.Step = 10_000
	for i := range 120 {
		var accepted, failed *uint64
		if i >= 20 {
			accepted, failed = new(uint64(500+10*i)), new(uint64(i%5))
		}
		o.Points.Accepted, o.Points.Completed = append(o.Points.Accepted, accepted), append(o.Points.Completed, accepted)
		o.Points.Failed, o.Points.Retried = append(o.Points.Failed, failed), append(o.Points.Retried, failed)
	}
	for i, name := range []string{"mail", "img", "billing", "search-index", "webhooks", "reports", "thumbnails", "sync"} {
		q := api.OverviewQueue{Name: name, State: "running", Counted: i != 7, Backlog: map[string]int{"waiting": 1000 >> i, "active": i, "delayed": 7 - i}}
		q.LastMinute = api.OverviewCounts{Accepted: uint64(i * i * 100), Completed: uint64(i * 90), Failed: uint64(i)}
		if i%2 == 0 {
			q.Totals.Wait, q.Totals.Run = api.OverviewTimes{P50: new(float64(i + 1)), P99: new(float64(i) * 1000)}, api.OverviewTimes{P99: new(float64(i) * 60_000)}
			q.Oldest = &api.OldestJob{ID: job.ID{byte(i)}, AgeMS: int64(i) * 100_000}
		}
		if name == "img" {
			q.State = "paused"
		}
		o.Queues = append(o.Queues, q)
	}
	return o
}

func testExplanation() *api.QueueExplanation {
	return &api.QueueExplanation{
		Verdict: "It waits: queue img is paused.", Reasons: []api.Reason{{Text: "queue img is paused since 09:59:00"}},
		Oldest: &api.OldestJob{ID: job.ID{1}, AgeMS: 61_000}, MoreActive: 4,
		Active: []api.ActiveJob{
			{ID: job.ID{2}, Node: "n1", Channel: "overhop:w-1", Since: testTime.Add(-90 * time.Second), Attempt: 2},
			{ID: job.ID{3}, Node: "n2", Channel: "overhop:w-2", Since: testTime.Add(time.Second), Attempt: 1, Stopping: true},
		},
	}
}

// testModel returns a model of a terminal, which has received an overview.
func testModel(width, height int) *model {
	m := &model{state: *newState("1h"), ctx: context.Background(), fetch: func(_ context.Context, r request) answer { return answer{request: r} }}
	m.Update(tea.WindowSizeMsg{Width: width, Height: height})
	m.Update(answer{request: m.request(), overview: testOverview()})
	return m
}

// press sends keys to a model and reports whether the last one ends the program.
func press(m *model, keys ...string) (quit bool) {
	names := map[string]rune{"enter": tea.KeyEnter, "esc": tea.KeyEscape, "down": tea.KeyDown, "up": tea.KeyUp}
	for _, key := range keys {
		k := tea.KeyPressMsg{Text: key, Code: []rune(key)[0]}
		if code, ok := names[key]; ok {
			k = tea.KeyPressMsg{Code: code}
		}
		_, cmd := m.Update(k)
		quit = false
		if cmd != nil {
			_, quit = cmd().(tea.QuitMsg)
		}
	}
	return quit
}

// frames are what the screen shows, by the name of the golden file.
var frames = map[string]func() *model{
	"all":    func() *model { return testModel(110, 32) },
	"narrow": func() *model { return testModel(46, 20) },
	"low":    func() *model { m := testModel(110, 14); press(m, "G"); return m },
	"sorted": func() *model { m := testModel(110, 30); press(m, "s", "s", "s", "r", "j", "j"); return m },
	"help":   func() *model { m := testModel(100, 24); press(m, "?"); return m },
	"queue": func() *model {
		m := testModel(110, 26)
		press(m, "down", "enter")
		m.Update(answer{request: m.request(), overview: testOverview(), explanation: testExplanation()})
		return m
	},
	"unanswered": func() *model {
		m := testModel(100, 24)
		m.Update(answer{request: m.request(), err: errors.New("nats: timeout")})
		return m
	},
	"no-quorum": func() *model {
		m := testModel(110, 26)
		o := testOverview()
		o.Certain, o.AsOf.At, o.Authority.Owner, o.Readiness.Ready = false, testTime.Add(-time.Minute), "", false
		o.Readiness.Reasons = []string{"no quorum: this node hears no Raft leader, for which 2 of 3 members have to reach each other"}
		m.Update(answer{request: m.request(), overview: o})
		return m
	},
	"first":   func() *model { m := testModel(60, 8); m.overview = nil; return m },
	"hostile": func() *model { return hostileModel(90, 30) },
}

// hostileModel returns a model whose every text is meant to break the frame.
func hostileModel(width, height int) *model {
	const text = "a\x1b[2J\x1b]0;title\x07\r\n\tb\u202e\u2066עברית 漢字👩\u200d👩\u200d👧e\u0301\xff\u0000<b>"
	o := testOverview()
	for i := range o.Queues {
		o.Queues[i].Name = fmt.Sprint(text, i)
	}
	o.Failures[0].Type, o.Limits[0].Name, o.Members[0].Name, o.Members[1].State, o.Authority.Owner, o.Node = text, text, text, text, text, text
	o.Readiness.Warnings = []string{strings.Repeat(text, 50)}
	o.Timeline[0] = api.OverviewHappening{At: testTime, Action: text, Queue: text, Target: text, Actor: text, Reason: text}
	m := testModel(width, height)
	m.Update(answer{request: m.request(), overview: o})
	return m
}

// TestFrames compares frames with golden files, and checks that none is larger than its terminal.
func TestFrames(t *testing.T) {
	for name, make := range frames {
		t.Run(name, func(t *testing.T) {
			m := make()
			frame := m.View().Content
			checkFrame(t, m)
			path := filepath.Join("testdata", name+".txt")
			got := strings.ReplaceAll(frame, "\x1b", "␛") + "\n"
			if *rewrite {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", path, diff)
			}
		})
	}
}

// checkFrame checks that the frame of a model fits its terminal and has no control characters of
// other sources.
func checkFrame(t *testing.T, m *model) {
	t.Helper()
	lines := m.frame()
	if len(lines) > m.height {
		t.Errorf("%d lines on a terminal of %d", len(lines), m.height)
	}
	for i, line := range lines {
		if width := ansi.StringWidth(line); width > m.width {
			t.Errorf("line %d has the width %d, the terminal %d: %q", i, width, m.width, line)
		}
		for _, r := range ansi.Strip(line) {
			if r < ' ' || r == 0x7f || r == '\u202e' || r == '\u2066' || r == 0xfffd && !strings.Contains(line, "עברית") {
				t.Errorf("line %d has the character %U: %q", i, r, line)
			}
		}
		if plain := strings.NewReplacer("\x1b[m", "").Replace(line); strings.Count(plain, "\x1b") != strings.Count(line, "\x1b[")-strings.Count(line, "\x1b[m") {
			t.Errorf("line %d has other control sequences: %q", i, line)
		}
	}
}

// TestFrame_Sizes checks frames of all states in terminals of all sizes.
func TestFrame_Sizes(t *testing.T) {
	for name, make := range frames {
		m := make()
		for width := 1; width < 200; width += 7 {
			for height := 1; height < 40; height += 3 {
				m.Update(tea.WindowSizeMsg{Width: width, Height: height})
				if checkFrame(t, m); t.Failed() {
					t.Fatalf("%s, %d x %d", name, width, height)
				}
			}
		}
	}
}

// TestKeys checks what keys change.
func TestKeys(t *testing.T) {
	m := testModel(100, 30)
	names := func() (names []string) {
		for _, q := range m.rows() {
			names = append(names, q.Name)
		}
		return names
	}
	if got := names(); got[0] != "mail" || got[7] != "sync" {
		t.Errorf("by waiting jobs: %v", got)
	}
	press(m, "s") // active
	if got := names(); got[0] != "sync" || got[7] != "mail" {
		t.Errorf("by active jobs: %v", got)
	}
	press(m, "r")
	if got := names(); got[0] != "mail" {
		t.Errorf("reversed: %v", got)
	}
	press(m, "S", "S") // waiting, name
	if got := names(); !slices.IsSorted(got) {
		t.Errorf("by name: %v", got)
	}
	press(m, "j", "j", "up")
	if m.selected != names()[1] {
		t.Errorf("%s is selected, want %s", m.selected, names()[1])
	}
	press(m, "k", "k", "k")
	if m.selected != names()[0] {
		t.Errorf("%s is selected, want the first one", m.selected)
	}
	for _, want := range []string{"24h", "15m", "1h"} {
		if press(m, "w"); m.window != want {
			t.Errorf("window %s, want %s", m.window, want)
		}
	}
	press(m, "enter")
	if m.queue != names()[0] {
		t.Errorf("queue %q is shown, want %s", m.queue, names()[0])
	}
	if press(m, "esc"); m.queue != "" {
		t.Errorf("queue %q is shown after esc", m.queue)
	}
	if press(m, "?", "w"); m.help || m.window != "1h" {
		t.Errorf("after a key in the help: help %v, window %s", m.help, m.window)
	}
	if !press(m, "?", "q") {
		t.Error("q does not quit")
	}
}

// TestModel_Answers checks that an answer to an earlier request is not shown, that an error keeps the
// numbers, and that there is one request at a time.
func TestModel_Answers(t *testing.T) {
	m := testModel(100, 30)
	m.ask()
	if m.ask() != nil || !m.pending {
		t.Error("a second request while an answer is awaited")
	}
	earlier := m.request()
	press(m, "w")
	before := m.overview
	_, cmd := m.Update(answer{request: earlier, overview: testOverview()})
	if m.overview != before {
		t.Error("an answer to an earlier request is shown")
	}
	if a, ok := cmd().(answer); !ok || a.window != "24h" {
		t.Errorf("the next request is %+v", a)
	}
	m.Update(answer{request: m.request(), err: errors.New("no answer")})
	if m.overview != before || m.err == nil {
		t.Error("an error replaces the numbers")
	}
	if m.Update(answer{request: m.request(), overview: testOverview()}); m.err != nil {
		t.Error("an answer does not end the error")
	}
}

func TestTexts(t *testing.T) {
	for n, want := range map[float64]string{0: "0", 9999: "9999", 10000: "10.0k", 99960: "100k", 1234567: "1.2M"} {
		if got := numberText(n); got != want {
			t.Errorf("%v is %q, want %q", n, got, want)
		}
	}
	for ms, want := range map[float64]string{0.4: "0.4ms", 9.96: "10ms", 999.6: "1.0s", 59_000: "59.0s", 61_000: "1m01s", 3_660_000: "1h01m", 200_000_000: "2d"} {
		if got := timeText(ms); got != want {
			t.Errorf("%v ms is %q, want %q", ms, got, want)
		}
	}
	if got := fitPoints([]float64{1, 3, math.NaN(), math.NaN(), math.NaN(), 4}, 3); got[0] != 2 || !math.IsNaN(got[1]) || got[2] != 4 {
		t.Errorf("points %v", got)
	}
}
