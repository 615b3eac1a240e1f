package history

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// TestRecipe checks that the Python function in the documentation expands a message like
// Expand. It leaves out the fields target and task_id, and adds others.
func TestRecipe(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed")
	}
	page, err := os.ReadFile("../../docs/reference/contract.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```python\n")
	function, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("the page has no Python code")
	}
	message, lines := encode(7, recipeEvents())
	run := exec.Command(python, "-c", function+"\nimport sys\nfor e in expand(sys.stdin.read()): print(json.dumps(e))")
	run.Stdin = bytes.NewReader(message)
	out, err := run.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, err.(*exec.ExitError).Stderr)
	}
	got, want := strings.Split(string(out), "\n"), strings.Split(string(lines), "\n")
	if len(got) != len(want) {
		t.Fatalf("%d lines, want %d", len(got), len(want))
	}
	for i := range len(want) - 1 {
		var have, event map[string]any
		if err := json.Unmarshal([]byte(got[i]), &have); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(want[i]), &event); err != nil {
			t.Fatal(err)
		}
		for name, value := range event {
			if name != "target" && name != "task_id" && !reflect.DeepEqual(have[name], value) {
				t.Errorf("%s is %v in %s, want %s", name, have[name], got[i], want[i])
			}
		}
	}
}

// recipeEvents returns the events of two jobs, one of which fails twice, and of the authority.
func recipeEvents() (events []numbered) {
	at := start
	add := func(kind ledger.EventKind, id byte, n uint32, a string, extra *ledger.Extra) {
		events = append(events, numbered{at, ledger.Event{Kind: kind, Job: job.ID{id, 0xfb, 0xff}, N: n, A: a, B: "mail", Extra: extra}})
	}
	changed := ledger.Event{Kind: ledger.JobChanged, From: ledger.OutNew, To: delayed, Job: job.ID{2, 0xfb}, A: "send", B: "mail", Extra: &ledger.Extra{Due: start.Add(time.Hour).UnixNano()}}
	events = append(events, numbered{at, changed}, numbered{at, ledger.Event{Kind: ledger.JobsForgotten, B: "mail", Extra: &ledger.Extra{Metadata: []byte(`{"completed":2}`)}}})
	labels := job.Labels{Key: "k", Tags: []string{"eu"}, Meta: []job.Label{{Name: "customer", Value: "acme"}}}
	for i, text := range []string{labels.Encode(), ""} {
		details := ledger.Event{Kind: ledger.JobDetails, Job: job.ID{2, 0xfb}, A: "acme", B: "mail", Extra: &ledger.Extra{Accepted: start.Add(time.Duration(i-1)*time.Hour + 1).UnixNano(), Priority: 5, C: text}}
		events = append(events, numbered{at, details})
	}
	plain := ledger.Extra{Accepted: start.Add(time.Second + 3).UnixNano(), Priority: job.DefaultPriority, Record: job.Position{Lane: 1, Seq: 7, Index: 2}}
	events = append(events, numbered{at, ledger.Event{Kind: ledger.JobDetails, Job: job.ID{3, 0xfb}, B: "mail", Extra: &plain}})
	for i, key := range []string{"order-\"1", "order-\"2", "order-\"", "or", "order-ü1", "order-ü2"} { // some are abridged
		keyed := ledger.Extra{Accepted: start.Add(-time.Second).UnixNano(), Priority: job.DefaultPriority, C: (&job.Labels{Key: key}).Encode(), Record: job.Position{Lane: 1 + uint8(i/4), Seq: 8 + uint64(i/2), Index: uint8(i % 2)}}
		events = append(events, numbered{at, ledger.Event{Kind: ledger.JobDetails, Job: job.ID{byte(4 + i), 0xfb}, B: "mail", Extra: &keyed}})
	}
	for n := range uint32(2) {
		for id := range byte(2) {
			add(ledger.DispatchQueued, id, n+1, "py#send", nil)
			events[len(events)-1].event.From = []ledger.Whereabouts{ledger.OutNew, delayed}[n]
		}
		for id := range byte(2) {
			add(ledger.DispatchNotified, id, n+1, "rrq/py", nil)
			add(ledger.WorkerAssigned, id, n+1, "rrq/py", &ledger.Extra{Run: &ledger.Run{Node: "n1", Function: "py#send", Attempt: n + 1, Key: "acme"[:2*n]}})
		}
		at = at.Add(1234567 * time.Microsecond)
		add(ledger.RunHeartbeat, 0, 0, "n1", nil)
		add(ledger.DispatchFailed, 0, n+1, "error: \"ü\" <x>", &ledger.Extra{C: "SMTPError", Due: at.Add(time.Second).UnixNano()})
		events[len(events)-1].event.To = delayed
		add(ledger.DispatchDelivered, 1, n+1, "", []*ledger.Extra{nil, {Result: 5}}[n])
		add(ledger.DispatchDelivered, 2, n+1, "", &ledger.Extra{Result: uint64(6 + 2*n)})
	}
	return events
}
