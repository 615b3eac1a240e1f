package program

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// roleEnv selects which process of the test the test binary is.
const roleEnv = "YARD_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "init":
		os.Setenv(roleEnv, "child")
		file, _ := os.Executable()
		os.Exit(serveAsInit(file, nil))
	case "child":
		child()
	}
	os.Exit(m.Run())
}

// child makes an orphan process, prints "reaped" when that has been reaped, and
// exits with 7 on SIGTERM.
func child() {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM)
	out, err := exec.Command("sh", "-c", "true & echo $!").Output()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	orphan, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for !errors.Is(syscall.Kill(orphan, 0), syscall.ESRCH) { // a zombie can still be signalled
		runtime.Gosched()
	}
	fmt.Println("reaped")
	<-asked
	os.Exit(7)
}

func TestServeAsInit(t *testing.T) {
	file, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(file)
	cmd.Env = append(os.Environ(), roleEnv+"=init")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Skipf("a process namespace cannot be created on this machine: %v", err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "reaped" {
		t.Errorf("the child printed %q, want \"reaped\"", lines.Text())
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("ended with %v, want exit code 7 of the child", err)
	}
}
