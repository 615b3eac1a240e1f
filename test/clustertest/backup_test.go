package clustertest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/cli"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/node/config"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// runCommand runs a command line against a member and returns what it wrote to the
// standard output and error, and its exit code.
func runCommand(t *testing.T, m *clustertest.Member, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, err bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	args = append([]string{"--server", m.Node().Addresses().NATS}, args...)
	code = cli.Run(ctx, args, cli.Streams{Out: &out, Err: &err}, cli.Program{Version: "v0.0.0-test"})
	return out.String(), err.String(), code
}

// mustRunCommand is like runCommand, and fails the test unless the exit code is 0. It
// returns the standard output.
func mustRunCommand(t *testing.T, m *clustertest.Member, args ...string) string {
	t.Helper()
	stdout, stderr, code := runCommand(t, m, args...)
	if code != 0 {
		t.Fatalf("%s: %d: %s", strings.Join(args, " "), code, stdout+stderr)
	}
	return stdout
}

// savedState is the content of a cluster at the time of its backup.
type savedState struct {
	done, failed, large, stay, fresh job.ID
	first                            *overhop.Quest // of the job stay, which was running
	later                            *overhop.Quest // of a job that was waiting at the backup and ran later
}

// TestBackup_SingleToCluster backs up a standalone node while a job runs, restores
// the backup into three nodes, and a backup of these into one.
func TestBackup_SingleToCluster(t *testing.T) {
	t.Parallel()
	var s savedState
	one, three := filepath.Join(t.TempDir(), "one.tar"), filepath.Join(t.TempDir(), "three.tar")
	for _, step := range []struct {
		name string
		do   func(t *testing.T)
	}{
		{"save one", func(t *testing.T) { s.backupSingle(t, one) }},
		{"one into three", func(t *testing.T) { s.restoreToThree(t, one, three) }},
		{"three into one", func(t *testing.T) { s.restoreToSingle(t, three) }},
	} {
		if !t.Run(step.name, step.do) {
			return
		}
	}
}

func (s *savedState) backupSingle(t *testing.T, file string) {
	one := clustertest.Start(t, 1, largeStore).Members[0]
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
	mustRunCommand(t, one, "backup", file)
	one.Worker(t, "later", 1, holdUntil(old, release))
	s.later = <-old
	refusesDamaged(t, one, file)
}

func (s *savedState) restoreToThree(t *testing.T, file, next string) {
	three := clustertest.Start(t, 3, largeStore)
	a, b := three.Members[0], three.Members[1]
	var report struct {
		Exact     bool `json:"exact"`
		GivenBack int  `json:"given_back"`
		Lanes     int  `json:"lanes"`
	}
	if err := json.Unmarshal([]byte(mustRunCommand(t, a, "restore", file, "--json")), &report); err != nil {
		t.Fatal(err)
	}
	if report.GivenBack != 1 || report.Lanes != 3 {
		t.Errorf("report %+v: want one job given back, three lanes", report)
	}
	three.WaitReady()
	if _, output, code := runCommand(t, b, "restore", file); code == 0 || !strings.Contains(output, "accepted jobs") {
		t.Errorf("a second restore ended with %d: %s", code, output)
	}
	s.check(t, b)

	// Nothing that the old cluster did after the backup counts.
	again, release := make(chan *overhop.Quest, 8), make(chan struct{})
	three.Members[0].Worker(t, "later", 1, holdUntil(again, release))
	if same := <-again; same.JID != s.later.JID || same.Attempt != s.later.Attempt || same.Fence <= s.later.Fence {
		t.Errorf("restored: %s attempt %d fence %d, the old cluster went on to %s attempt %d fence %d", same.JID, same.Attempt, same.Fence, s.later.JID, s.later.Attempt, s.later.Fence)
	}
	staleWorker(t, b, s.later)
	three.Members[2].Worker(t, "mail", 1, holdUntil(again, release))
	first, second := s.first, <-again
	if second.JID != first.JID || second.Fence <= first.Fence || second.Attempt != first.Attempt || second.Token == first.Token {
		t.Errorf("restored: %s attempt %d fence %d, saved: %s attempt %d fence %d; tokens must differ",
			second.JID, second.Attempt, second.Fence, first.JID, first.Attempt, first.Fence)
	}
	staleWorker(t, b, first)
	close(release)
	if j := b.WaitState(t, s.stay.String(), "completed"); string(j.Result) != "7" {
		t.Errorf("the job ended with %s", j.Result)
	}
	s.fresh = a.Enqueue(t, "mail", `{"function":"do"}`)
	b.WaitState(t, s.fresh.String(), "completed")
	saveOverHTTP(t, b, next)
	mustRunCommand(t, b, "backup", "verify", next)
}

