package catalogue

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/test/drill"
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

func backupAndRestore(ctx context.Context, s *drill.Harness) error {
	jobs, err := startSavedLoad(ctx, s)
	if err != nil {
		return err
	}
	before, err := endedBefore(ctx, s, jobs)
	if err != nil {
		return err
	}
	file := filepath.Join(s.Dir, "yard.tar")
	if err := backupUnderKill(ctx, s, file); err != nil {
		return err
	}
	old, err := s.Nodes[0].Status(ctx)
	if err != nil {
		return err
	}
	s.Fault("kill all", "their directories are gone")
	s.Kill(s.Nodes...)
	members := restoredInto[s.Seed%uint64(len(restoredInto))]
	if err := s.Recreate(ctx, members); err != nil {
		return err
	}
	s.Logf("a new cluster of %d members is ready", members)
	if err := restoreUnderKills(ctx, s, file); err != nil {
		return err
	}
	if err := s.WaitReady(ctx); err != nil {
		return err
	}
	// The old workers exited when they connected to a cluster without their queues.
	if err := startAllWorkers(ctx, s); err != nil {
		return err
	}
	return checkRestored(ctx, s, jobs, before, old.Authority.Epoch)
}

// startSavedLoad publishes jobs that will be in every state during the backup. It
// returns when all are acknowledged and the jobs of slowQueue are active.
func startSavedLoad(ctx context.Context, s *drill.Harness) ([]*drill.Load, error) {
	for _, queue := range []string{slowQueue, pausedQueue, delayedQueue, meanwhile} {
		if err := s.AddQueue(ctx, queue, 0); err != nil {
			return nil, err
		}
	}
	if err := startAllWorkers(ctx, s); err != nil {
		return nil, err
	}
	if err := setPaused(ctx, s.Nodes[0], pausedQueue, "pause"); err != nil {
		return nil, err
	}
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
	long := &drill.Load{Queue: slowQueue, Jobs: 3}
	s.StartLoads(ctx, jobs...)
	if err := acknowledged(ctx, jobs...); err != nil {
		return nil, err
	}
	s.StartLoads(ctx, long)
	if err := acknowledged(ctx, long); err != nil {
		return nil, err
	}
	return append(jobs, long), drill.Until(ctx, "the jobs of the slow queue are active", func() error {
		counts, err := countsOf(ctx, s.Nodes[0], slowQueue)
		if err == nil && counts["active"] < 3 {
			err = fmt.Errorf("%v", counts)
		}
		return err
	})
}

// acknowledged waits until all jobs of the loads are acknowledged.
func acknowledged(ctx context.Context, loads ...*drill.Load) error {
	return drill.Until(ctx, "all jobs are acknowledged", func() error {
		for _, l := range loads {
			if l.Acked() < l.Jobs {
				return fmt.Errorf("%d of %d jobs like %s are acknowledged; refusals: %v", l.Acked(), l.Jobs, l.Key(0), l.Refusals())
			}
		}
		return nil
	})
}

// startAllWorkers creates the basic queues and starts workers for all queues.
func startAllWorkers(ctx context.Context, s *drill.Harness) error {
	if err := s.StartWorkers(ctx, 2, 4, 5*time.Millisecond); err != nil {
		return err
	}
	for _, t := range []drill.Task{{Queue: slowQueue, Credits: 3, Hold: longHold}, {Queue: delayedQueue, Credits: 4}, {Queue: pausedQueue, Credits: 4}} {
		t.Nodes = s.Edges()
		if _, err := s.AddWorker(t); err != nil {
			return err
		}
	}
	return nil
}

// setPaused pauses or resumes a queue; verb is "pause" or "resume".
func setPaused(ctx context.Context, n *drill.Node, queue, verb string) error {
	return drill.Until(ctx, verb+" "+queue, func() error {
		err := n.Ask(ctx, api.SubjectAPI+".queue."+verb, map[string]any{"name": queue}, new(any))
		var refused *api.Error
		if errors.As(err, &refused) && refused.Code == "409" { // done by an earlier request
			return nil
		}
		return err
	})
}

// countsOf returns the number of jobs of a queue by state.
func countsOf(ctx context.Context, n *drill.Node, queue string) (map[string]int, error) {
	var q struct{ Counts map[string]int }
	return q.Counts, errors.Join(n.Ask(ctx, api.SubjectAPI+".queue.show", map[string]any{"name": queue}, &q))
}

