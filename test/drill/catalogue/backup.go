package catalogue

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/test/drill"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// Drills that back a cluster up and restore it.
var backups = []drill.Drill{
	{
		Number: 39, Name: "backup-and-restore", Breaks: "kill the authority during a backup under load; then lose all nodes with their directories, and kill the restoring command and node",
		Promises: "acknowledged jobs are restored and end, ended jobs stay as they ended, keys stay known, nothing that workers of the old cluster report counts, the commands name the next step",
		Timeout:  12 * time.Minute,
		Run:      backupAndRestore,
	},
}

// The queues of this drill, in addition to those of [drill.Harness.StartWorkers].
const (
	slowQueue    = "long"      // its jobs run during the backup
	pausedQueue  = "held"      // paused
	delayedQueue = "later"     // its jobs are delayed
	meanwhile    = "meanwhile" // its jobs are published during the backup
)

// longHold is longer than the time from the backup to the end of the restore.
const longHold = 45 * time.Second

// restoredInto lists the numbers of members of the restored cluster, selected by the
// seed.
var restoredInto = [...]int{1, 3, 5}

// backupAndRestore saves a cluster under load, loses all of its nodes, and restores the
// backup into a new cluster of another size.
func backupAndRestore(s *drill.Harness) {
	jobs := startSavedLoad(s)
	before := endedBefore(s, jobs)
	file := filepath.Join(s.Dir, "yard.tar")
	backupUnderKill(s, file)
	old := must.Get(s.Nodes[0].Status(s.Ctx))
	s.Fault("kill all", "their directories are gone")
	s.Kill(s.Nodes...)
	members := restoredInto[s.Seed%uint64(len(restoredInto))]
	s.Recreate(members)
	s.Logf("a new cluster of %d members is ready", members)
	restoreUnderKills(s, file)
	s.WaitReady()
	// The old workers exited when they connected to a cluster without their queues.
	startAllWorkers(s)
	checkRestored(s, jobs, before, old.Authority.Epoch)
}

// startSavedLoad publishes jobs that will be in every state during the backup. It
// returns when all are acknowledged and the jobs of slowQueue are active.
func startSavedLoad(s *drill.Harness) []*drill.Load {
	s.AddQueues(slowQueue, pausedQueue, delayedQueue, meanwhile)
	startAllWorkers(s)
	setPaused(s, pausedQueue, "pause")
	large := fmt.Sprintf(`{"text":%q}`, strings.Repeat("large body ", 20<<10))
	jobs := []*drill.Load{
		{Queue: pausedQueue, Jobs: 300},
		{Queue: pausedQueue, Transport: drill.Enqueue, JobParams: large, Jobs: s.Repeats(30) * 10, Parallel: 2},
		{Queue: delayedQueue, Jobs: 100, Fields: `"delay_ms":60000`},
		{Queue: drill.LimitedQueue, Jobs: 400, Parallel: 2},
		{Queue: drill.RunnerQueue, Function: "demo#echo", Jobs: 200},
		{Queue: drill.RunnerQueue, Function: "demo#fail", JobParams: "{}", Prefix: "fail", Jobs: 50, Fields: `"max_attempts":1`},
	}
	for _, t := range drill.Transports {
		jobs = append(jobs, &drill.Load{Queue: drill.FreeQueue, Transport: t, Jobs: 500, Parallel: 4})
	}
	jobs = append(jobs, drill.CustomerLoads(func(string) *drill.Load { return &drill.Load{Jobs: 400, Parallel: 2} })...)
	long := &drill.Load{Queue: slowQueue, Jobs: 3}
	s.StartLoads(jobs...)
	for _, l := range jobs {
		s.AwaitAcked(l.Jobs, l)
	}
	s.StartLoads(long)
	s.Until("the jobs of the slow queue are active", func() error {
		if counts := countsOf(s, slowQueue); counts["active"] < 3 {
			return fmt.Errorf("%v", counts)
		}
		return nil
	})
	return append(jobs, long)
}

