package client_test

import (
	"archive/zip"
	"bufio"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/procs"
)

// outsideProgram is a program in another module: it enqueues jobs and runs them, over the
// nodes of its arguments, and prints when a third and when all have ended.
const outsideProgram = `package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"%s/client"
)

type Greet struct {
	Number int ` + "`json:\"number\"`" + `
}

func (Greet) Kind() string { return "greet" }

const jobs = 300

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	c, err := client.Connect(ctx, os.Args[1:]...)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	w := c.Worker()
	w.Concurrency = 4
	client.Handle(w, func(ctx context.Context, job *client.Job[Greet]) (string, error) {
		time.Sleep(20 * time.Millisecond)
		return fmt.Sprint("hello ", job.Args.Number), nil
	})
	var running sync.WaitGroup
	running.Go(func() {
		if err := w.Run(ctx); err != nil {
			log.Fatal(err)
		}
	})
	var ended atomic.Int64
	var waiting sync.WaitGroup
	for i := range jobs {
		waiting.Go(func() {
			got, err := client.Call[string](ctx, c, Greet{i}, client.Key(fmt.Sprint("greet ", i)))
			if err != nil || got != fmt.Sprint("hello ", i) {
				log.Fatalf("job %%d: %%q, %%v", i, got, err)
			}
			if ended.Add(1) == jobs/3 {
				fmt.Println("a third")
			}
		})
	}
	waiting.Wait()
	fmt.Println("all", ended.Load())
	if err := w.Stop(ctx); err != nil {
		log.Fatal(err)
	}
	running.Wait()
}
`

// TestModule_OutsideTheTree builds a program in another module, which gets this
// module as users do: by version, from a module proxy, here one in a directory. The program
// runs against three nodes, the authority of which is killed.
func TestModule_OutsideTheTree(t *testing.T) {
	binary := os.Getenv("YARD_BIN")
	if binary == "" {
		t.Skip("needs the program at YARD_BIN")
	}
	program := buildOutside(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cl, err := procs.Start(ctx, procs.Options{Nodes: 3, Dir: t.TempDir(), Binary: binary})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Stop()
	var nodes []string
	for _, n := range cl.Nodes {
		nodes = append(nodes, n.Edge)
	}
	run := exec.CommandContext(ctx, program, nodes...)
	var faults strings.Builder
	run.Stderr = &faults
	out, err := run.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	last := ""
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if last = lines.Text(); last == "a third" {
			victim, err := cl.Authority(ctx)
			if err != nil {
				t.Error(err)
				victim = cl.Nodes[0]
			}
			victim.Kill()
		}
	}
	if err := run.Wait(); err != nil || last != "all 300" {
		t.Errorf("the program printed %q last, %v\n%s", last, err, &faults)
	}
}

// buildOutside builds outsideProgram and returns its path.
func buildOutside(t *testing.T) string {
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	path := string(regexp.MustCompile(`(?m)^module (\S+)$`).FindSubmatch(mod)[1])
	if regexp.MustCompile(`(?m)^(replace|exclude)\b`).Match(mod) {
		t.Error("go.mod replaces or excludes modules, which go install of a version refuses")
	}
	const version = "v0.1.0-test"
	proxy := filepath.Join(t.TempDir(), "proxy")
	dir := filepath.Join(proxy, path, "@v")
	write(t, filepath.Join(dir, "list"), version+"\n")
	write(t, filepath.Join(dir, version+".info"), fmt.Sprintf(`{"Version":%q}`, version))
	write(t, filepath.Join(dir, version+".mod"), string(mod))
	pack(t, root, filepath.Join(dir, version+".zip"), path+"@"+version+"/")

	outside := t.TempDir()
	write(t, filepath.Join(outside, "main.go"), fmt.Sprintf(outsideProgram, path))
	write(t, filepath.Join(outside, "go.mod"), fmt.Sprintf("module example.com/outside\n\ngo 1.26\n\nrequire %s %s\n", path, version))
	env := goEnv(t, "GOMODCACHE", "GOPROXY")
	program := filepath.Join(outside, "program")
	build := exec.Command("go", "build", "-mod=mod", "-modcacherw", "-o", program, ".")
	build.Dir = outside
	build.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=", "GOSUMDB=off", "GONOSUMDB=*", "GONOPROXY=none", "GOPRIVATE=",
		"GOMODCACHE="+t.TempDir(), // so that no earlier run's copy is taken for this one
		"GOPROXY=file://"+proxy+",file://"+filepath.Join(env[0], "cache", "download")+","+env[1])
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// goEnv returns what go env prints for each name.
func goEnv(t *testing.T, names ...string) []string {
	t.Helper()
	out, err := exec.Command("go", append([]string{"env"}, names...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// pack writes the sources below root to a module zip, whose entries begin with
// prefix.
func pack(t *testing.T, root, name, prefix string) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z := zip.NewWriter(f)
	err = filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		below, _ := filepath.Rel(root, file)
		switch base := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && file != root && (base[0] == '.' || below == "bin"):
			return filepath.SkipDir
		case d.IsDir(), !strings.HasSuffix(base, ".go") && below != "go.mod" && below != "go.sum" && below != "LICENSE":
			return nil
		}
		in, err := os.Open(file)
		if err != nil {
			return err
		}
		defer in.Close()
		out, err := z.Create(prefix + filepath.ToSlash(below))
		if err == nil {
			_, err = io.Copy(out, in)
		}
		return err
	})
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}
