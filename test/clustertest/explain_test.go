package clustertest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// explanation is the part of a job's explanation that tests use.
type explanation struct {
	ID      string `json:"id"`
	State   string `json:"state"`
	Verdict string `json:"verdict"`
	NextAt  *time.Time
	Reasons []struct {
		Code, Text string
		Data       struct {
			Holders []struct{ ID, Node, Channel string }
			Job     string
			Nodes   []struct {
				Node    string
				Workers *struct{ Count, Credits int }
			}
		}
	} `json:"reasons"`
	History struct {
		Events   []struct{ Event string }
		Complete bool
		Note     string
	} `json:"history"`
	Observed struct {
		Node    string
		Certain bool
	} `json:"observed"`
}

func (e *explanation) codes() string {
	var codes []string
	for _, r := range e.Reasons {
		codes = append(codes, r.Code)
	}
	return strings.Join(codes, " ")
}

func (e *explanation) events() string {
	var events []string
	for _, one := range e.History.Events {
		events = append(events, one.Event)
	}
	return strings.Join(events, " ")
}

// waitExplanation waits until a member explains a job with these codes.
func waitExplanation(cl *clustertest.Cluster, m *clustertest.Member, id, queue, codes string) (e explanation) {
	cl.Eventually(fmt.Sprintf("%s explains %s by %s", m.Name, id, codes), func() error {
		e = explanation{}
		if err := m.API("job.explain", map[string]any{"id": id, "queue": queue}, &e); err != nil {
			return err
		}
		if e.codes() != codes {
			return fmt.Errorf("the job is %s with %q: %s", e.State, e.codes(), e.Verdict)
		}
		return nil
	})
	return e
}

// explain checks that every member gives the same explanation and the whole history of a
// job.
func explain(t *testing.T, cl *clustertest.Cluster) {
	a := cl.Members[0]
	a.AddQueue(t, "explain", 1)
	first := a.Enqueue(t, "explain", `{"id":"explain-1","params":{}}`).String()
	a.Enqueue(t, "explain", `{"id":"explain-2","params":{}}`)
	a.Enqueue(t, "explain", `{"id":"explain-later","params":{},"delay_ms":3600000}`)
	for _, m := range cl.Members {
		waitExplanation(cl, m, "explain-1", "explain", "no_worker next_in_line")
		waitExplanation(cl, m, "explain-2", "explain", "no_worker ahead_in_line")
		if e := waitExplanation(cl, m, "explain-later", "explain", "delayed"); e.NextAt == nil && !strings.HasPrefix(e.Verdict, "It is due at 2") || !e.History.Complete {
			t.Errorf("a delayed job: %+v", e)
		}
	}
	release := make(chan struct{})
	a.Worker(t, "explain", 2, func(ctx context.Context, _ *overhop.Quest) (overhop.Raw, error) {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return nil, nil
	})
	for _, m := range cl.Members {
		if e := waitExplanation(cl, m, "explain-1", "explain", "running"); e.events() != "DispatchQueued DispatchNotified worker.assigned" || !e.History.Complete {
			t.Errorf("the history of a job that runs: %+v", e.History)
		}
		e := waitExplanation(cl, m, "explain-2", "explain", "queue_limit next_in_line")
		if h := e.Reasons[0].Data.Holders; len(h) != 1 || h[0].ID != first || h[0].Node != a.Name || !strings.HasPrefix(h[0].Channel, "overhop/") {
			t.Errorf("the jobs that fill the limit: %+v", h)
		}
	}
	explainQueue(t, cl)
	close(release)
	for _, id := range []string{"explain-1", "explain-2"} {
		a.WaitOutcome(t, "explain:"+id)
	}
	for _, m := range cl.Members {
		e := waitExplanation(cl, m, "explain-1", "explain", "completed")
		if !e.History.Complete || e.events() != "DispatchQueued DispatchNotified worker.assigned DispatchDelivered" {
			t.Errorf("%s: the history of a job that has ended: %+v", m.Name, e.History)
		}
	}
	if err := a.API("job.remove", map[string]any{"id": "explain:explain-1"}, nil); err != nil {
		t.Fatal(err)
	}
	waitExplanation(cl, cl.Members[1], first, "", "forgotten")
	if e := waitExplanation(cl, cl.Members[2], "explain-1", "explain", "forgotten"); e.ID != first {
		t.Errorf("a forgotten job by its key: %+v", e)
	}
	a.Enqueue(t, "explain", `{"id":"explain-u1","params":{},"unique_key":"explain"}`)
	made := a.Enqueue(t, "explain", `{"id":"explain-u2","params":{},"unique_key":"explain"}`).String()
	if e := waitExplanation(cl, cl.Members[2], "explain-u2", "explain", "duplicate"); e.State != "none" || e.Reasons[0].Data.Job != made {
		t.Errorf("a rejected record: %+v", e)
	}
	if err := a.API("job.explain", map[string]any{"id": "explain-nothing"}, nil); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("an unknown job: %v", err)
	}
}