// endedBefore returns the jobs that have ended before the backup, by queue.
func endedBefore(ctx context.Context, s *drill.Harness, jobs []*drill.Load) (map[string]map[job.ID]string, error) {
	before := make(map[string]map[job.ID]string)
	for _, l := range jobs {
		if before[l.Queue] != nil {
			continue
		}
		ended, err := s.EndedJobs(ctx, s.Nodes[0], l.Queue)
		if err != nil {
			return nil, err
		}
		before[l.Queue] = ended
	}
	return before, nil
}

// backupUnderKill makes a backup while more jobs are published, and kills the
// authority meanwhile. An interrupted backup must fail with a hint and is repeated.
func backupUnderKill(ctx context.Context, s *drill.Harness, file string) error {
	load := &drill.Load{Queue: meanwhile, Parallel: 4, Pace: 2 * time.Millisecond}
	published := make(chan error, 1)
	go func() { published <- load.Run(ctx, s.Cluster) }()
	authority, err := s.AwaitAuthority(ctx)
	if err != nil {
		return err
	}
	n := other(s, authority)
	type result struct {
		output string
		err    error
	}
	saved := make(chan result, 1)
	began := time.Now()
	go func() {
		output, err := n.Command(ctx, "backup", file)
		saved <- result{output, err}
	}()
	if err := s.Sleep(ctx, s.RandDuration(0, 300*time.Millisecond)); err != nil {
		return err
	}
	s.Fault(kill, authority.Name+", the authority, while "+n.Name+" makes a backup")
	s.Kill(authority)
	first := <-saved
	for first.err != nil {
		s.Require(strings.Contains(first.output, "again"), "an interrupted backup does not name the next step: %s", first.output)
		s.Logf("%s", first.output)
		began = time.Now()
		if first.output, first.err = n.Command(ctx, "backup", file); ctx.Err() != nil {
			return first.err
		}
	}
	s.Logf("backup made while %d more jobs were acknowledged:\n%s", load.Acked(), first.output)
	s.Figure("backup", time.Since(began))
	if info, err := os.Stat(file); err == nil {
		s.Figure("size of the backup, bytes", info.Size())
	}
	if err := authority.Start(); err != nil {
		return err
	}
	load.Stop()
	if err := <-published; err != nil {
		return err
	}
	_, err = s.Nodes[0].Command(ctx, "backup", "verify", file)
	s.Require(err == nil, "the backup is not valid: %v", err)
	return s.WaitReady(ctx)
}

// restoreUnderKills kills the command that restores the backup, then the node that
// does it, and repeats the restore each time. During the restore the cluster must
// refuse every change.
func restoreUnderKills(ctx context.Context, s *drill.Harness, file string) error {
	interruptible, stop := context.WithCancel(ctx)
	killed := make(chan error, 1)
	go func() {
		_, err := s.Nodes[0].Command(interruptible, "restore", file)
		killed <- err
	}()
	if err := awaitRestoring(ctx, s.Nodes[0]); err != nil {
		stop()
		return err
	}
	stop() // kills the command
	s.Require(<-killed != nil, "the restore was complete before its command could be killed")
	s.Fault(kill, "the command that restores the backup")
	refused := s.Nodes[0].Ask(ctx, api.SubjectAPI+".queue.add", map[string]any{"name": "another"}, new(any))
	s.Require(refused != nil && strings.Contains(refused.Error(), ledger.ErrRestoring.Error()), "creating a queue during the restore returned: %v", refused)

	n := s.Nodes[len(s.Nodes)-1]
	ended := make(chan string, 1)
	began, early := time.Now(), ""
	err := drill.Until(ctx, "the restore is started again", func() error {
		go func() {
			output, err := n.Command(ctx, "restore", file)
			if err == nil {
				output = doneAlready
			}
			ended <- output
		}()
		select {
		case early = <-ended:
			if early == doneAlready {
				return nil
			}
			return errors.New(early) // the first restore has not timed out yet
		case <-time.After(s.RandDuration(time.Second, 6*time.Second)): // in the first 5 s it prepares
			return nil
		}
	})
	if err != nil {
		return err
	}
	s.Fault(kill, n.Name+", which restores the backup")
	s.Kill(n)
	output := early
	if early != doneAlready {
		output = <-ended
	}
	if output == doneAlready {
		s.Logf("the restore was complete before the kill")
		return n.Start()
	}
	s.Require(strings.Contains(output, "repeat 'yardmaster restore") && time.Since(began) < time.Minute, "after %v the restore command printed %q", time.Since(began), output)
	s.Logf("%s", output)
	if err := n.Start(); err != nil {
		return err
	}
	began = time.Now()
	return drill.Until(ctx, "the cluster is restored", func() error {
		began = time.Now()
		output, err := s.Nodes[0].Command(ctx, "restore", file)
		if err == nil {
			s.Logf("%s", output)
			s.Figure("restore that replaces an interrupted one, into a cluster of "+fmt.Sprint(len(s.Nodes)), time.Since(began))
		}
		return err
	})
}

