package catalogue

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"yardmaster/cluster"
	"yardmaster/drill"
	"yardmaster/job"
	"yardmaster/ledger"
)

// Yards are saved and brought back.
var backups = []drill.Drill{
	{
		Number: 39, Name: "backup-and-restore", Breaks: "who decides is killed while a yard is saved under load; then all nodes, their directories are gone, and the restore's node and command line are killed on the way",
		Promises: "what was acknowledged before is there and ends, ends stay ends, keys stay known, nothing of the old yard counts, the command line says what to type",
		Patience: 12 * time.Minute,
		Run:      backupAndRestore,
	},
}

// Queues of this drill, beside those of a crew.
const (
	longOne   = "long"  // held by a worker through all that happens
	pausedOne = "held"  // paused
	laterOne  = "later" // delayed
	meanwhile = "meanwhile"
)

// longHold is longer than a yard takes from its backup until it is restored.
const longHold = 45 * time.Second

// restoredInto is how many members the restored yard has, by the seed.
var restoredInto = [...]int{1, 3, 5}

func backupAndRestore(ctx context.Context, s *drill.Stage) error {
	jobs, err := savedWork(ctx, s)
	if err != nil {
		return err
	}
	before, err := endedBefore(ctx, s, jobs)
	if err != nil {
		return err
	}
	file := filepath.Join(s.Dir, "yard.tar")
	if err := saveUnderKill(ctx, s, file); err != nil {
		return err
	}
	old, err := s.Nodes[0].Status(ctx)
	if err != nil {
		return err
	}
	s.Fault("kill all", "their directories are gone")
	s.Kill(s.Nodes...)
	members := restoredInto[s.Seed%uint64(len(restoredInto))]
	if err := s.Refound(ctx, members); err != nil {
		return err
	}
	s.Say("a fresh yard of %d is ready", members)
	if err := restoreUnderKills(ctx, s, file); err != nil {
		return err
	}
	if err := s.WaitReady(ctx); err != nil {
		return err
	}
	// Those of the old yard ended when they found one without their queues.
	if err := hire(ctx, s); err != nil {
		return err
	}
	return restoredHolds(ctx, s, jobs, before, old.Authority.Epoch)
}

// savedWork publishes jobs that will be in every state when the yard is saved,
// and returns when all are acknowledged and those of the long queue run.
func savedWork(ctx context.Context, s *drill.Stage) ([]*drill.Load, error) {
	for _, queue := range []string{longOne, pausedOne, laterOne, meanwhile} {
		if err := s.AddQueue(ctx, queue, 0); err != nil {
			return nil, err
		}
	}
	if err := hire(ctx, s); err != nil {
		return nil, err
	}
	if err := setPaused(ctx, s.Nodes[0], pausedOne, "pause"); err != nil {
		return nil, err
	}
	large := fmt.Sprintf(`{"text":%q}`, strings.Repeat("large body ", 20<<10))
	jobs := []*drill.Load{
		{Queue: pausedOne, Jobs: 300},
		{Queue: pausedOne, Road: drill.Enqueue, Params: large, Jobs: s.Times(30) * 10, Parallel: 2},
		{Queue: laterOne, Jobs: 100, Fields: `"delay_ms":60000`},
		{Queue: drill.LimitedQueue, Jobs: 400, Parallel: 2},
		{Queue: drill.RunnerQueue, Function: "demo#echo", Jobs: 200},
		{Queue: drill.RunnerQueue, Function: "demo#fail", Params: "{}", Prefix: "fail", Jobs: 50, Fields: `"max_attempts":1`},
	}
	for _, road := range drill.Roads {
		jobs = append(jobs, &drill.Load{Queue: drill.FreeQueue, Road: road, Jobs: 500, Parallel: 4})
	}
	long := &drill.Load{Queue: longOne, Jobs: 3}
	s.Begin(ctx, jobs...)
	if err := acknowledged(ctx, jobs...); err != nil {
		return nil, err
	}
	s.Begin(ctx, long)
	if err := acknowledged(ctx, long); err != nil {
		return nil, err
	}
	return append(jobs, long), drill.Until(ctx, "the long ones run", func() error {
		counts, err := countsOf(ctx, s.Nodes[0], longOne)
		if err == nil && counts["active"] < 3 {
			err = fmt.Errorf("%v", counts)
		}
		return err
	})
}

// acknowledged waits until all jobs of loads are.
func acknowledged(ctx context.Context, loads ...*drill.Load) error {
	return drill.Until(ctx, "all jobs are acknowledged", func() error {
		for _, l := range loads {
			if l.Acked() < l.Jobs {
				return fmt.Errorf("%d of %d of %s are: %v", l.Acked(), l.Jobs, l.Key(0), l.Refused())
			}
		}
		return nil
	})
}