// startAllWorkers creates the basic queues and starts workers for all queues.
func startAllWorkers(s *drill.Harness) {
	s.StartWorkers(2, 4, 5*time.Millisecond)
	for _, t := range []drill.Task{{Queue: slowQueue, Credits: 3, Hold: longHold}, {Queue: delayedQueue, Credits: 4}, {Queue: pausedQueue, Credits: 4}} {
		s.AddWorker(t)
	}
}

// setPaused pauses or resumes a queue; verb is "pause" or "resume".
func setPaused(s *drill.Harness, queue, verb string) {
	s.Ask("queue."+verb, map[string]any{"name": queue}, nil)
}

// countsOf returns the number of jobs of a queue by state.
func countsOf(s *drill.Harness, queue string) map[string]int {
	var q struct{ Counts map[string]int }
	s.Ask("queue.show", map[string]any{"name": queue}, &q)
	return q.Counts
}

// endedBefore returns the jobs that have ended before the backup, by queue.
func endedBefore(s *drill.Harness, jobs []*drill.Load) map[string]map[job.ID]string {
	before := make(map[string]map[job.ID]string)
	for _, l := range jobs {
		before[l.Queue] = s.EndedJobs(s.Nodes[0], l.Queue)
	}
	return before
}

// backupUnderKill makes a backup while more jobs are published, and kills the
// authority meanwhile. An interrupted backup must fail with a hint and is repeated.
func backupUnderKill(s *drill.Harness, file string) {
	load := &drill.Load{Queue: meanwhile, Parallel: 4, Pace: 2 * time.Millisecond}
	published := make(chan error, 1)
	go func() { published <- load.Run(s.Ctx, s.Cluster) }()
	authority := s.AwaitAuthority()
	n := other(s, authority)
	began := time.Now()
	saved := inBackground(s.Ctx, n, "backup", file)
	s.Pause(0, 300*time.Millisecond)
	s.Fault(kill, authority.Name+", the authority, while "+n.Name+" makes a backup")
	s.Kill(authority)
	first := <-saved
	for first.err != nil {
		must.Do(s.Ctx.Err())
		s.Require(strings.Contains(first.output, "again"), "an interrupted backup does not name the next step: %s", first.output)
		s.Logf("%s", first.output)
		began = time.Now()
		first = <-inBackground(s.Ctx, n, "backup", file)
	}
	s.Logf("backup made while %d more jobs were acknowledged:\n%s", load.Acked(), first.output)
	s.Figure("backup", time.Since(began))
	if info, err := os.Stat(file); err == nil {
		s.Figure("size of the backup, bytes", info.Size())
	}
	must.Do(authority.Start())
	load.Stop()
	must.Do(<-published)
	_, err := s.Nodes[0].Command(s.Ctx, "backup", "verify", file)
	s.Require(err == nil, "the backup is not valid: %v", err)
	s.WaitReady()
}

// result is the result of a command.
type result struct {
	output string
	err    error
}

// inBackground runs a command of the program against a node.
func inBackground(ctx context.Context, n *drill.Node, words ...string) <-chan result {
	ended := make(chan result, 1)
	go func() {
		output, err := n.Command(ctx, words...)
		ended <- result{output, err}
	}()
	return ended
}

