package nodetest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"yardmaster/cluster"
	"yardmaster/edge/overhop"
	"yardmaster/internal/nodetest"
)

// taken is what an enqueue was answered.
type taken struct {
	ID        string
	Queue     string
	Duplicate bool
	Debounced bool
}

// uniqueOnce: all three nodes, by request and over Overhop, enqueue under the
// same unique key at once, round for round, while the authority changes hands.
// Of each round there is one job, and all answers name it.
func uniqueOnce(t *testing.T, y *nodetest.Yard) {
	const rounds = 24
	y.Members[0].AddQueue(t, "once", 0)
	clients := make([]*overhop.Client, len(y.Members))
	for i, m := range y.Members {
		clients[i] = m.Overhop(t, overhop.Options{})
	}
	for round := range rounds {
		if round%8 == 4 {
			to := y.Members[round/8]
			command := fmt.Sprintf(`{"command":"AcquireAuthority","owner":%q,"lease_id":"x","leased_until":"2099-01-01T00:00:00Z"}`, to.Name)
			if _, err := exec(to, command); err != nil {
				t.Fatal(err)
			}
		}
		key := fmt.Sprint("round-", round)
		answers := make([]taken, 2*len(y.Members))
		var all sync.WaitGroup
		for i, m := range y.Members {
			all.Go(func() { answers[2*i] = requestUnique(t, m, key) })
			all.Go(func() { answers[2*i+1] = overhopUnique(t, clients[i], key) })
		}
		all.Wait()
		made := 0
		for _, a := range answers {
			if !a.Duplicate {
				made++
			}
			if a.ID == "" || a.ID != answers[0].ID || a.Queue != "once" {
				t.Errorf("round %d: %+v", round, answers)
				break
			}
		}
		if made > 1 {
			t.Errorf("round %d: %d callers made the job: %+v", round, made, answers)
		}
	}
	y.Eventually("one job of each round waits", func() error { return y.Members[1].Holds("once", "waiting", rounds) })
	y.WaitReady()
}

// requestUnique asks until the job is decided on: at a change of the authority
// the answer may be to ask again.
func requestUnique(t *testing.T, m *nodetest.Member, key string) (a taken) {
	for {
		err := m.Ask("yard.enqueue.once", `{"params":{},"unique_key":"`+key+`"}`, &a)
		var later *cluster.APIError
		if errors.As(err, &later) && later.Code == "503" {
			continue
		}
		if err != nil {
			t.Errorf("%s at %s: %v", key, m.Name, err)
		}
		return a
	}
}

func overhopUnique(t *testing.T, c *overhop.Client, key string) (a taken) {
	for {
		jid, err := c.Enqueue(t.Context(), overhop.Enqueue{Queue: "once", Payload: overhop.EmptyMap, UniqueKey: &key})
		var refused *overhop.RemoteError
		if errors.As(err, &refused) && refused.Code == overhop.CodeUnavailable {
			continue
		}
		if a.Duplicate = errors.As(err, &refused) && refused.Code == overhop.CodeDuplicateJob; a.Duplicate {
			jid, _ = refused.Details.Get("jid").Str()
		} else if err != nil {
			t.Errorf("%s over Overhop: %v", key, err)
		}
		a.Queue, a.ID, _ = strings.Cut(jid, ":")
		return a
	}
}

// heldKeys is how many keys of guards the status shows.
func heldKeys(t *testing.T, m *nodetest.Member) int {
	t.Helper()
	var status struct {
		Held int `json:"held_keys"`
	}
	out, code := command(t, m, "status", "--json")
	if err := json.Unmarshal([]byte(out), &status); code != 0 || err != nil {
		t.Fatalf("status answers %s (exit code %d): %v", out, code, err)
	}
	return status.Held
}

// guards: the keys by every way in, to what becomes of the jobs.
func guards(t *testing.T, y *nodetest.Yard) {
	a, b, c := y.Members[0], y.Members[1], y.Members[2]
	a.AddQueue(t, "guarded", 0)
	before := heldKeys(t, a)
	var first, second taken
	const debounced = `{"params":{"i":%d},"debounce_key":"guarded","debounce_ms":%d}`
	if err := a.Ask("yard.enqueue.guarded", fmt.Sprintf(debounced, 1, 3_600_000), &first); err != nil || first.Debounced {
		t.Fatal(first, err)
	}
	if err := b.Ask("yard.enqueue.guarded", fmt.Sprintf(debounced, 2, 1), &second); err != nil || !second.Debounced || second.ID != first.ID {
		t.Fatal(second, err)
	}
	c.Worker(t, "guarded", 1, echo)
	if j := c.WaitOutcome(t, first.ID); j.State != "completed" || string(j.Result) != `{"i":2}` {
		t.Errorf("the debounced job is %+v with result %s", j, j.Result)
	}

	const limited = `{"params":{},"rate_limit_key":"guarded","rate_limit_ms":3600000}`
	if err := a.Ask("yard.enqueue.guarded", limited, nil); err != nil {
		t.Fatal(err)
	}
	err := b.Ask("yard.enqueue.guarded", limited, nil)
	wantCode(t, err, "429")
	var refused *cluster.APIError
	if errors.As(err, &refused) && refused.RetryAfter <= 0 {
		t.Errorf("refused without a time: %v", err)
	}

	// A plain publisher hears nothing, and makes no second job either.
	for _, key := range []string{"plain-1", "plain-2"} {
		if dup, err := c.Client().PublishJob(soon(t), "guarded", key, []byte(`{"params":{},"unique_key":"plain"}`)); err != nil || dup {
			t.Fatal(dup, err)
		}
	}
	var last taken
	if err := a.Ask("yard.enqueue.guarded", `{"params":{},"unique_key":"plain"}`, &last); err != nil || !last.Duplicate {
		t.Errorf("after plain publishers: %+v, %v", last, err)
	}
	out, code := command(t, b, "enqueue", "guarded", "f", "--unique-key", "plain", "--json")
	var cli taken
	if err := json.Unmarshal([]byte(out), &cli); code != 0 || err != nil || cli != last {
		t.Errorf("the command line answers %s (exit code %d), want %+v", out, code, last)
	}
	y.Eventually("all have run", func() error { return a.Holds("guarded", "completed", 3) })
	if held := heldKeys(t, a) - before; held != 2 { // a rate limit's and a unique key
		t.Errorf("%d more keys are held", held)
	}
}
