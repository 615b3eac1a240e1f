package timeline

import (
	"strings"
	"testing"
	"time"
)

// message is a message with the life of two jobs, one of which is delayed when it is enqueued. Then
// ended jobs are forgotten, and a queue is removed.
const message = `{"seq":1,"at":"2026-11-26T02:24:27.972Z"}
{"event":"AuthorityAcquired","owner":"n1","lease_id":"1-n1","leased_until":"2026-11-26T02:24:37.972Z","seq":1,"at":"2026-11-26T02:24:27.972Z"}
{"event":"operator.acted","action":"queue.add","queue":"mail","actor":"ann","door":"cli","settings":{"concurrency_limit":1},"seq":2,"at":"2026-11-26T02:24:27.972Z"}
["NnB","FizP_gjVUtyflddbjo2WGQ","mail","send \"ü\"","overhop/w1","n1",1,2,"acme",""]
["c","UkO9pvByXhOqFdDPWqzJmQ",0,1,"new","delayed",60000]
9
["F",0,0,"error","",7,60009]
{"event":"operator.acted","action":"limit.set","target":"stripe total=1","actor":"ann","door":"cli","settings":{"total":"1"},"seq":8,"at":"2026-11-26T02:24:27.981Z"}
{"event":"operator.acted","action":"limit.pause","target":"stripe","actor":"ann","door":"cli","seq":9,"at":"2026-11-26T02:24:27.981Z"}
["-","old",{"completed":3,"failed":2}]
["Q",1,0,1,7]
{"event":"run.heartbeat","owner":"n1","phase":"idle","seq":12,"at":"2026-11-26T02:24:27.981Z"}
{"event":"operator.acted","action":"queue.remove","queue":"old","actor":"ann","door":"cli","seq":13,"at":"2026-11-26T02:24:27.981Z"}
`

func TestState_Add(t *testing.T) {
	s := New()
	const completed, failed = 3, 4
	s.Accepted = 12
	s.Queues["mail"], s.Queues["old"] = &Queue{}, &Queue{Counts: Counts{completed: 10, failed: 2}}
	for _, stage := range []struct {
		event uint64
		want  string // differences from the state before
	}{
		{5, `authority: none, then n1
authority lease: none, then 1-n1
authority leased until: none, then 2026-11-26T02:24:37.972Z
dispatches notified: none, then 1
jobs accepted: 12, then 13
queue mail active: none, then 1
queue mail settings: none, then {"concurrency_limit":1}
running 162ccffe-08d5-52dc-9f95-d75b8e8d9619: none, then attempt 2 of send "ü" in queue mail at overhop/w1 of n1 since 2026-11-26T02:24:27.972Z under key "acme"`},
		{6, "jobs accepted: 13, then 14\nqueue mail delayed: none, then 1"},
		{7, `dispatches failed: none, then 1
dispatches notified: 1, then none
queue mail active: 1, then none
queue mail delayed: 1, then 2
running 162ccffe-08d5-52dc-9f95-d75b8e8d9619: attempt 2 of send "ü" in queue mail at overhop/w1 of n1 since 2026-11-26T02:24:27.972Z under key "acme", then none`},
		{12, `dispatches pending: none, then 1
jobs removed: none, then 2
limit stripe: none, then paused in force
limit stripe settings: none, then {"total":"1"}
queue mail delayed: 2, then 1
queue mail waiting: none, then 1
queue old failed: 2, then none`},
		{13, "jobs removed: 2, then 12\nqueue old: running, then none\nqueue old completed: 10, then none"},
	} {
		base, err := s.Encode()
		if err != nil {
			t.Fatal(err)
		}
		before, err := Decode(base)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Add([]byte(message), func(number uint64, _ time.Time) bool { return number <= stage.event }); err != nil {
			t.Fatal(err)
		}
		var lines []string
		for _, d := range before.Diff(s) {
			lines = append(lines, d.String())
		}
		for _, d := range before.Changes(s) {
			if d.What == "jobs removed" {
				t.Errorf("to event %d, jobs that were forgotten are %s", stage.event, d)
			}
		}
		if got := strings.Join(lines, "\n"); got != stage.want || s.Event != stage.event || s.Imbalance() != 0 {
			t.Errorf("to event %d, imbalance %d:\n%s\nwant to event %d:\n%s", s.Event, s.Imbalance(), got, stage.event, stage.want)
		}
	}
	if want := time.Date(2026, 11, 26, 2, 24, 27, 981e6, time.UTC); !s.At.Equal(want) {
		t.Errorf("at %s, want %s", s.At, want)
	}
}

