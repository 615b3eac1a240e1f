package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/cluster/embedded"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

var rewriteGolden = flag.Bool("rewrite", false, "rewrite the golden files")

// fakeAPI is a real NATS server whose endpoints send canned replies and record
// the requests.
type fakeAPI struct {
	url string
	c   *cluster.Server

	asOf     time.Time // if it is set, the node reaches no majority, and knows the yard as of then
	mu       sync.Mutex
	received []string // "<subject> <body>"
}

// cannedReplies are replies by subject: JSON as a string, an error, or a function
// of the request.
type cannedReplies map[string]any

func startFakeAPI(t *testing.T, canned cannedReplies) *fakeAPI {
	t.Helper()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	c, err := cluster.Start(t.Context(), embedded.Config{
		Node: "fake", Dir: t.TempDir(), ClientListen: "127.0.0.1:0", MaxStore: 1 << 30,
	}, log)
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeAPI{url: c.ClientURL(), c: c}
	ctx, cancel := context.WithCancel(context.Background())
	var loops sync.WaitGroup
	loops.Go(func() {
		if err := c.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	loops.Go(func() {
		if err := c.Serve(ctx, cluster.Service{Name: "yard-api", Version: "1.0.0", Endpoints: f.endpoints(canned)}); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		loops.Wait()
		c.Stop()
	})
	f.awaitEndpoints(t)
	return f
}

func (f *fakeAPI) endpoints(canned cannedReplies) []cluster.Endpoint {
	canned["yard.api.v1.hello"] = `{}`
	var all []cluster.Endpoint
	for subject, answer := range canned {
		name := strings.NewReplacer(".", "-", "*", "any").Replace(subject)
		all = append(all, cluster.Endpoint{Endpoint: api.Endpoint{Name: name, Subject: subject}, Handle: func(_ context.Context, r *cluster.Request) ([]byte, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.received = append(f.received, r.Token()+" "+string(r.Data))
			r.SetIndex(17)
			if !f.asOf.IsZero() {
				r.SetAsOf(f.asOf)
			}
			switch answer := answer.(type) {
			case error:
				return nil, answer
			case func([]byte) ([]byte, error):
				return answer(r.Data)
			}
			return []byte(answer.(string)), nil
		}})
	}
	return all
}

// awaitEndpoints blocks until the endpoints are subscribed; hello is among them.
func (f *fakeAPI) awaitEndpoints(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	client, err := cluster.Dial(ctx, f.url, cluster.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for {
		_, err := client.Request(ctx, "yard.api.v1.hello", nil)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("endpoints not ready: %v", err)
		}
	}
	f.requests()
}

// requests returns the requests since the last call.
func (f *fakeAPI) requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := f.received
	f.received = nil
	return asked
}

// cmdResult is the exit code and the output of a command line.
type cmdResult struct {
	code     int
	out, err string
}

func (f *fakeAPI) run(t *testing.T, args ...string) cmdResult { return f.runIn(t, "", args...) }

func (f *fakeAPI) runIn(t *testing.T, in string, args ...string) cmdResult {
	t.Helper()
	return runLine(t, in, append(args, "--server", f.url)...)
}

func runLine(t *testing.T, in string, args ...string) cmdResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var out, errs bytes.Buffer
	code := Run(ctx, args, Streams{In: strings.NewReader(in), Out: &out, Err: &errs}, Program{Version: "1.2.3"})
	return cmdResult{code, out.String(), errs.String()}
}

// testRoot returns the tree of commands.
func testRoot() *cobra.Command {
	env := new(command.Env)
	env.Getenv = func(string) string { return "" }
	return newRoot(env)
}

// unsetNodeVariables removes the variables of the flags of 'yardmaster node' from the
// environment, and restores them when the test ends.
func unsetNodeVariables(t *testing.T) {
	t.Helper()
	for _, name := range []string{"YARD_NODE_NAME", "YARD_NODE_DATA_DIR", "YARD_NATS_LISTEN", "YARD_HTTP_LISTEN", "YARD_RAFT_LISTEN", "YARD_NODE_LOG_LEVEL"} {
		t.Setenv(name, "")
		os.Unsetenv(name)
	}
}

// golden compares got with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *rewriteGolden {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func sameJSON(t *testing.T, got, want string) {
	t.Helper()
	var g, w any
	if err := json.Unmarshal([]byte(got), &g); err != nil {
		t.Fatalf("%q is not JSON: %v", got, err)
	}
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatalf("%q is not JSON: %v", want, err)
	}
	if diff := cmp.Diff(w, g); diff != "" {
		t.Errorf("JSON (-want +got):\n%s", diff)
	}
}
