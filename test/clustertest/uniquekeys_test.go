package clustertest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// enqueueReply is the answer to an enqueue.
type enqueueReply struct {
	ID        string
	Queue     string
	Duplicate bool
	Debounced bool
}

// uniqueKeyOnce enqueues concurrently at all three nodes, by request and over Overhop, under
// the same unique key in each round, while the authority changes. Each round must make one
// job, which all answers name.
func uniqueKeyOnce(t *testing.T, cl *clustertest.Cluster) {
	const rounds = 24
	cl.Members[0].AddQueue(t, "once", 0)
	clients := make([]*overhop.Client, len(cl.Members))
	for i, m := range cl.Members {
		clients[i] = m.Overhop(t, overhop.Options{})
	}
	for round := range rounds {
		if round%8 == 4 {
			to := cl.Members[round/8]
			transferTo(cl, to, func(command string) (string, error) { return exec(to, command) })
		}
		key := fmt.Sprint("round-", round)
		answers := make([]enqueueReply, 2*len(cl.Members))
		var all sync.WaitGroup
		for i, m := range cl.Members {
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
			t.Errorf("round %d: %d callers were told that they made the job: %+v", round, made, answers)
		}
	}
	cl.Eventually("one job of each round waits", func() error { return cl.Members[1].CheckCount("once", "waiting", rounds) })
	cl.WaitReady()
}

// requestUnique repeats an enqueue until it is decided. While the authority changes, the
// answer may be to try again.
func requestUnique(t *testing.T, m *clustertest.Member, key string) (a enqueueReply) {
	for {
		err := m.Request("yard.enqueue.once", `{"params":{},"unique_key":"`+key+`"}`, &a)
		var later *api.Error
		if errors.As(err, &later) && later.Code == "503" {
			continue
		}
		if err != nil {
			t.Errorf("%s at %s: %v", key, m.Name, err)
		}
		return a
	}
}

func overhopUnique(t *testing.T, c *overhop.Client, key string) (a enqueueReply) {
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

// guardKeyCount returns the number of guard keys in the status.
func guardKeyCount(t *testing.T, m *clustertest.Member) int {
	t.Helper()
	var status struct {
		Held int `json:"held_keys"`
	}
	out, code := command(t, m, "status", "--json")
	if err := json.Unmarshal([]byte(out), &status); code != 0 || err != nil {
		t.Fatalf("status printed %s (exit code %d): %v", out, code, err)
	}
	return status.Held
}

// guardKeys checks the guard keys over all transports.
func guardKeys(t *testing.T, cl *clustertest.Cluster) {
	a, b, c := cl.Members[0], cl.Members[1], cl.Members[2]
	a.AddQueue(t, "guarded", 0)
	before := guardKeyCount(t, a)
	var first, second enqueueReply
	const debounced = `{"params":{"i":%d},"debounce_key":"guarded","debounce_ms":%d}`
	if err := a.Request("yard.enqueue.guarded", fmt.Sprintf(debounced, 1, 3_600_000), &first); err != nil || first.Debounced {
		t.Fatal(first, err)
	}
	if err := b.Request("yard.enqueue.guarded", fmt.Sprintf(debounced, 2, 1), &second); err != nil || !second.Debounced || second.ID != first.ID {
		t.Fatal(second, err)
	}
	c.Worker(t, "guarded", 1, echo)
	if j := c.WaitOutcome(t, first.ID); j.State != "completed" || string(j.Result) != `{"i":2}` {
		t.Errorf("the debounced job is %+v with result %s", j, j.Result)
	}

	const limited = `{"params":{},"rate_limit_key":"guarded","rate_limit_ms":3600000}`
	if err := a.Request("yard.enqueue.guarded", limited, nil); err != nil {
		t.Fatal(err)
	}
	err := b.Request("yard.enqueue.guarded", limited, nil)
	wantCode(t, err, "429")
	var refused *api.Error
	if errors.As(err, &refused) && refused.RetryAfter <= 0 {
		t.Errorf("refused without a time: %v", err)
	}

	// A plain publisher gets no answer, and makes no second job either.
	for _, key := range []string{"plain-1", "plain-2"} {
		if dup, err := publishJob(t, c, "guarded", key, `{"params":{},"unique_key":"plain"}`); err != nil || dup {
			t.Fatal(dup, err)
		}
	}
	var last enqueueReply
	if err := a.Request("yard.enqueue.guarded", `{"params":{},"unique_key":"plain"}`, &last); err != nil || !last.Duplicate {
		t.Errorf("after plain publishers: %+v, %v", last, err)
	}
	out, code := command(t, b, "enqueue", "guarded", "f", "--unique-key", "plain", "--json")
	var cli enqueueReply
	if err := json.Unmarshal([]byte(out), &cli); code != 0 || err != nil || cli != last {
		t.Errorf("the command line printed %s (exit code %d), want %+v", out, code, last)
	}
	cl.Eventually("all have run", func() error { return a.CheckCount("guarded", "completed", 3) })
	if held := guardKeyCount(t, a) - before; held != 2 { // a rate limit's and a unique key
		t.Errorf("%d more keys are held, want 2", held)
	}
}