// doneAlready replaces the output of a restore command that has succeeded.
const doneAlready = "the restore is complete"

// awaitRestoring waits until a node reports that a restore is in progress.
func awaitRestoring(ctx context.Context, n *drill.Node) error {
	return drill.Until(ctx, n.Name+" reports a restore", func() error {
		st, err := n.Status(ctx)
		if err == nil && !strings.Contains(strings.Join(st.Readiness.Reasons, " "), "a restore of") {
			err = fmt.Errorf("its readiness reasons are %v", st.Readiness.Reasons)
		}
		return err
	})
}

// checkRestored checks that the restored cluster has the state of the backup, and
// resumes its work: the harness judges the rest.
func checkRestored(ctx context.Context, s *drill.Harness, jobs []*drill.Load, before map[string]map[job.ID]string, epoch uint64) error {
	n := randomNode(s)
	st, err := n.Status(ctx)
	if err != nil {
		return err
	}
	s.Require(st.Authority.Epoch > epoch+ledger.RestoreJump/2, "the epoch is %[2]d after the restore and was %[1]d before", epoch, st.Authority.Epoch)
	ended := 0
	for queue, jobs := range before {
		now, err := s.EndedJobs(ctx, n, queue)
		if err != nil {
			return err
		}
		for id, state := range jobs {
			ended++
			s.Require(now[id] == state, "job %s of queue %s was %s, and is %q after the restore", id, queue, state, now[id])
		}
	}
	s.Figure("jobs acknowledged before the backup, and of these ended", fmt.Sprintf("%d, %d", s.Acked(), ended))
	held, err := countsOf(ctx, n, pausedQueue)
	if err != nil {
		return err
	}
	s.Require(held["completed"] == 0 && held["waiting"] > 300, "the jobs of the paused queue are %v after the restore", held)
	// Repeated publishes must be recognized, whatever the state of the job.
	for _, l := range jobs {
		again := &drill.Load{Queue: l.Queue, Transport: l.Transport, Function: l.Function, JobParams: l.JobParams, Fields: l.Fields, Prefix: l.Prefix, Jobs: l.Jobs, Parallel: l.Parallel}
		if err := again.Run(ctx, s.Cluster); err != nil {
			return err
		}
	}
	if err := setPaused(ctx, n, pausedQueue, "resume"); err != nil {
		return err
	}
	for _, l := range jobs {
		counts, err := countsOf(ctx, n, l.Queue)
		if err != nil {
			return err
		}
		have, want := 0, 0
		for _, count := range counts {
			have += count
		}
		for _, of := range jobs {
			if of.Queue == l.Queue {
				want += of.Jobs
			}
		}
		s.Require(have == want, "queue %s has %d jobs after all publishes were repeated, want %d", l.Queue, have, want)
	}
	return checkLongJobsRerun(ctx, s, n)
}

// checkLongJobsRerun checks that the jobs that were active in the old cluster end by
// a later dispatch.
func checkLongJobsRerun(ctx context.Context, s *drill.Harness, n *drill.Node) error {
	return drill.Until(ctx, "the jobs of the slow queue have ended", func() error {
		ended, err := s.EndedJobs(ctx, n, slowQueue)
		if err == nil && len(ended) < 3 {
			err = fmt.Errorf("%d of 3 have ended", len(ended))
		}
		if err != nil {
			return err
		}
		for id := range ended {
			var j struct {
				Dispatches int
				State      string
			}
			if err := n.Ask(ctx, api.SubjectAPI+".job.show", map[string]any{"queue": slowQueue, "id": id.String()}, &j); err != nil {
				return err
			}
			s.Require(j.Dispatches > 1 && j.State == "completed", "job %s ended as %s after %d dispatches, want completed by a dispatch of the restored cluster", id, j.State, j.Dispatches)
		}
		return nil
	})
}
