package nodetest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"yardmaster/cli"
	"yardmaster/edge/overhop"
	"yardmaster/internal/nodetest"
	"yardmaster/job"
	"yardmaster/node"
)

// typed carries out a command line against a member.
func typed(t *testing.T, m *nodetest.Member, args ...string) (said string, code int) {
	t.Helper()
	var out, err bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	args = append([]string{"--server", m.Node().Addresses().NATS}, args...)
	code = cli.Run(ctx, args, cli.Streams{Out: &out, Err: &err}, cli.Program{Version: "v0.0.0-test"})
	return out.String() + err.String(), code
}

func mustLine(t *testing.T, m *nodetest.Member, args ...string) string {
	t.Helper()
	said, code := typed(t, m, args...)
	if code != 0 {
		t.Fatalf("%s: %d: %s", strings.Join(args, " "), code, said)
	}
	return said
}

// saved is what a yard held when it was saved.
type saved struct {
	done, failed, large, stay, fresh job.ID
	first                            *overhop.Quest // of stay, which ran
	later                            *overhop.Quest // of a job that was waiting, and ran when the yard was saved
}

// TestBackup_SingleToCluster saves a yard of one node while a job runs, brings
// it back into three nodes, and that back into one.
func TestBackup_SingleToCluster(t *testing.T) {
	var s saved
	one, three := filepath.Join(t.TempDir(), "one.tar"), filepath.Join(t.TempDir(), "three.tar")
	for _, step := range []struct {
		name string
		do   func(t *testing.T)
	}{
		{"save one", func(t *testing.T) { s.saveOne(t, one) }},
		{"one into three", func(t *testing.T) { s.intoThree(t, one, three) }},
		{"three into one", func(t *testing.T) { s.intoOne(t, three) }},
	} {
		if !t.Run(step.name, step.do) {
			return
		}
	}
}

func (s *saved) saveOne(t *testing.T, file string) {
	one := nodetest.Start(t, 1, roomy).Members[0]
	one.AddQueue(t, "mail", 7)
	one.AddQueue(t, "held", 0)
	if err := one.API("queue.pause", map[string]any{"name": "held"}, nil); err != nil {
		t.Fatal(err)
	}
	if err := one.API("cron.add", map[string]any{"name": "nightly", "schedule": "0 3 1 1 *", "queue": "mail", "job": map[string]any{"function": "sweep"}}, nil); err != nil {
		t.Fatal(err)
	}
	old, release := make(chan *overhop.Quest, 1), make(chan struct{})
	defer close(release)
	one.Worker(t, "mail", 1, func(ctx context.Context, q *overhop.Quest) (overhop.Raw, error) {
		switch q.Function {
		case "fail":
			return nil, &overhop.FailError{Message: "no", Final: true}
		case "stay":
			old <- q
			select {
			case <-release:
			case <-ctx.Done():
			}
		}
		return overhop.AppendInt(nil, 42), nil
	})
	s.done = one.Enqueue(t, "mail", `{"id":"done","function":"do"}`)
	one.WaitState(t, s.done.String(), "completed")
	s.failed = one.Enqueue(t, "mail", `{"function":"fail"}`)
	one.WaitState(t, s.failed.String(), "failed")
	s.large = one.Enqueue(t, "held", fmt.Sprintf(`{"params":{"text":"%s"}}`, strings.Repeat("x", 200<<10)))
	s.stay = one.Enqueue(t, "mail", `{"function":"stay"}`)
	one.Enqueue(t, "later", `{"function":"stay"}`)
	one.WaitState(t, s.stay.String(), "active")
	s.first = <-old
	mustLine(t, one, "backup", file)
	one.Worker(t, "later", 1, stays(old, release))
	s.later = <-old
	spoiled(t, one, file)
}

func (s *saved) intoThree(t *testing.T, file, next string) {
	three := nodetest.Start(t, 3, roomy)
	a, b := three.Members[0], three.Members[1]
	var report struct {
		Exact     bool `json:"exact"`
		GivenBack int  `json:"given_back"`
		Lanes     int  `json:"lanes"`
	}
	if err := json.Unmarshal([]byte(mustLine(t, a, "restore", file, "--json")), &report); err != nil {
		t.Fatal(err)
	}
	if report.GivenBack != 1 || report.Lanes != 3 {
		t.Errorf("report %+v: want one job given back, three lanes", report)
	}
	three.WaitReady()
	if said, code := typed(t, b, "restore", file); code == 0 || !strings.Contains(said, "accepted jobs") {
		t.Errorf("a second restore ended with %d: %s", code, said)
	}
	s.holds(t, b)

	// Nothing of the yard that was saved counts here.
	again, release := make(chan *overhop.Quest, 8), make(chan struct{})
	three.Members[0].Worker(t, "later", 1, stays(again, release))
	if same := <-again; same.JID != s.later.JID || same.Attempt != s.later.Attempt || same.Fence <= s.later.Fence {
		t.Errorf("restored: %s attempt %d fence %d, the old yard went on to %s attempt %d fence %d", same.JID, same.Attempt, same.Fence, s.later.JID, s.later.Attempt, s.later.Fence)
	}
	outsider(t, b, s.later)
	three.Members[2].Worker(t, "mail", 1, stays(again, release))
	first, second := s.first, <-again
	if second.JID != first.JID || second.Fence <= first.Fence || second.Attempt != first.Attempt || second.Token == first.Token {
		t.Errorf("restored: %s attempt %d fence %d, saved: %s attempt %d fence %d; tokens must differ",
			second.JID, second.Attempt, second.Fence, first.JID, first.Attempt, first.Fence)
	}
	outsider(t, b, first)
	close(release)
	if j := b.WaitState(t, s.stay.String(), "completed"); string(j.Result) != "7" {
		t.Errorf("it ended with %s", j.Result)
	}
	s.fresh = a.Enqueue(t, "mail", `{"function":"do"}`)
	b.WaitState(t, s.fresh.String(), "completed")
	mustLine(t, b, "backup", next)
}

