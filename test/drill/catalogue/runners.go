package catalogue

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/test/drill"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// Drills with runners that misbehave or outlive their node.
var runners = []drill.Drill{
	{
		Number: 27, Name: "runners-misbehave", Breaks: "runners are killed, exit with code 0 during a job, are stopped, run beyond the job's timeout, and ignore a cancel",
		Promises: "each job ends as it should; a runner that does not stop is killed soon and replaced",
		Run:      runnersMisbehave,
	},
	{
		Number: 28, Name: "orphan-runners", Breaks: "kill -9 nodes whose runners have forked processes",
		Promises: "2 s later no process started by the node is left", Plan: drill.Layout{Config: forkingRunner},
		Run: func(s *drill.Harness) {
			killRepeatedly(s, 6, func(*drill.Node) *drill.Node { return randomNode(s) })
		},
	},
	{
		Number: 30, Name: "poison-payload", Breaks: "jobs that crash every runner that takes them, and jobs that always fail",
		Promises: "each is tried a limited number of times and becomes a dead letter; other jobs complete",
		Run:      poisonPayload,
	},
}

// forkingRunner configures a pool whose processes start as a shell that forks. The
// runner is the program that started the shell.
const forkingRunner = `
[rrq.runners.forks]
cmd = ["sh", "-c", "sleep 1000 & exec /proc/$PPID/exe runner"]
pool_size = 2
`

// hangFor is the timeout of the jobs that hang. killSoon is how soon after a cancel
// such a job must have ended: its handler has a grace of one second, and its process
// five more after SIGTERM. The job must not end while its process may be running.
const (
	hangFor  = 700 * time.Millisecond
	killSoon = 8 * time.Second
)

func runnersMisbehave(s *drill.Harness) {
	s.StartSteadyLoad()
	s.AddQueues("hangs", "ends")
	n := s.Repeats(8)
	s.StartLoads(
		&drill.Load{Queue: "hangs", Function: "demo#hang", Jobs: n, Pace: time.Second, Fields: fmt.Sprintf(`"timeout_ms":%d,"max_attempts":1`, hangFor.Milliseconds())},
		&drill.Load{Queue: "ends", Function: "demo#crash", JobParams: `{"code":0,"times":1}`, Prefix: "zero", Jobs: n, Pace: time.Second},
		&drill.Load{Queue: "ends", Function: "demo#crash", JobParams: `{"times":2}`, Prefix: "one", Jobs: n, Pace: time.Second})
	for i := range s.Repeats(6) {
		n := randomNode(s)
		pids, err := poolOf(s, n)
		if err != nil || len(pids) == 0 {
			s.Logf("%s has no running runner: %v", n.Name, err)
		} else if i%2 == 0 {
			s.Fault("kill a runner", fmt.Sprintf("%d of %s", pids[0], n.Name))
			_ = syscall.Kill(pids[0], syscall.SIGKILL) // it may have exited
		} else {
			s.Fault("stop a runner", fmt.Sprintf("%d of %s", pids[0], n.Name))
			_ = syscall.Kill(pids[0], syscall.SIGSTOP)
			s.Sleep(time.Second)
			_ = syscall.Kill(pids[0], syscall.SIGCONT) // the node may not have replaced it yet
		}
		s.Pause(time.Second, 2*time.Second)
	}
	s.Recover()
	cancelHanging(s)
}

// cancelHanging cancels a job whose handler ignores it, and measures how soon the job
// has ended.
func cancelHanging(s *drill.Harness) {
	one := &drill.Load{Queue: "hangs", Function: "demo#hang", Prefix: "deaf", Jobs: 1, Fields: `"max_attempts":1`}
	s.StartLoads(one)
	id := must.Get(job.KeyID(one.Queue, one.Key(0)))
	awaitState(s, id, "active")
	asked := time.Now()
	s.Ask("job.cancel", map[string]any{"id": id}, nil)
	awaitState(s, id, "failed")
	s.Target("a cancelled job that ignores the cancel ends after", time.Since(asked), killSoon)
	began := time.Now()
	again := &drill.Load{Queue: drill.RunnerQueue, Prefix: "after", Function: "demo#echo", Jobs: 1}
	s.StartLoads(again)
	id = must.Get(job.KeyID(again.Queue, again.Key(0)))
	awaitState(s, id, "completed")
	s.Figure("a job afterwards takes", time.Since(began))
}

// lossesAtMost is the number of lost dispatches after which a job fails.
const lossesAtMost = 10

func poisonPayload(s *drill.Harness) {
	s.StartSteadyLoad()
	s.AddQueues("poison")
	s.Fault("poison", "jobs that kill their runner, and jobs that fail")
	crash := &drill.Load{Queue: "poison", Function: "demo#crash", Prefix: "crash", Jobs: s.Repeats(3)}
	fail := &drill.Load{Queue: "poison", Function: "demo#fail", JobParams: "{}", Prefix: "fail", Jobs: 20, Fields: `"max_attempts":3`}
	crash.JobParams = "{}"
	s.StartLoads(crash, fail)
	dispatches := map[string]uint32{} // maximum by prefix
	for _, l := range []*drill.Load{crash, fail} {
		for n := range l.Jobs {
			id := must.Get(job.KeyID(l.Queue, l.Key(n)))
			awaitState(s, id, "failed")
			var view struct {
				Reason                       string
				Attempts, Dispatches, Losses uint32
			}
			s.Ask("job.show", map[string]any{"id": id}, &view)
			dispatches[l.Prefix] = max(dispatches[l.Prefix], view.Dispatches)
			switch l.Prefix {
			case "crash": // a dispatch declined by a restarting runner is not a loss
				s.Require(strings.HasPrefix(view.Reason, job.ReasonLostTooOften) && view.Losses <= lossesAtMost,
					"%s ended as %q after %d losses, want %s after at most %d", l.Key(n), view.Reason, view.Losses, job.ReasonLostTooOften, lossesAtMost)
			case "fail": // crashes of its runner cost dispatches, but no attempts
				s.Require(view.Attempts == 3, "%s ended at attempt %d, want 3", l.Key(n), view.Attempts)
			}
		}
	}
	s.Figure("maximum dispatches of a job that crashes its runner", dispatches["crash"])
	s.Figure("maximum dispatches of a job that fails at attempt 3", dispatches["fail"])
	var letters struct{ Count int }
	s.Ask("dlq.stats", map[string]any{"queue": "poison"}, &letters)
	s.Require(letters.Count == crash.Jobs+fail.Jobs, "there are %d dead letters, want %d", letters.Count, crash.Jobs+fail.Jobs)
}

// poolOf returns the pids of a node's running runners.
func poolOf(s *drill.Harness, n *drill.Node) (pids []int, err error) {
	status, err := n.Status(s.Ctx)
	for _, p := range status.Pools {
		for _, m := range p.Members {
			if m.PID > 0 {
				pids = append(pids, m.PID)
			}
		}
	}
	return pids, err
}

// awaitState waits until a job is in a state.
func awaitState(s *drill.Harness, id job.ID, state string) {
	s.Until("job "+id.String()+" is "+state, func() error {
		var view struct{ State string }
		if s.Ask("job.show", map[string]any{"id": id}, &view); view.State != state {
			return errors.New("it is " + view.State)
		}
		return nil
	})
}
