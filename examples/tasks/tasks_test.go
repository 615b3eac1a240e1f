package tasks

import (
	"bufio"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/yardmaster-dev/yardmaster/client"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// TestPrograms runs both programs with a node: two jobs run, the third one waits for
// tomorrow.
func TestPrograms(t *testing.T) {
	node := clustertest.Start(t, 1).Members[0].Node().Addresses().Overhop
	build := func(name string) (program string) {
		program = filepath.Join(t.TempDir(), name)
		if out, err := exec.Command("go", "build", "-o", program, "./"+name).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return program
	}
	out, err := exec.Command(build("enqueue"), node).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ids := regexp.MustCompile(`(?m)enqueued (\S+)$`).FindAllStringSubmatch(string(out), -1)
	if len(ids) != 3 {
		t.Fatalf("enqueue printed\n%s", out)
	}
	work := exec.Command(build("worker"), node)
	stderr, err := work.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := work.Start(); err != nil {
		t.Fatal(err)
	}
	missing := []string{"sending welcome to user 42", "resizing https://example.com/cat.jpg"}
	for lines := bufio.NewScanner(stderr); len(missing) > 0 && lines.Scan(); {
		for i, line := range missing {
			if strings.HasSuffix(lines.Text(), line) {
				missing = append(missing[:i:i], missing[i+1:]...)
				break
			}
		}
	}
	if err := work.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := work.Wait(); err != nil || len(missing) > 0 {
		t.Errorf("worker ended with %v and has not printed %q", err, missing)
	}
	c, err := client.Connect(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for i, want := range []string{"completed", "delayed", "completed"} {
		if j, err := c.Jobs().Get(t.Context(), ids[i][1]); err != nil || j.State != want {
			t.Errorf("job %d is %s, want %s: %v", i, j.State, want, err)
		}
	}
}
