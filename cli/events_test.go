package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
)

const jobA = "0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10" // in the history

func TestEvents(t *testing.T) {
	history, err := os.ReadFile(filepath.Join("..", "ledger", "history", "testdata", "history.jsonl")) // ten lines
	if err != nil {
		t.Fatal(err)
	}
	f := startFakeAPI(t, cannedReplies{"yard.api.v1.job.show": func(question []byte) ([]byte, error) {
		if strings.Contains(string(question), "order-1\"") {
			return []byte(`{"id":"` + jobA + `","queue":"mail"}`), nil
		}
		return nil, &api.Error{Code: api.CodeNotFound, Text: "job does not exist"}
	}})
	layout := streams.Layout{Create: true, Identities: []string{""}}
	if _, err := f.c.Admin.EnsureStreams(t.Context(), layout); err != nil {
		t.Fatal(err)
	}
	if got := f.run(t, "events", "--since", "0"); got.code != 0 || got.out != "" {
		t.Fatalf("no events yet: %+v", got)
	}
	batch := streams.Batch{Subject: subjects.History, First: 1, Count: 10, Body: history}
	stored := make(chan error, 1)
	f.c.Writer.AppendAsync(subjects.StreamEvents, batch, 0, func(_ uint64, err error) { stored <- err })
	if err := <-stored; err != nil {
		t.Fatal(err)
	}
	golden(t, "events.txt", f.run(t, "events", "--since", "0", "--all").out)
	if got := f.run(t, "events", "--since", "0"); strings.Count(got.out, "\n") != 8 || strings.Contains(got.out, "heartbeat") {
		t.Errorf("without --all: %+v", got)
	}
	if got := f.run(t, "events", "--type", "heartbeat"); got.code != 2 || !strings.Contains(got.err, "run-heartbeat, run-blocked-on-user") {
		t.Errorf("an unknown type: %+v", got)
	}
	got := f.run(t, "events", "--since", "0", "--type", "Dispatch_Failed", "--json")
	if got.code != 0 || strings.Count(got.out, "\n") != 1 {
		t.Errorf("one event as JSON: %+v", got)
	}
	sameJSON(t, got.out, strings.Split(string(history), "\n")[5])
	for _, named := range [][]string{{"order-1", "--queue", "mail"}, {"mail:order-1"}, {jobA}, {"mail:" + jobA}, {"mail:" + jobA, "--queue", "mail"}} {
		got := f.run(t, append([]string{"events", "--since", "0", "--job"}, named...)...)
		if got.code != 0 || strings.Count(got.out, "\n") != 3 {
			t.Errorf("events of %q: %+v", named, got)
		}
	}
	for _, named := range [][]string{{"order-1001", "--queue", "mail"}, {"mail:order-1001"}} {
		got := f.run(t, append([]string{"events", "--job"}, named...)...)
		if got.code != 3 || !strings.Contains(got.err, "by its id, 56116342-aac2-5599-9a58-8fc4074e78c2") { // as in docs/glossary.md
			t.Errorf("events of %q, which is unknown: %+v", named, got)
		}
	}
	for _, named := range [][]string{{"order-1", "--queue", "mail"}, {"mail:order-1"}, {jobA}} {
		if got := f.run(t, append([]string{"job", "history"}, named...)...); got.code != 0 || strings.Count(got.out, jobA) != 3 {
			t.Errorf("history of %q: %+v", named, got)
		}
	}
	if got := f.run(t, "job", "history", "mail:order-1001"); got.code != 3 || !strings.Contains(got.err, "no event of job 56116342-aac2-5599-9a58-8fc4074e78c2") {
		t.Errorf("history of a job without events: %+v", got)
	}
	if got := f.run(t, "job", "history", "order-7"); got.code != 3 || !strings.Contains(got.err, "<queue>:<key>") {
		t.Errorf("history of an unknown key: %+v", got)
	}
	if got := f.run(t, "events", "--job", "order-7"); got.code != 3 || !strings.Contains(got.err, "<queue>:<key>") {
		t.Errorf("events of an unknown key: %+v", got)
	}
}