// restoreUnderKills kills the command that restores the backup, then the node that
// does it, and repeats the restore each time. During the restore the cluster must
// refuse every change.
func restoreUnderKills(s *drill.Harness, file string) {
	interruptible, stop := context.WithCancel(s.Ctx)
	defer stop()
	killed := inBackground(interruptible, s.Nodes[0], "restore", file)
	s.Until("a restore is reported", func() error {
		st, err := s.Nodes[0].Status(s.Ctx)
		if err == nil && !strings.Contains(strings.Join(st.Readiness.Reasons, " "), "a restore of") {
			err = fmt.Errorf("readiness reasons are %v", st.Readiness.Reasons)
		}
		return err
	})
	stop() // kills the command
	s.RequireTried((<-killed).err != nil, "the restore was complete before its command could be killed")
	s.Fault(kill, "the command that restores the backup")
	refused := s.Nodes[0].Ask(s.Ctx, api.SubjectAPI+".queue.add", map[string]any{"name": "another"}, new(any))
	s.Require(refused != nil && strings.Contains(refused.Error(), ledger.ErrRestoring.Error()), "creating a queue during the restore returned: %v", refused)

	n := s.Nodes[len(s.Nodes)-1]
	began := time.Now()
	var ended <-chan result
	s.Until("the restore is started again", func() error {
		running := inBackground(s.Ctx, n, "restore", file)
		select {
		case early := <-running:
			again := make(chan result, 1)
			again <- early
			ended = again
			return early.err // the first restore has not timed out yet
		case <-time.After(s.RandDuration(time.Second, 6*time.Second)): // in the first 5 s it prepares
			ended = running
			return nil
		}
	})
	s.Fault(kill, n.Name+", which restores the backup")
	s.Kill(n)
	second := <-ended
	must.Do(n.Start())
	if second.err == nil {
		s.Logf("the restore was complete before the kill")
		return
	}
	s.Require(strings.Contains(second.output, "repeat 'yardmaster restore") && time.Since(began) < time.Minute, "after %v the restore command printed %q", time.Since(began), second.output)
	s.Logf("%s", second.output)
	s.Until("the cluster is restored", func() error {
		began = time.Now()
		output, err := s.Nodes[0].Command(s.Ctx, "restore", file)
		if err == nil {
			s.Logf("%s", output)
			s.Figure("restore that replaces an interrupted one, into a cluster of "+fmt.Sprint(len(s.Nodes)), time.Since(began))
		}
		return err
	})
}

// checkRestored checks that the restored cluster has the state of the backup, and
// resumes its work: the harness judges the rest.
func checkRestored(s *drill.Harness, jobs []*drill.Load, before map[string]map[job.ID]string, epoch uint64) {
	n := randomNode(s)
	st := must.Get(n.Status(s.Ctx))
	s.Require(st.Authority.Epoch > epoch+ledger.RestoreJump/2, "the epoch is %[2]d after the restore and was %[1]d before", epoch, st.Authority.Epoch)
	ended := 0
	for queue, jobs := range before {
		now := s.EndedJobs(n, queue)
		for id, state := range jobs {
			ended++
			s.Require(now[id] == state, "job %s of queue %s was %s, and is %q after the restore", id, queue, state, now[id])
		}
	}
	s.Figure("jobs acknowledged before the backup, and of these ended", fmt.Sprintf("%d, %d", s.Acked(), ended))
	held := countsOf(s, pausedQueue)
	s.Require(held["completed"] == 0 && held["waiting"] > 300, "the jobs of the paused queue are %v after the restore", held)
	// Repeated publishes must be recognized, whatever the state of the job.
	for _, l := range jobs {
		again := &drill.Load{Queue: l.Queue, Transport: l.Transport, Function: l.Function, JobParams: l.JobParams, Customer: l.Customer, Fields: l.Fields, Prefix: l.Prefix, Jobs: l.Jobs, Parallel: l.Parallel}
		must.Do(again.Run(s.Ctx, s.Cluster))
	}
	setPaused(s, pausedQueue, "resume")
	for _, l := range jobs {
		counted, published := 0, 0
		for _, count := range countsOf(s, l.Queue) {
			counted += count
		}
		for _, of := range jobs {
			if of.Queue == l.Queue {
				published += of.Jobs
			}
		}
		s.Require(counted == published, "queue %s has %d jobs after all publishes were repeated, want %d", l.Queue, counted, published)
	}
	checkLongJobsRerun(s, n)
}

// checkLongJobsRerun checks that the jobs that were active in the old cluster end by
// a later dispatch.
func checkLongJobsRerun(s *drill.Harness, n *drill.Node) {
	var ended map[job.ID]string
	s.Until("the jobs of the slow queue have ended", func() error {
		if ended = s.EndedJobs(n, slowQueue); len(ended) < 3 {
			return fmt.Errorf("%d of 3 have ended", len(ended))
		}
		return nil
	})
	for id := range ended {
		var j struct {
			Dispatches int
			State      string
		}
		s.Ask("job.show", map[string]any{"queue": slowQueue, "id": id.String()}, &j)
		s.Require(j.Dispatches > 1 && j.State == "completed", "job %s ended as %s after %d dispatches, want completed by a dispatch of the restored cluster", id, j.State, j.Dispatches)
	}
}
