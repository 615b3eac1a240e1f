package history

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

var start = time.Date(2026, 11, 26, 2, 24, 27, 972_123_456, time.UTC)

// numbered is an event with the time of its entry.
type numbered struct {
	at    time.Time
	event ledger.Event
}

// encode returns events that begin with this number as a message and as lines in the
// contract's form.
func encode(first uint64, events []numbered) (message, lines []byte) {
	enc := NewEncoder(len(events), first, events[0].at)
	for i := range events {
		n := &events[i]
		enc.Add(first+uint64(i), n.at, &n.event)
		lines = n.event.AppendLine(lines, first+uint64(i), n.at)
	}
	return enc.Bytes(), lines
}

// TestEncoder_Example checks a message with all kinds of lines.
func TestEncoder_Example(t *testing.T) {
	first, second := job.ID{0x16, 0x2c, 0xdc}, job.ID{0x52, 0x43, 0xbd}
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	message, _ := encode(6, []numbered{
		{at(0), ledger.Event{Kind: ledger.DispatchQueued, Job: first, N: 1, A: "send", B: "mail"}},
		{at(0), ledger.Event{Kind: ledger.DispatchNotified, Job: first, N: 1, A: "overhop/w1", B: "mail"}},
		{at(0), ledger.Event{Kind: ledger.WorkerAssigned, Job: first, N: 1, A: "overhop/w1", B: "mail"}},
		{at(0), ledger.Event{Kind: ledger.DispatchQueued, Job: second, N: 12, A: "send", B: "mail"}},
		{at(9), ledger.Event{Kind: ledger.DispatchDelivered, Job: first, N: 1, B: "mail"}},
		{at(9), ledger.Event{Kind: ledger.DispatchNotified, Job: second, N: 12, A: "none", B: "mail"}},
		{at(9), ledger.Event{Kind: ledger.DispatchFailed, Job: second, N: 12, A: "removed", B: "mail"}},
		{at(11), ledger.Event{Kind: ledger.RunHeartbeat, A: "n1", B: "execute"}},
		{at(11), ledger.Event{Kind: ledger.DispatchFailed, Job: second, N: 13, A: "error: <nil>", B: "mail", Extra: &ledger.Extra{C: "SMTPError"}}},
	})
	want := `{"seq":6,"at":"2026-11-26T02:24:27.972Z"}
["qna","FizcAAAAAAAAAAAAAAAAAA","mail","send","overhop/w1"]
["q","UkO9AAAAAAAAAAAAAAAAAA#12",0,1]
9
["d",0,0]
["nf",1,0,"none","removed",""]
{"event":"run.heartbeat","owner":"n1","phase":"execute","seq":13,"at":"2026-11-26T02:24:27.983Z"}
11
["f","UkO9AAAAAAAAAAAAAAAAAA#13",0,"error: \u003cnil\u003e","SMTPError"]
`
	if diff := cmp.Diff(want, string(message)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestExpand checks that any events come back as the lines that they would have been without
// the compact form.
func TestExpand(t *testing.T) {
	name := rapid.OneOf(rapid.SampledFrom([]string{"", "mail", "send", "py#send", "overhop/w1", "none", "<&>\u2028\"\\\n", "\xff", "\ufffd"}), rapid.String())
	record := rapid.Custom(func(t *rapid.T) job.Position {
		seq := rapid.OneOf(rapid.Uint64Range(0, 3), rapid.Uint64())
		return job.Position{Lane: rapid.Uint8Range(0, 2).Draw(t, "lane"), Seq: seq.Draw(t, "sequence"), Index: rapid.Uint8Range(0, 2).Draw(t, "index")}
	})
	result := rapid.OneOf(rapid.Uint64Range(1, 3), rapid.Uint64Min(1))
	rapid.Check(t, func(t *rapid.T) {
		at := start
		events := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) numbered {
			if rapid.Bool().Draw(t, "next entry") {
				at = at.Add(time.Duration(rapid.Int64Range(0, 5e9).Draw(t, "later")))
			}
			e := ledger.Event{
				Kind: ledger.EventKind(rapid.IntRange(int(ledger.AuthorityAcquired), int(ledger.JobDetails)).Draw(t, "kind")),
				A:    name.Draw(t, "A"), B: name.Draw(t, "B"),
			}
			if e.Kind == ledger.WorkerAssigned {
				e.B = "mail" // its line has the queue as it is
			}
			switch e.Kind {
			case ledger.JobsForgotten:
				e.Extra = &ledger.Extra{Metadata: []byte(`{"completed":3,"failed":1}`)}
				return numbered{at, e}
			case ledger.JobDetails:
				labels := job.Labels{Key: rapid.SampledFrom([]string{"", "order-", "order-ü"}).Draw(t, "prefix") + name.Draw(t, "label"), Tags: []string{"eu", "a b"}, Meta: []job.Label{{Name: "customer", Value: "acme"}, {Name: "x", Value: "\"{"}}, Params: []job.Label{{Name: "p.q", Value: ""}}}
				accepted := at.UnixNano() - rapid.Int64Range(-1e9, 1<<61).Draw(t, "since acceptance")
				e.Extra = &ledger.Extra{Accepted: accepted, Priority: rapid.SampledFrom([]uint8{job.DefaultPriority, 7}).Draw(t, "priority"), C: rapid.SampledFrom([]string{"", job.NoLabels, labels.Encode(), (&job.Labels{Key: labels.Key}).Encode()}).Draw(t, "labels"), Record: record.Draw(t, "record")}
				e.Job[0] = byte(rapid.IntRange(0, 3).Draw(t, "job"))
				return numbered{at, e}
			case ledger.JobChanged, ledger.DispatchQueued, ledger.DispatchFailed:
				e = withPlaces(t, e)
			case ledger.DispatchDelivered:
				if rapid.Bool().Draw(t, "has a result") {
					e.Extra = &ledger.Extra{Result: result.Draw(t, "result")}
				}
			case ledger.WorkerAssigned:
				if rapid.Bool().Draw(t, "run") {
					e.Extra = &ledger.Extra{Run: &ledger.Run{Node: "n1", Function: name.Draw(t, "function"), Attempt: rapid.Uint32Range(1, 2).Draw(t, "attempt"), Key: rapid.SampledFrom([]string{"", "acme"}).Draw(t, "key")}}
				}
			}
			if e.Kind == ledger.JobChanged {
				e.Job[0] = byte(rapid.IntRange(0, 3).Draw(t, "job"))
				return numbered{at, e}
			}
			if rapid.IntRange(0, 9).Draw(t, "about a job") > 0 {
				e.Job[0], e.N = byte(rapid.IntRange(0, 3).Draw(t, "job")), rapid.SampledFrom([]uint32{1, 2, 1<<32 - 1}).Draw(t, "n")
			}
			if e.Kind == ledger.OperatorActed || e.Extra == nil && rapid.IntRange(0, 4).Draw(t, "extra") == 0 {
				e.Extra = &ledger.Extra{Request: name.Draw(t, "request"), C: name.Draw(t, "C"), By: &ledger.Actor{Name: "ann"}}
				if rapid.Bool().Draw(t, "metadata") {
					e.Extra.Metadata = []byte(`{"a":[1,"\n"]}`)
					e.Extra.Cursor = new("0@1")
				}
			}
			return numbered{at, e}
		}), 1, 30).Draw(t, "events")
		first := rapid.Uint64Range(1, 1<<60).Draw(t, "first")
		message, want := encode(first, events)
		split := rapid.IntRange(0, len(events)-1).Draw(t, "split")
		if split > 0 { // two messages instead of one
			message, _ = encode(first, events[:split])
			rest, _ := encode(first+uint64(split), events[split:])
			message = append(message, rest...)
		}
		got, err := Expand(message)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); diff != "" {
			t.Fatalf("(-want +got):\n%s\nof %s", diff, message)
		}
		if again, err := Expand(want); err != nil || !bytes.Equal(again, want) { // a message of an earlier build
			t.Fatalf("%s: %v", again, err)
		}
		for _, n := range events {
			if n.event.N > 0 && !Mentions(message, n.event.Job) {
				t.Fatalf("no job %s in %s", n.event.Job, message)
			}
		}
	})
}

