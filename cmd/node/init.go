package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// The first process of a container has two duties that no other has: to reap
// whatever loses its parent, as what a runner has forked does, and to ask its
// own child to end when it is asked, because the kernel does not end it by
// itself. Many containers have an init for that; where there is none, the
// program is its own.

// firstProcess is what the kernel gives the first process of a container.
const firstProcess = 1

// passedOn are the signals that are the child's.
var passedOn = []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}

// serveAsInit runs the command as a child, passes signals on, reaps what ends,
// and gives the child's exit code, or 128 and the signal that ended it, as
// shells do. The child has a process group of its own: a Ctrl-C reaches it
// once, through us.
func serveAsInit(program string, args []string) int {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, passedOn...)
	defer signal.Stop(signals)
	child := exec.Command(program, args...)
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := child.Start(); err != nil {
		fmt.Fprintf(os.Stderr, "yardmaster: start the node as a child of process 1: %v\n", err)
		return 1
	}
	pid := child.Process.Pid
	ended := make(chan int, 1)
	go func() { ended <- reap(pid) }() // ends with the child, for which we wait
	for {
		select {
		case s := <-signals:
			_ = syscall.Kill(pid, s.(syscall.Signal)) // it may just have ended
		case code := <-ended:
			return code
		}
	}
}

// reap waits for every process that ends, until the child has.
func reap(child int) int {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil: // nobody is left, and the child was not seen: cannot be
			fmt.Fprintf(os.Stderr, "yardmaster: wait for the node: %v\n", err)
			return 1
		case pid == child && status.Signaled():
			return 128 + int(status.Signal())
		case pid == child:
			return status.ExitStatus()
		}
	}
}