func (s *saved) intoOne(t *testing.T, file string) {
	last := nodetest.Start(t, 1, roomy).Members[0]
	mustLine(t, last, "restore", file)
	for _, id := range []job.ID{s.done, s.stay, s.fresh} {
		last.WaitState(t, id.String(), "completed")
	}
	last.Worker(t, "mail", 1, func(context.Context, *overhop.Quest) (overhop.Raw, error) { return nil, nil })
	last.WaitState(t, last.Enqueue(t, "mail", `{"function":"do"}`).String(), "completed")
}

// stays shows what it is given, and ends it with 7 when it is released.
func stays(given chan<- *overhop.Quest, release <-chan struct{}) overhop.Handler {
	return func(ctx context.Context, q *overhop.Quest) (overhop.Raw, error) {
		given <- q
		select {
		case <-release:
		case <-ctx.Done():
		}
		return overhop.AppendInt(nil, 7), nil
	}
}

// outsider comes back with a job that the saved yard gave it, and that runs here
// by another's hands: whatever it says of the job is refused.
func outsider(t *testing.T, m *nodetest.Member, q *overhop.Quest) {
	t.Helper()
	m.WaitState(t, q.JID, "active") // here, as far as this member has heard
	c := m.Overhop(t, overhop.Options{})
	for what, say := range map[string]func(func(overhop.Raw, error)){
		"ends it":       func(then func(overhop.Raw, error)) { c.Done(q, overhop.AppendInt(nil, 1), 0, then) },
		"fails it":      func(then func(overhop.Raw, error)) { c.Fail(q, overhop.Fail{Message: "no"}, then) },
		"gives it back": func(then func(overhop.Raw, error)) { c.Nack(q, overhop.Nack{}, then) },
	} {
		answered := make(chan error, 1)
		say(func(_ overhop.Raw, err error) { answered <- err })
		var refused *overhop.RemoteError
		if err := <-answered; !errors.As(err, &refused) {
			t.Errorf("a worker of the saved yard %s: %v", what, err)
		}
	}
	if err := beat(c, q); err == nil {
		t.Error("a worker of the saved yard keeps its job")
	}
	if j := m.Job(t, q.JID); j.State != "active" {
		t.Errorf("its job is %s", j.State)
	}
}

// roomy lets removed streams' room be no matter: members tell of it every ten
// seconds only.
func roomy(c *node.Config) { c.NATS.MaxStore = 400 << 30 }

// holds looks that what was saved is there.
func (s *saved) holds(t *testing.T, m *nodetest.Member) {
	t.Helper()
	if j := m.Job(t, s.done.String()); j.State != "completed" || string(j.Result) != "42" {
		t.Errorf("completed job came back as %s with %s", j.State, j.Result)
	}
	m.WaitState(t, s.failed.String(), "failed")
	m.WaitState(t, s.stay.String(), "waiting")
	if j := m.Job(t, s.large.String()); j.State != "waiting" || len(j.Params) < 200<<10 {
		t.Errorf("large job came back as %s with %d bytes", j.State, len(j.Params))
	}
	var letters struct {
		Letters []struct {
			ID string `json:"id"`
		} `json:"letters"`
	}
	if err := m.API("dlq.list", map[string]any{}, &letters); err != nil || len(letters.Letters) != 1 || letters.Letters[0].ID != s.failed.String() {
		t.Errorf("dead letters: %+v, %v", letters, err)
	}
	for name, want := range map[string]string{"mail": `"concurrency_limit":7`, "held": `"state":"paused"`} {
		q, err := m.Client().Request(soon(t), "yard.api.v1.queue.show", []byte(`{"name":"`+name+`"}`))
		if err != nil || !strings.Contains(string(q), want) {
			t.Errorf("queue %s: %s, %v", name, q, err)
		}
	}
	if err := m.API("cron.show", map[string]any{"name": "nightly"}, nil); err != nil {
		t.Errorf("cron entry: %v", err)
	}
	duplicate, err := m.Client().Request(soon(t), "yard.enqueue.mail", []byte(`{"id":"done","function":"do"}`))
	if err != nil || !strings.Contains(string(duplicate), `"duplicate":true`) {
		t.Errorf("a key that was used: %s, %v", duplicate, err)
	}
}

// spoiled looks that a damaged file is refused before anything is done.
func spoiled(t *testing.T, m *nodetest.Member, file string) {
	t.Helper()
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string][]byte{
		"cut":   whole[:len(whole)/2],
		"short": whole[:len(whole)-3<<10],
		"bit":   flipped(whole, len(whole)/3),
		"empty": nil,
	} {
		path := file + "." + name
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, verb := range [][]string{{"backup", "verify", path}, {"restore", path}} {
			if said, code := typed(t, m, verb...); code == 0 || !strings.Contains(said, "damaged") {
				t.Errorf("%v ended with %d: %s", verb, code, said)
			}
		}
	}
}

func flipped(b []byte, at int) []byte {
	c := bytes.Clone(b)
	c[at] ^= 4
	return c
}
