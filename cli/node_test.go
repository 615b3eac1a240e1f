package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/testnet"
)

// background runs a verb until the test ends.
func background(t *testing.T, args ...string) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var errs lockedBuffer
	var loop sync.WaitGroup
	loop.Go(func() {
		if code := Run(ctx, args, Streams{In: strings.NewReader(""), Out: &errs, Err: &errs}, Program{Version: "v1.2.3"}); code != 0 {
			t.Errorf("%v ended with %d: %s", args, code, errs.String())
		}
	})
	t.Cleanup(func() { stop(); loop.Wait() })
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// Most verbs work against a real node with one worker.
func TestAgainstNode(t *testing.T) {
	unsetNodeVariables(t)
	t.Setenv("YARD_SERVER_HOST", "127.0.0.1")
	t.Setenv("YARD_SERVER_PORT", "1")
	server, edge := testnet.Address(t), testnet.Address(t)
	f := &fakeAPI{url: "nats://" + server} // the real node
	background(t, "node", "--name", "solo", "--data-dir", t.TempDir(), "--nats-listen", server, "--raft-listen", "127.0.0.1:1",
		"--edge-listen", edge, "--http-listen", "127.0.0.1:0", "--log-level", "error")
	await(t, f, "ready", "health")

	must := func(code int, wants []string, args ...string) string {
		t.Helper()
		got := f.run(t, args...)
		if got.code != code {
			t.Errorf("%v: code %d, %s%s", args, got.code, got.out, got.err)
		}
		for _, want := range wants {
			if !strings.Contains(got.out+got.err, want) {
				t.Errorf("%v: %q is not in\n%s%s", args, want, got.out, got.err)
			}
		}
		return strings.TrimSpace(got.out)
	}
	must(0, []string{"mail", "running", "4"}, "queue", "add", "mail", "--concurrency", "4")
	must(1, []string{"queue mail: queue exists already"}, "queue", "add", "mail")
	background(t, "worker", "--addr", edge, "--queue", "mail", "--credits", "2")

	must(0, []string{"completed", `{"n":12345678901234567}`}, "enqueue", "mail", "echo", "--params", `{"n":12345678901234567}`, "--id", "k1", "--wait")
	must(0, []string{"the job already existed"}, "enqueue", "mail", "echo", "--params", `{"n":12345678901234567}`, "--id", "k1")
	must(1, []string{"failed on request"}, "enqueue", "mail", "fail", "--params", `{"final":true}`, "--wait")
	must(0, []string{"2 of 3"}, "enqueue", "mail", "retry", "--max-attempts", "3", "--retry-interval", "10ms", "--wait")
	lines := filepath.Join(t.TempDir(), "lines")
	if err := os.WriteFile(lines, []byte("{\"function\":\"echo\",\"id\":\"k1\"}\n{\"function\":\"echo\"}\n{\"params\":{},\"priority\":-1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	must(1, []string{"\tduplicate\n", "\taccepted\n", "3\t-\trefused: priority is -1", "1 accepted, 1 already known, 1 refused"}, "enqueue", "mail", "--bulk", lines)
	later := must(0, nil, "enqueue", "mail", "echo", "--in", "1d")
	// An accepted job is on disk, and in the ledger a moment later.
	await(t, f, later, "job", "list", "mail", "--state", "delayed")
	must(0, []string{"delayed", later}, "job", "list", "mail", "--state", "delayed")
	must(0, []string{"completed"}, "job", "show", "k1", "--queue", "mail")
	must(0, []string{"cancelled"}, "job", "cancel", later)
	must(0, []string{"waiting"}, "job", "retry", later)
	for _, verb := range []string{"show", "wait", "retry", "cancel"} {
		must(3, []string{"job does not exist", "retention index.age"}, "job", verb, "0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10")
	}
	must(0, []string{"paused"}, "queue", "pause", "mail")
	must(1, []string{"queue mail: queue is paused already"}, "queue", "pause", "mail")
	must(0, []string{"running"}, "queue", "resume", "mail")
	must(0, []string{"solo", "leader", "YARD_JOBS_0", "v1.2.3"}, "status")
	must(0, []string{"authority=owner=solo", "readiness=ready"}, "snapshot")
	must(0, []string{"DispatchQueued", `"target": "anna"`}, "exec", `{"command":"QueueDispatch","request_id":"r1","target":"anna"}`)
	must(1, []string{"dispatch error: invalid transition for r1: pending -> delivered"}, "exec", `{"command":"MarkDelivered","request_id":"r1"}`)
	must(0, []string{"dispatch-failed ", "failed on request"}, "events", "--type", "dispatch-failed", "--queue", "mail")
	testFollow(t, f)
	testPanic(t, f, edge)
	testExitCodes(t, f)
}

// await repeats a command line until it succeeds and its output contains want.
func await(t *testing.T, f *fakeAPI, want string, args ...string) {
	t.Helper()
	var last cmdResult
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		if last = f.run(t, args...); last.code == 0 && strings.Contains(last.out, want) {
			return
		}
	}
	t.Fatalf("%v did not show %q: %+v", args, want, last)
}

// testFollow checks that --follow shows an event that happens meanwhile.
func testFollow(t *testing.T, f *fakeAPI) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	out := &firstWrite{seen: make(chan struct{})}
	var code int
	var follow sync.WaitGroup
	follow.Go(func() {
		args := []string{"events", "--follow", "--type", "snapshot-captured", "--json", "--since", "1h", "--server", f.url}
		code = Run(ctx, args, Streams{Out: out, Err: out}, Program{})
	})
	f.run(t, "exec", `{"command":"CaptureSnapshot"}`)
	select {
	case <-out.seen:
	case <-time.After(10 * time.Second):
		t.Error("the event was not seen")
	}
	stop()
	follow.Wait()
	var e struct{ Event string }
	if err := json.Unmarshal([]byte(out.String()), &e); err != nil || e.Event != "SnapshotCaptured" || code != 0 {
		t.Errorf("followed %q, code %d, %v", out.String(), code, err)
	}
}

// firstWrite is a buffer that closes seen on the first write.
type firstWrite struct {
	lockedBuffer
	once sync.Once
	seen chan struct{}
}

func (f *firstWrite) Write(p []byte) (int, error) {
	defer f.once.Do(func() { close(f.seen) })
	return f.lockedBuffer.Write(p)
}
