package nodetest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"yardmaster/edge/overhop"
	"yardmaster/internal/nodetest"
)

// explained is an explanation of a job, as far as tests look at it.
type explained struct {
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

func (e *explained) codes() string {
	var codes []string
	for _, r := range e.Reasons {
		codes = append(codes, r.Code)
	}
	return strings.Join(codes, " ")
}

func (e *explained) events() string {
	var events []string
	for _, one := range e.History.Events {
		events = append(events, one.Event)
	}
	return strings.Join(events, " ")
}

// explains waits until a member explains a job by these codes.
func explains(y *nodetest.Yard, m *nodetest.Member, id, queue, codes string) (e explained) {
	y.Eventually(fmt.Sprintf("%s explains %s by %s", m.Name, id, codes), func() error {
		e = explained{}
		began := time.Now()
		if err := m.API("job.explain", map[string]any{"id": id, "queue": queue}, &e); err != nil {
			return err
		}
		if e.codes() != codes {
			return fmt.Errorf("after %s it is %s by %q: %s", time.Since(began), e.State, e.codes(), e.Verdict)
		}
		return nil
	})
	return e
}

// explain: every member tells of the same job the same, and its whole history.
func explain(t *testing.T, y *nodetest.Yard) {
	a := y.Members[0]
	a.AddQueue(t, "explain", 1)
	first := a.Enqueue(t, "explain", `{"id":"explain-1","params":{}}`).String()
	a.Enqueue(t, "explain", `{"id":"explain-2","params":{}}`)
	a.Enqueue(t, "explain", `{"id":"explain-later","params":{},"delay_ms":3600000}`)
	for _, m := range y.Members {
		explains(y, m, "explain-1", "explain", "no_worker next_in_line")
		explains(y, m, "explain-2", "explain", "no_worker ahead_in_line")
		if e := explains(y, m, "explain-later", "explain", "delayed"); e.NextAt == nil && !strings.HasPrefix(e.Verdict, "It is due at 2") || !e.History.Complete {
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
	for _, m := range y.Members {
		if e := explains(y, m, "explain-1", "explain", "running"); e.events() != "DispatchQueued DispatchNotified worker.assigned" || !e.History.Complete {
			t.Errorf("the history of a job that runs: %+v", e.History)
		}
		e := explains(y, m, "explain-2", "explain", "queue_limit next_in_line")
		if h := e.Reasons[0].Data.Holders; len(h) != 1 || h[0].ID != first || h[0].Node != a.Name || !strings.HasPrefix(h[0].Channel, "overhop/") {
			t.Errorf("who fills the limit: %+v", h)
		}
	}
	queueExplains(t, y)
	close(release)
	for _, id := range []string{"explain-1", "explain-2"} {
		a.WaitOutcome(t, "explain:"+id)
	}
	for _, m := range y.Members {
		e := explains(y, m, "explain-1", "explain", "completed")
		if !e.History.Complete || e.events() != "DispatchQueued DispatchNotified worker.assigned DispatchDelivered" {
			t.Errorf("%s: the history of a job that has ended: %+v", m.Name, e.History)
		}
	}
	if err := a.API("job.remove", map[string]any{"id": "explain:explain-1"}, nil); err != nil {
		t.Fatal(err)
	}
	explains(y, y.Members[1], first, "", "forgotten")
	if e := explains(y, y.Members[2], "explain-1", "explain", "forgotten"); e.ID != first {
		t.Errorf("a forgotten job by its key: %+v", e)
	}
	a.Enqueue(t, "explain", `{"id":"explain-u1","params":{},"unique_key":"explain"}`)
	made := a.Enqueue(t, "explain", `{"id":"explain-u2","params":{},"unique_key":"explain"}`).String()
	if e := explains(y, y.Members[2], "explain-u2", "explain", "duplicate"); e.State != "none" || e.Reasons[0].Data.Job != made {
		t.Errorf("a job that was none: %+v", e)
	}
	if err := a.API("job.explain", map[string]any{"id": "explain-nothing"}, nil); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("a job that never was: %v", err)
	}
}

// queueExplains: the queue's own explanation, over NATS and HTTP.
func queueExplains(t *testing.T, y *nodetest.Yard) {
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
	for _, m := range y.Members {
		var e answer
		if err := m.API("queue.explain", map[string]any{"name": "explain"}, &e); err != nil {
			t.Fatal(err)
		}
		if e.Verdict != want || e.Oldest == nil || e.NextDue == nil || e.NextDue.ID == nil || len(e.Active) != 1 || len(e.Nodes) != 3 ||
			e.Nodes[0].Workers.Count+e.Nodes[1].Workers.Count+e.Nodes[2].Workers.Count != 1 {
			t.Errorf("%s explains the queue: %+v", m.Name, e)
		}
	}
	r, err := http.Get("http://" + y.Members[1].Node().Addresses().HTTP + "/v1/queues/explain/explain")
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

// explainUndecided: while nothing can be decided every member still tells, in
// time, what it knows, and of a record that waits to be folded.
func explainUndecided(t *testing.T, y *nodetest.Yard) {
	a := y.Members[0]
	a.AddQueue(t, "undecided", 0)
	a.Enqueue(t, "undecided", `{"id":"undecided-1","params":{}}`)
	for _, m := range y.Members { // whoever has not heard of it by then will not
		explains(y, m, "undecided-1", "undecided", "no_worker next_in_line")
	}
	y.CutAgreement()
	for _, m := range y.Members {
		e := explains(y, m, "undecided-1", "undecided", "no_quorum no_worker next_in_line")
		if e.Observed.Certain || !strings.HasPrefix(e.Verdict, "As node "+m.Name+" knew it at ") {
			t.Errorf("%s is certain: %+v", m.Name, e)
		}
	}
	accepted := a.Enqueue(t, "undecided", `{"params":{}}`).String()
	for _, m := range y.Members {
		began := time.Now()
		if e := explains(y, m, accepted, "", "not_folded no_quorum"); e.State != "new" || e.ID != accepted {
			t.Errorf("%s, of a record that is not folded: %+v", m.Name, e)
		}
		explains(y, m, "undecided-nothing", "undecided", "unknown_here no_quorum")
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("%s took %s for two answers", m.Name, took)
		}
	}
	y.Heal()
	y.WaitReady()
	explains(y, y.Members[2], accepted, "", "no_worker ahead_in_line")
}
