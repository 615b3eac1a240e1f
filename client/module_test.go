package client_test

import (
	"archive/zip"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// outsideProgram is a program in another module.
const outsideProgram = `package main

import (
	"context"
	"fmt"
	"time"

	"%s/client"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_, err := client.Connect(ctx, client.Options{Nodes: []string{"127.0.0.1:1"}})
	fmt.Println("outside:", err != nil)
}
`

// TestModule_OutsideTheTree builds a program in another module, which gets this
// module as users do: by version, from a module proxy, here one in a directory.
func TestModule_OutsideTheTree(t *testing.T) {
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
	run := exec.Command("go", "run", "-mod=mod", "-modcacherw", ".")
	run.Dir = outside
	run.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=", "GOSUMDB=off", "GONOSUMDB=*", "GONOPROXY=none", "GOPRIVATE=",
		"GOMODCACHE="+t.TempDir(), // so that no earlier run's copy is taken for this one
		"GOPROXY=file://"+proxy+",file://"+filepath.Join(env[0], "cache", "download")+","+env[1])
	out, err := run.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "outside: true") {
		t.Fatalf("%v\n%s", err, out)
	}
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