// withPlaces returns an event with where its job was before or is after it.
func withPlaces(t *rapid.T, e ledger.Event) ledger.Event {
	place := rapid.Custom(func(t *rapid.T) ledger.Whereabouts {
		return ledger.Whereabouts(rapid.IntRange(int(ledger.OutNew), int(ledger.OutGone)).Draw(t, "place"))
	})
	given := e.Kind == ledger.JobChanged || rapid.Bool().Draw(t, "places")
	if given && e.Kind != ledger.DispatchFailed {
		e.From = place.Draw(t, "from")
	}
	if given && e.Kind != ledger.DispatchQueued {
		if e.To = place.Draw(t, "to"); e.To == delayed {
			e.Extra = &ledger.Extra{Due: start.Add(time.Duration(rapid.Int64Range(-5e9, 5e9).Draw(t, "due"))).UnixNano()}
		}
	}
	return e
}

func TestExpand_Malformed(t *testing.T) {
	const header = `{"seq":1,"at":"2026-11-26T02:24:27.972Z"}` + "\n"
	for text, want := range map[string]string{
		"\n":                                  "invalid syntax",
		`{"seq":-1}`:                          "cannot unmarshal",
		`[`:                                   "unexpected end",
		`[]`:                                  "fields are missing",
		`["d",0,0]`:                           "index of an earlier one",
		`["d","FizcAAAAAAAAAAAAAAAAAA",1]`:    "index of an earlier one",
		`["d","FizcAAAAAAAAAAAAAAAAAA"]`:      "fields are missing",
		`["d","Fizc","mail"]`:                 "3 bytes",
		`["d","FizcAAAAAAAAAAAAAAAAAA#x",""]`: "invalid syntax",
		`["z","FizcAAAAAAAAAAAAAAAAAA",""]`:   "newer build",
		`["q","FizcAAAAAAAAAAAAAAAAAA","",1]`: "index of an earlier one",
		`["K","FizcAAAAAAAAAAAAAAAAAA","",1,2,"x"]`:  "shares more",
		`["K","FizcAAAAAAAAAAAAAAAAAA","",1,-1,"x"]`: "shares more",
		`["K","FizcAAAAAAAAAAAAAAAAAA","",1,0]`:      "fields are missing",
		`["PE","FizcAAAAAAAAAAAAAAAAAA","",1,2,0]`:   "fields are missing",
		`["R","FizcAAAAAAAAAAAAAAAAAA",""]`:          "fields are missing",
	} {
		if got, err := Expand([]byte(header + text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v; want %q", text, got, err, want)
		}
	}
}

func FuzzExpand(f *testing.F) {
	f.Add("{\"seq\":6,\"at\":\"2026-11-26T02:24:27.972Z\"}\n[\"qna\",\"FizcAAAAAAAAAAAAAAAAAA#2\",\"mail\",\"send\",\"w\"]\n9\n[\"f\",0,0,1,\"\"]\n")
	f.Fuzz(func(t *testing.T, body string) {
		if expanded, err := Expand([]byte(body)); err == nil && len(body) > 0 && len(expanded) > 0 && expanded[len(expanded)-1] != '\n' {
			t.Errorf("%q has no last line end", expanded)
		}
	})
}

// BenchmarkExpand expands a message of 1,500 events of jobs that are queued, notified and
// delivered.
func BenchmarkExpand(b *testing.B) {
	var events []numbered
	for i := range 500 {
		at := start.Add(time.Duration(i) * time.Millisecond)
		e := ledger.Event{Job: job.RecordID("lane", job.Position{Seq: uint64(i)}, start), N: 1, A: "send", B: "mail"}
		for _, kind := range []ledger.EventKind{ledger.DispatchQueued, ledger.DispatchNotified, ledger.DispatchDelivered} {
			e.Kind = kind
			events = append(events, numbered{at, e})
		}
		events[len(events)-2].event.A = fmt.Sprintf("overhop/%d", i%10)
	}
	message, lines := encode(1, events)
	b.SetBytes(int64(len(lines)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Expand(message); err != nil {
			b.Fatal(err)
		}
	}
}
