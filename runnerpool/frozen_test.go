package runnerpool

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// A runner that was stopped (SIGSTOP) has the request of a job in its socket and would run
// it once it is continued. Its process has ended when the node reports the outcome, so that no
// other run of the job can meet it.
func TestStop_FrozenRunner(t *testing.T) {
	for why, status := range map[job.RecallReason]job.Status{
		"": job.TimedOut, job.RecallCancelled: job.RunCancelled, job.RecallShutdown: job.Interrupted, job.RecallLease: job.Lost,
	} {
		t.Run("recalled "+string(why), func(t *testing.T) {
			t.Parallel()
			cfg := testConfig("", func(c *RunnerConfig) { c.CancelGrace = ptr(0.1) })
			cfg.TermGrace = ptr(0.1)
			y := startHarness(t, cfg)
			pid, err := strconv.Atoi(y.pid())
			if err != nil {
				t.Fatal(err)
			}
			freeze(t, pid)
			a := y.start("echo", func(a *job.Assignment) {
				if why == "" {
					a.Timeout = 300 * time.Millisecond
				}
			})
			if why != "" {
				y.awaitSent(a)
				y.Stop(job.Recall{Job: a.Job, N: a.N, Reason: why})
			}
			if o := y.awaitOutcome(); o.Status != status || !o.Started {
				t.Errorf("outcome is %s (started %t) %+v", o.Status, o.Started, o.Fault)
			}
			if s, ok := readStat(pid); ok && s.state != 'Z' && syscall.Kill(pid, 0) == nil {
				t.Errorf("the process is in the state %c when the outcome is reported", s.state)
			}
		})
	}
}

// freeze stops a process, and returns when all its threads are stopped. A thread that runs
// when the signal is sent goes on for a moment.
func freeze(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(testTimeout); !isFrozen(t, pid); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the process runs after SIGSTOP")
		}
	}
}

func isFrozen(t *testing.T, pid int) bool {
	t.Helper()
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err != nil {
			t.Fatal(err)
		}
		if s, ok := readStat(id); ok && s.state != 'T' {
			return false
		}
	}
	return true
}
