package procstat

import (
	"bufio"
	"os/exec"
	"testing"
	"time"
)

// busy is a shell command that starts a process, which computes for a while.
const busy = `sh -c 'i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done'`

// TestPID_TreeCPU checks that the processor time of a tree includes that of a child that
// has exited, which the process alone does not have.
func TestPID_TreeCPU(t *testing.T) {
	cmd := exec.Command("sh", "-c", busy+`; echo done; read line`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer in.Close()
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	p := PID(cmd.Process.Pid)
	if own, tree := p.CPU(), p.TreeCPU(); tree < own+20*time.Millisecond {
		t.Errorf("the tree used %v, its root %v: the child is missing", tree, own)
	}
}
