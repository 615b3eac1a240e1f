package catalogue

import (
	"fmt"
	"syscall"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/drill"
	"github.com/yardmaster-dev/yardmaster/test/must"
	"github.com/yardmaster-dev/yardmaster/test/procstat"
)

// Drills that stop nodes with SIGSTOP and resume them.
var pauses = []drill.Drill{
	{
		Number: 7, Name: "pause-authority", Breaks: "SIGSTOP the authority for longer than its lease, then resume it",
		Promises: "another node takes over; nothing that the old authority still sends has an effect",
		Run: func(s *drill.Harness) {
			s.SetTargets("pause", drill.Limits{Dispatch: 10 * time.Second})
			pauseRepeatedly(s, func(authority *drill.Node) *drill.Node { return authority })
		},
	},
	{
		Number: 8, Name: "pause-node", Breaks: "SIGSTOP a node with its runners while it runs jobs, for longer than their leases",
		Promises: "two runs of a job overlap only after the lease of the first has expired; one outcome counts",
		Run: func(s *drill.Harness) {
			pauseRepeatedly(s, func(authority *drill.Node) *drill.Node { return other(s, authority) })
		},
	},
}

// pauseRepeatedly repeatedly stops the node that choose selects, with all its
// processes, for longer than any lease, and resumes it.
func pauseRepeatedly(s *drill.Harness, choose func(authority *drill.Node) *drill.Node) {
	s.AddQueues("slow") // its jobs run for longer than their leases last without their node
	for range 2 {
		s.AddWorker(drill.Task{Queue: "slow", Credits: 8, Hold: 12 * time.Second})
	}
	runRounds(s, 4, func(authority *drill.Node) {
		s.Sleep(3 * time.Second) // until jobs of the queue "slow" run everywhere
		victim := choose(authority)
		pids := victim.Tree()
		s.Fault("pause", fmt.Sprintf("%s with %d processes; the authority is %s", victim.Name, len(pids), authority.Name))
		signal(syscall.SIGSTOP, pids)
		s.Pause(14*time.Second, 18*time.Second)
		signal(syscall.SIGCONT, pids)
		s.Logf("%s resumed", victim.Name)
		s.Recover()
	}, &drill.Load{Queue: "slow", Parallel: 1, Pace: time.Second},
		&drill.Load{Queue: drill.RunnerQueue, Prefix: "sleep", Function: "demo#sleep", JobParams: `{"ms":2000}`, Parallel: 1, Pace: 400 * time.Millisecond})
}

// signal sends a signal to processes.
func signal(sig syscall.Signal, pids []procstat.PID) {
	for _, pid := range pids {
		if err := syscall.Kill(int(pid), sig); err != nil {
			must.Do(fmt.Errorf("send %s to process %d: %w", sig, pid, err))
		}
	}
}