// explainQueue checks the explanation of a queue, over NATS and HTTP.
func explainQueue(t *testing.T, cl *clustertest.Cluster) {
	t.Helper()
	type answer struct {
		Verdict string
		Oldest  *struct{ AgeMS int64 }
		NextDue *struct{ ID *string } `json:"next_due"`
		Active  []struct{ Node string }
		Nodes   []struct {
			Node    string
			Workers *struct{ Count, Credits int }
		}
	}
	want := "Queue explain has 1 job waiting: queue explain runs as many jobs at once as its limit allows: 1."
	for _, m := range cl.Members {
		var e answer
		if err := m.API("queue.explain", map[string]any{"name": "explain"}, &e); err != nil {
			t.Fatal(err)
		}
		if e.Verdict != want || e.Oldest == nil || e.NextDue == nil || e.NextDue.ID == nil || len(e.Active) != 1 || len(e.Nodes) != 3 ||
			e.Nodes[0].Workers.Count+e.Nodes[1].Workers.Count+e.Nodes[2].Workers.Count != 1 {
			t.Errorf("%s explains the queue: %+v", m.Name, e)
		}
	}
	r, err := http.Get("http://" + cl.Members[1].Node().Addresses().HTTP + "/v1/queues/explain/explain")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	var e answer
	if err != nil || json.Unmarshal(text, &e) != nil || e.Verdict != want {
		t.Errorf("over HTTP: %s, %v", text, err)
	}
}

// explainUndecided checks that while nothing can be committed, every member still
// explains in time what it knows, including records that are not ingested.
func explainUndecided(t *testing.T, cl *clustertest.Cluster) {
	a := cl.Members[0]
	a.AddQueue(t, "undecided", 0)
	a.Enqueue(t, "undecided", `{"id":"undecided-1","params":{}}`)
	for _, m := range cl.Members { // wait until each ledger has the job
		waitExplanation(cl, m, "undecided-1", "undecided", "no_worker next_in_line")
	}
	cl.CutRaft()
	for _, m := range cl.Members {
		e := waitExplanation(cl, m, "undecided-1", "undecided", "no_quorum no_worker next_in_line")
		if e.Observed.Certain || !strings.HasPrefix(e.Verdict, "As node "+m.Name+" knew it at ") {
			t.Errorf("%s gave a certain explanation: %+v", m.Name, e)
		}
	}
	accepted := a.Enqueue(t, "undecided", `{"params":{}}`).String()
	for _, m := range cl.Members {
		if e := waitExplanation(cl, m, accepted, "", "not_folded no_quorum"); e.State != "new" || e.ID != accepted {
			t.Errorf("%s, for a record that is not ingested: %+v", m.Name, e)
		}
		waitExplanation(cl, m, "undecided-nothing", "undecided", "unknown_here no_quorum")
	}
	cl.Heal()
	cl.WaitReady()
	waitExplanation(cl, cl.Members[2], accepted, "", "no_worker ahead_in_line")
}
