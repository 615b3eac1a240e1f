package outbox

import (
	"bufio"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// TestExample runs examples/sort.
func TestExample(t *testing.T) {
	cl, _ := connect(t)
	program := filepath.Join(t.TempDir(), "sort")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Dir = filepath.Join("..", "..", "examples", "sort")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command(program, nodesOf(cl)...)
	cmd.Dir = t.TempDir() // for its database
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	output := bufio.NewScanner(stdout)
	if want := "sorted strings: [bear tiger whale]"; !output.Scan() || output.Text() != want {
		t.Errorf("it printed %q, want %q", output.Text(), want)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
