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

	"yardmaster/cluster"

	"github.com/google/go-cmp/cmp"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// fakeYard is a real server whose endpoints give canned answers and remember
// what they were asked.
type fakeYard struct {
	url string
	c   *cluster.Cluster

	mu    sync.Mutex
	asked []string // "<subject> <body>"
}

// answers are by subject: JSON, or an error.
type answers map[string]any

func startFake(t *testing.T, canned answers) *fakeYard {
	t.Helper()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	c, err := cluster.Start(t.Context(), cluster.Config{
		Node: "fake", Dir: t.TempDir(), Client: "127.0.0.1:0", MaxStore: 1 << 30,
	}, log)
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeYard{url: c.ClientURL(), c: c}
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

func (f *fakeYard) endpoints(canned answers) []cluster.Endpoint {
	canned["yard.api.v1.hello"] = `{}`
	var all []cluster.Endpoint
	for subject, answer := range canned {
		name := strings.NewReplacer(".", "-", "*", "any").Replace(subject)
		all = append(all, cluster.Endpoint{Name: name, Subject: subject, Do: func(_ context.Context, r *cluster.Request) ([]byte, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.asked = append(f.asked, r.Token()+" "+string(r.Data))
			r.Shows(17)
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

// awaitEndpoints asks until the endpoints are there: they open one by one.
func (f *fakeYard) awaitEndpoints(t *testing.T) {
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
			t.Fatalf("endpoints do not open: %v", err)
		}
	}
	f.questions()
}

// questions gives what was asked since the last call.
func (f *fakeYard) questions() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := f.asked
	f.asked = nil
	return asked
}

// ran is how a command line went.
type ran struct {
	code     int
	out, err string
}

func (f *fakeYard) run(t *testing.T, args ...string) ran { return f.runIn(t, "", args...) }

func (f *fakeYard) runIn(t *testing.T, in string, args ...string) ran {
	t.Helper()
	return runLine(t, in, append(args, "--server", f.url)...)
}

func runLine(t *testing.T, in string, args ...string) ran {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var out, errs bytes.Buffer
	code := Run(ctx, args, Streams{In: strings.NewReader(in), Out: &out, Err: &errs}, Program{Version: "1.2.3"})
	return ran{code, out.String(), errs.String()}
}

// golden compares with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *rewrite {
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