// saveOverHTTP saves a backup of the member's cluster, as curl does.
func saveOverHTTP(t *testing.T, m *clustertest.Member, file string) {
	t.Helper()
	response, err := http.Post("http://"+m.Node().Addresses().HTTP+"/v1/backup", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	out, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = io.Copy(out, response.Body); err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v", response.Status, err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}

func (s *savedState) restoreToSingle(t *testing.T, file string) {
	last := clustertest.Start(t, 1, largeStore).Members[0]
	mustRunCommand(t, last, "restore", file)
	for _, id := range []job.ID{s.done, s.stay, s.fresh} {
		last.WaitState(t, id.String(), "completed")
	}
	last.Worker(t, "mail", 1, func(context.Context, *overhop.Quest) (overhop.Raw, error) { return nil, nil })
	last.WaitState(t, last.Enqueue(t, "mail", `{"function":"do"}`).String(), "completed")
}

// holdUntil returns a handler that sends each quest to given and completes it with the
// result 7 when release is closed.
func holdUntil(given chan<- *overhop.Quest, release <-chan struct{}) overhop.Handler {
	return func(ctx context.Context, q *overhop.Quest) (overhop.Raw, error) {
		given <- q
		select {
		case <-release:
		case <-ctx.Done():
		}
		return overhop.AppendInt(nil, 7), nil
	}
}

// staleWorker connects with the lease of a job from the old cluster, which is now
// running under another lease: everything it reports about the job must be refused.
func staleWorker(t *testing.T, m *clustertest.Member, q *overhop.Quest) {
	t.Helper()
	m.WaitState(t, q.JID, "active") // as far as this member has applied the ledger
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
			t.Errorf("a worker of the old cluster, %s: %v", what, err)
		}
	}
	if err := beat(c, q); err == nil {
		t.Error("a worker of the old cluster kept its job")
	}
	if j := m.Job(t, q.JID); j.State != "active" {
		t.Errorf("the job is %s", j.State)
	}
}

// largeStore makes the limit of storage so high that the space of removed streams does
// not matter: members report it only every ten seconds.
func largeStore(c *config.Config) { c.NATS.MaxStore = 400 << 30 }

// check checks that the content of the backup has been restored.
func (s *savedState) check(t *testing.T, m *clustertest.Member) {
	t.Helper()
	if j := m.Job(t, s.done.String()); j.State != "completed" || string(j.Result) != "42" {
		t.Errorf("completed job was restored as %s with %s", j.State, j.Result)
	}
	m.WaitState(t, s.failed.String(), "failed")
	m.WaitState(t, s.stay.String(), "waiting")
	if j := m.Job(t, s.large.String()); j.State != "waiting" || len(j.Params) < 200<<10 {
		t.Errorf("large job was restored as %s with %d bytes", j.State, len(j.Params))
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
		q, err := m.Client().Request(shortContext(t), "yard.api.v1.queue.show", []byte(`{"name":"`+name+`"}`))
		if err != nil || !strings.Contains(string(q), want) {
			t.Errorf("queue %s: %s, %v", name, q, err)
		}
	}
	if err := m.API("cron.show", map[string]any{"name": "nightly"}, nil); err != nil {
		t.Errorf("cron entry: %v", err)
	}
	duplicate, err := m.Client().Request(shortContext(t), "yard.enqueue.mail", []byte(`{"id":"done","function":"do"}`))
	if err != nil || !strings.Contains(string(duplicate), `"duplicate":true`) {
		t.Errorf("a repeated key: %s, %v", duplicate, err)
	}
}

// refusesDamaged checks that a damaged file is refused before anything is changed.
func refusesDamaged(t *testing.T, m *clustertest.Member, file string) {
	t.Helper()
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string][]byte{
		"cut":   whole[:len(whole)/2],
		"short": whole[:len(whole)-3<<10],
		"bit":   flipBit(whole, len(whole)/3),
		"empty": nil,
	} {
		path := file + "." + name
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, verb := range [][]string{{"backup", "verify", path}, {"restore", path}} {
			if _, output, code := runCommand(t, m, verb...); code == 0 || !strings.Contains(output, "damaged") {
				t.Errorf("%v ended with %d: %s", verb, code, output)
			}
		}
	}
}

// flipBit returns a copy of b with a changed bit at or after position at: in the first run
// of bytes that are not zero, because the padding of an archive has no meaning.
func flipBit(b []byte, at int) []byte {
	c := bytes.Clone(b)
	for at < len(c)-32 && bytes.IndexByte(c[at:at+32], 0) >= 0 {
		at++
	}
	c[at+16] ^= 4
	return c
}