// hire starts workers of all queues.
func hire(ctx context.Context, s *drill.Stage) error {
	if err := s.Crew(ctx, 2, 4, 5*time.Millisecond); err != nil {
		return err
	}
	for _, t := range []drill.Task{{Queue: longOne, Credits: 3, Hold: longHold}, {Queue: laterOne, Credits: 4}, {Queue: pausedOne, Credits: 4}} {
		t.Nodes = s.Edges()
		if _, err := s.AddWorker(t); err != nil {
			return err
		}
	}
	return nil
}

func setPaused(ctx context.Context, n *drill.Node, queue, verb string) error {
	return drill.Until(ctx, verb+" "+queue, func() error {
		err := n.Ask(ctx, cluster.SubjectAPI+".queue."+verb, map[string]any{"name": queue}, new(any))
		var refused *cluster.APIError
		if errors.As(err, &refused) && refused.Code == "409" { // an earlier try did it
			return nil
		}
		return err
	})
}

func countsOf(ctx context.Context, n *drill.Node, queue string) (map[string]int, error) {
	var q struct{ Counts map[string]int }
	return q.Counts, errors.Join(n.Ask(ctx, cluster.SubjectAPI+".queue.show", map[string]any{"name": queue}, &q))
}

// endedBefore are the jobs that have ended already, by queue.
func endedBefore(ctx context.Context, s *drill.Stage, jobs []*drill.Load) (map[string]map[job.ID]string, error) {
	before := make(map[string]map[job.ID]string)
	for _, l := range jobs {
		if before[l.Queue] != nil {
			continue
		}
		ended, err := s.Ended(ctx, s.Nodes[0], l.Queue)
		if err != nil {
			return nil, err
		}
		before[l.Queue] = ended
	}
	return before, nil
}

// saveUnderKill saves the yard while further jobs come in, and kills who decides
// meanwhile. A backup that was interrupted says so and is taken again.
func saveUnderKill(ctx context.Context, s *drill.Stage, file string) error {
	load := &drill.Load{Queue: meanwhile, Parallel: 4, Pace: 2 * time.Millisecond}
	published := make(chan error, 1)
	go func() { published <- load.Run(ctx, s.Yard) }()
	decides, err := s.AwaitAuthority(ctx)
	if err != nil {
		return err
	}
	at := other(s, decides)
	type end struct {
		said string
		err  error
	}
	saved := make(chan end, 1)
	began := time.Now()
	go func() {
		said, err := at.Type(ctx, "backup", file)
		saved <- end{said, err}
	}()
	if err := s.Rest(ctx, s.Between(0, 300*time.Millisecond)); err != nil {
		return err
	}
	s.Fault(kill, decides.Name+", which decides, while "+at.Name+" makes a backup")
	s.Kill(decides)
	first := <-saved
	for first.err != nil {
		s.Promise(strings.Contains(first.said, "again"), "a backup that was interrupted does not say what to type: %s", first.said)
		s.Say("%s", first.said)
		began = time.Now()
		if first.said, first.err = at.Type(ctx, "backup", file); ctx.Err() != nil {
			return first.err
		}
	}
	s.Say("saved while %d further jobs were acknowledged:\n%s", load.Acked(), first.said)
	s.Figure("backup", time.Since(began))
	if info, err := os.Stat(file); err == nil {
		s.Figure("size of the backup, bytes", info.Size())
	}
	if err := decides.Start(); err != nil {
		return err
	}
	load.Stop()
	if err := <-published; err != nil {
		return err
	}
	_, err = s.Nodes[0].Type(ctx, "backup", "verify", file)
	s.Promise(err == nil, "the backup is not good: %v", err)
	return s.WaitReady(ctx)
}