func TestState_AddRefuses(t *testing.T) {
	const header = `{"seq":1,"at":"2026-11-26T02:24:27.972Z"}` + "\n"
	for text, want := range map[string]string{
		header + `["q","UkO9pvByXhOqFdDPWqzJmQ","mail",""]`:                                        ErrEarlier.Error(),
		`{"event":"DispatchFailed","request_id":"162ccffe-08d5-52dc-9f95-d75b8e8d9619#1","seq":1}`: ErrEarlier.Error(),
		`{"event":"run.heartbeat","seq":2}`:                                                        "event 2 follows event 0",
		header + `["z","UkO9pvByXhOqFdDPWqzJmQ","mail"]`:                                           "a newer build has written it",
		header + `["d","UkO9pvByXhOqFdDPWqzJmQ",0]`:                                                "malformed",
		header + `["d","UkO9","mail"]`:                                                             "malformed",
		header + `["d"`:                                                                            "malformed",
		header + `[7]`:                                                                             "malformed",
		header + `["N","UkO9pvByXhOqFdDPWqzJmQ","mail"]`:                                           "malformed",
		header + `["-","mail",7]`:                                                                  "malformed",
		header + `["F","UkO9pvByXhOqFdDPWqzJmQ","m","","","delayed","x"]`:                          "malformed",
		"\n": "malformed",
		"x":  "invalid syntax",
	} {
		if _, err := New().Add([]byte(text), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
}

// TestState_Encode checks that large states are compressed, and that damage is an error.
func TestState_Encode(t *testing.T) {
	s := New()
	for i := range 2000 {
		s.Running[ID{byte(i), byte(i >> 8)}] = &Run{Queue: "mail", Node: "n1"}
	}
	base, err := s.Encode()
	if err != nil || len(base) > plainSize {
		t.Fatalf("%d bytes, %v", len(base), err)
	}
	read, err := Decode(base)
	if err != nil || len(s.Diff(read)) > 0 || len(read.Running) != 2000 {
		t.Errorf("%v, %v", read, err)
	}
	for _, damaged := range [][]byte{base[:len(base)/2], {0x1f, 0x8b}, []byte("{"), []byte(`{"running":{"x":{}}}`)} {
		if _, err := Decode(damaged); err == nil {
			t.Errorf("%.20q is accepted", damaged)
		}
	}
}

func FuzzState_Add(f *testing.F) {
	f.Add(message)
	f.Fuzz(func(t *testing.T, body string) {
		s := New()
		_, _ = s.Add([]byte(body), nil)
		if _, err := s.Encode(); err != nil {
			t.Error(err)
		}
	})
}

func BenchmarkState_Add(b *testing.B) {
	var body strings.Builder
	body.WriteString(`{"seq":1,"at":"2026-11-26T02:24:27.972Z"}` + "\n")
	body.WriteString(`["NnAd","FizP_gjVUtyflddbjo2WGQ","mail","send","overhop/w1","n1",1]` + "\n")
	for range 1000 {
		body.WriteString(`["NnAd",0,0,1,2,3,1]` + "\n")
	}
	text := []byte(body.String())
	for b.Loop() {
		if _, err := New().Add(text, nil); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/4004, "ns/event")
}
