package program

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// The first process of a container has two special duties. It must reap orphaned
// processes, such as those forked by runners. And it must handle SIGTERM itself,
// because the kernel does not apply the default action to it. Many containers
// have an init process for that; in the others, this program is its own.

// initPID is the process id of the first process of a container.
const initPID = 1

// forwardedSignals are the signals that are forwarded to the child.
var forwardedSignals = []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}

// serveAsInit runs the command as a child, forwards signals to it and reaps
// orphaned processes until it ends. It returns the child's exit code, or 128 plus
// the number of the signal that ended it, as shells do. The child has its own
// process group, so that a Ctrl-C reaches it only once, forwarded.
func serveAsInit(program string, args []string) int {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwardedSignals...)
	defer signal.Stop(signals)
	child := exec.Command(program, args...)
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := child.Start(); err != nil {
		fmt.Fprintf(os.Stderr, "yardmaster: start the node as a child of the init process: %v\n", err)
		return 1
	}
	pid := child.Process.Pid
	ended := make(chan int, 1)
	go func() { ended <- reap(pid) }() // ends when the child has ended
	for {
		select {
		case s := <-signals:
			_ = syscall.Kill(pid, s.(syscall.Signal)) // fails if the child has just ended
		case code := <-ended:
			return code
		}
	}
}

// reap reaps processes until the child has ended, and returns the exit code for
// it.
func reap(child int) int {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil: // not expected: the child is still to be reaped
			fmt.Fprintf(os.Stderr, "yardmaster: wait for the node: %v\n", err)
			return 1
		case pid == child && status.Signaled():
			return 128 + int(status.Signal())
		case pid == child:
			return status.ExitStatus()
		}
	}
}