// restoreUnderKills kills the command line of a restore, and then the node, and
// takes it again each time. The yard says meanwhile that it accepts nothing, and
// changes nothing.
func restoreUnderKills(ctx context.Context, s *drill.Stage, file string) error {
	typing, stop := context.WithCancel(ctx)
	killed := make(chan error, 1)
	go func() {
		_, err := s.Nodes[0].Type(typing, "restore", file)
		killed <- err
	}()
	if err := bringing(ctx, s.Nodes[0]); err != nil {
		stop()
		return err
	}
	stop() // with SIGKILL
	s.Promise(<-killed != nil, "the restore was done before its command line could be killed")
	s.Fault(kill, "the restore's command line")
	refused := s.Nodes[0].Ask(ctx, cluster.SubjectAPI+".queue.add", map[string]any{"name": "another"}, new(any))
	s.Promise(refused != nil && strings.Contains(refused.Error(), ledger.ErrBringing.Error()), "a queue made while the yard is restored: %v", refused)

	n := s.Nodes[len(s.Nodes)-1]
	ended := make(chan string, 1)
	began, early := time.Now(), ""
	err := drill.Until(ctx, "the restore is begun again", func() error {
		go func() {
			said, err := n.Type(ctx, "restore", file)
			if err == nil {
				said = doneAlready
			}
			ended <- said
		}()
		select {
		case early = <-ended:
			if early == doneAlready {
				return nil
			}
			return errors.New(early) // the one before is not given up yet
		case <-time.After(s.Between(time.Second, 6*time.Second)): // for 5 s it makes room
			return nil
		}
	})
	if err != nil {
		return err
	}
	s.Fault(kill, n.Name+", which restores")
	s.Kill(n)
	said := early
	if early != doneAlready {
		said = <-ended
	}
	if said == doneAlready {
		s.Say("it was restored before it was killed")
		return n.Start()
	}
	s.Promise(strings.Contains(said, "take it again, at any node, by 'yardmaster restore") && time.Since(began) < time.Minute, "after %v the command line says %q", time.Since(began), said)
	s.Say("%s", said)
	if err := n.Start(); err != nil {
		return err
	}
	began = time.Now()
	return drill.Until(ctx, "the yard is restored", func() error {
		began = time.Now()
		said, err := s.Nodes[0].Type(ctx, "restore", file)
		if err == nil {
			s.Say("%s", said)
			s.Figure("restore that takes the place of another, into "+fmt.Sprint(len(s.Nodes)), time.Since(began))
		}
		return err
	})
}

const doneAlready = "the restore is done"

// bringing waits until a node says that a restore is under way.
func bringing(ctx context.Context, n *drill.Node) error {
	return drill.Until(ctx, n.Name+" says that it is restored", func() error {
		st, err := n.Status(ctx)
		if err == nil && !strings.Contains(strings.Join(st.Readiness.Reasons, " "), "a restore of") {
			err = fmt.Errorf("it says %v", st.Readiness.Reasons)
		}
		return err
	})
}

// restoredHolds looks that the restored yard is the one that was saved, and lets
// it go on: the stage judges the rest.
func restoredHolds(ctx context.Context, s *drill.Stage, jobs []*drill.Load, before map[string]map[job.ID]string, epoch uint64) error {
	n := anyone(s)
	st, err := n.Status(ctx)
	if err != nil {
		return err
	}
	s.Promise(st.Authority.Epoch > epoch+ledger.BringStep/2, "the epoch was %d and is %d", epoch, st.Authority.Epoch)
	ended := 0
	for queue, jobs := range before {
		now, err := s.Ended(ctx, n, queue)
		if err != nil {
			return err
		}
		for id, how := range jobs {
			ended++
			s.Promise(now[id] == how, "job %s of %s had %s, and is now %q", id, queue, how, now[id])
		}
	}
	s.Figure("jobs acknowledged before the backup, and ended before it", fmt.Sprintf("%d, %d", s.Acked(), ended))
	held, err := countsOf(ctx, n, pausedOne)
	if err != nil {
		return err
	}
	s.Promise(held["completed"] == 0 && held["waiting"] > 300, "jobs of the paused queue: %v", held)
	// What publishers repeat is known, in whatever state it is.
	for _, l := range jobs {
		again := &drill.Load{Queue: l.Queue, Road: l.Road, Function: l.Function, Params: l.Params, Fields: l.Fields, Prefix: l.Prefix, Jobs: l.Jobs, Parallel: l.Parallel}
		if err := again.Run(ctx, s.Yard); err != nil {
			return err
		}
	}
	if err := setPaused(ctx, n, pausedOne, "resume"); err != nil {
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
		s.Promise(have == want, "queue %s has %d jobs after all were repeated: %d were published", l.Queue, have, want)
	}
	return longOnesRunAgain(ctx, s, n)
}

// longOnesRunAgain: what a worker held in the old yard counts for nothing: those
// jobs end by another dispatch.
func longOnesRunAgain(ctx context.Context, s *drill.Stage, n *drill.Node) error {
	return drill.Until(ctx, "the long jobs end", func() error {
		ended, err := s.Ended(ctx, n, longOne)
		if err == nil && len(ended) < 3 {
			err = fmt.Errorf("%d have", len(ended))
		}
		if err != nil {
			return err
		}
		for id := range ended {
			var j struct {
				Dispatches int
				State      string
			}
			if err := n.Ask(ctx, cluster.SubjectAPI+".job.show", map[string]any{"queue": longOne, "id": id.String()}, &j); err != nil {
				return err
			}
			s.Promise(j.Dispatches > 1 && j.State == "completed", "job %s ended as %s by dispatch %d, which was the old yard's", id, j.State, j.Dispatches)
		}
		return nil
	})
}
