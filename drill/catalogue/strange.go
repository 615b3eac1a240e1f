package catalogue

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"yardmaster/cluster"
	"yardmaster/drill"
	"yardmaster/drill/hostile"
	"yardmaster/drill/yard"
	"yardmaster/edge/overhop"
	"yardmaster/job"
)

// beside is a yard beside the drill's, of which lanes are taken away for good.
type beside struct {
	*yard.Yard
	s        *drill.Stage
	intruder *hostile.Intruder
	life     context.Context // of its workers
	workers  sync.WaitGroup

	mu    sync.Mutex
	ran   map[string]int // how often each job ran, by JID
	wrong []string       // those that were given another one's body
}

// strangeStreams has somebody with all rights remove a lane, and remove another and
// make it anew, in a yard of its own: it is no yard any more afterwards.
func strangeStreams(ctx context.Context, s *drill.Stage) error {
	dir := filepath.Join(s.Dir, "strange")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	second, err := yard.Start(ctx, yard.Options{Nodes: 3, Dir: dir, Binary: s.Binary})
	if err != nil {
		return err
	}
	defer second.Stop()
	y := &beside{Yard: second, s: s, ran: map[string]int{}}
	if y.intruder, err = hostile.Join(second.Nodes[0].URL(), second.Nodes[0].Route(), second.Nodes[1].Route(), second.Nodes[2].Route()); err != nil {
		return err
	}
	defer y.intruder.Leave()
	for _, queue := range []string{"kept", "later"} {
		var made any
		if err := second.Nodes[0].Ask(ctx, cluster.SubjectAPI+".queue.add", map[string]string{"name": queue}, &made); err != nil {
			return err
		}
	}
	life, end := context.WithCancel(ctx)
	y.life = life
	defer y.workers.Wait()
	defer end()
	if err := y.removed(ctx); err != nil {
		return fmt.Errorf("a lane is removed: %w", err)
	}
	if err := y.madeAnew(ctx); err != nil {
		return fmt.Errorf("a lane is made anew: %w", err)
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	twice := maps.Clone(y.ran)
	maps.DeleteFunc(twice, func(_ string, times int) bool { return times == 1 })
	s.Promise(len(twice) == 0, "jobs ran more than once: %v", twice)
	s.Promise(len(y.wrong) == 0, "jobs were given bodies of others: %q", y.wrong)
	return nil
}

// removed: jobs whose bodies lay in the lane wait, all others run, and each lane that
// is left takes more.
func (y *beside) removed(ctx context.Context) error {
	const each = 30
	var there, elsewhere []string
	for i := range y.Nodes {
		jids, err := y.enqueue(ctx, i, "kept", each)
		if err != nil {
			return err
		}
		if i == 0 { // a member's own lane has its number
			there = jids
		} else {
			elsewhere = append(elsewhere, jids...)
		}
	}
	if err := y.folded(ctx); err != nil {
		return err
	}
	y.s.Fault("remove", "lane 0 of a yard beside this one")
	var done any
	if err := y.intruder.Ask(ctx, "$JS.API.STREAM.DELETE."+cluster.LaneStream(0), nil, &done); err != nil {
		return err
	}
	y.told(ctx, "a removed lane", "lane 0 is not folded: ")
	y.work("kept")
	for i := range y.Nodes {
		jids, err := y.enqueue(ctx, i, "kept", each)
		if err != nil {
			return err
		}
		elsewhere = append(elsewhere, jids...)
	}
	y.allRun(ctx, "while a lane is gone", elsewhere)
	return y.wait(ctx, there)
}

// madeAnew: no job is accepted into the stream that has the lane's name, and what lies
// in it is nobody's body.
func (y *beside) madeAnew(ctx context.Context) error {
	const each = 30
	waiting, err := y.enqueue(ctx, 1, "later", each)
	if err != nil {
		return err
	}
	if err := y.folded(ctx); err != nil {
		return err
	}
	y.s.Fault("make anew", "lane 1 of a yard beside this one")
	stream := cluster.LaneStream(1)
	var was struct {
		Config map[string]any
	}
	var done any
	if err := y.intruder.Ask(ctx, "$JS.API.STREAM.INFO."+stream, nil, &was); err != nil {
		return err
	}
	delete(was.Config, "metadata")
	if err := y.intruder.Ask(ctx, "$JS.API.STREAM.DELETE."+stream, nil, &done); err != nil {
		return err
	}
	if err := y.intruder.Ask(ctx, "$JS.API.STREAM.CREATE."+stream, was.Config, &done); err != nil {
		return err
	}
	meanwhile, err := y.enqueue(ctx, 1, "kept", 4*each)
	if err != nil {
		return err
	}
	for i := range 4 * each { // where bodies were, others are
		record := map[string]any{"params": map[string]any{"key": fmt.Sprintf("strange-%d", i)}}
		if err := y.intruder.Ask(ctx, "yard.lane.1.n.later", record, &done); err != nil {
			return err
		}
	}
	y.told(ctx, "a lane that was made anew", "lane 1 is not folded: its stream is another one than the ledger's")
	y.work("later")
	after, err := y.enqueue(ctx, 1, "later", each)
	if err != nil {
		return err
	}
	y.allRun(ctx, "while a lane is another one", append(meanwhile, after...))
	return y.wait(ctx, waiting)
}

// enqueue gives a node jobs, one after the other, and their JIDs: with bodies that no
// assignment carries.
func (y *beside) enqueue(ctx context.Context, at int, queue string, jobs int) (jids []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	p := &overhop.Producer{Nodes: []string{y.Nodes[at].Edge}, Name: "strange"}
	defer p.Close() //nolint:errcheck // all has been answered
	for i := range jobs {
		key := fmt.Sprintf("n%d-%d-%d", at+1, time.Now().UnixNano(), i)
		body := overhop.AppendStr(nil, key+" "+strings.Repeat("x", 8<<10))
		jid, err := p.Enqueue(ctx, overhop.Enqueue{Queue: queue, Key: key, Payload: body})
		if err != nil {
			return nil, err
		}
		jids = append(jids, jid)
	}
	return jids, nil
}

// work runs a queue's jobs, and notes whether each has its own body.
func (y *beside) work(queue string) {
	w := overhop.Worker{Name: "strange", Log: slog.New(slog.DiscardHandler), Grace: time.Second, Create: true}
	for _, n := range y.Nodes {
		w.Nodes = append(w.Nodes, n.Edge)
	}
	w.Handle(queue, 16, func(_ context.Context, q *overhop.Quest) (overhop.Raw, error) {
		text, _ := q.Payload.Str()
		key, _, _ := strings.Cut(text, " ")
		id, err := job.KeyID(queue, key)
		y.mu.Lock()
		defer y.mu.Unlock()
		y.ran[q.JID]++
		if err != nil || q.JID != queue+":"+id.String() {
			y.wrong = append(y.wrong, q.JID)
		}
		return nil, nil
	})
	y.workers.Go(func() { _ = w.Run(y.life) }) // ends with it
}

// folded waits until nothing is accepted that the ledger does not have.
func (y *beside) folded(ctx context.Context) error {
	var left []any
	if within(ctx, 20*time.Second, func() bool {
		st, err := y.Nodes[0].Status(ctx)
		left = []any{err}
		for _, lane := range st.Lanes {
			if lane.Leader != "" && lane.Lag > 0 {
				left = append(left, lane)
			}
		}
		return err == nil && len(left) == 1
	}) {
		return nil
	}
	return fmt.Errorf("not all is folded: %v", left)
}

// told waits until a member that does not decide says what is wrong.
func (y *beside) told(ctx context.Context, what, begin string) {
	began := time.Now()
	var reasons []string
	told := within(ctx, 40*time.Second, func() bool {
		st, err := y.Nodes[2].Status(ctx)
		if err == nil {
			reasons = st.Readiness.Reasons
		}
		return slices.ContainsFunc(reasons, func(r string) bool { return strings.HasPrefix(r, begin) })
	})
	y.s.Promise(told, "%s is not told: %q", what, reasons)
	y.s.Figure("until it was told: "+what, time.Since(began))
	y.s.Say("the yard says %q", reasons)
}

// allRun promises that jobs run.
func (y *beside) allRun(ctx context.Context, when string, jids []string) {
	var left []string
	all := within(ctx, time.Minute, func() bool {
		y.mu.Lock()
		defer y.mu.Unlock()
		left = slices.DeleteFunc(slices.Clone(jids), func(jid string) bool { return y.ran[jid] > 0 })
		return len(left) == 0
	})
	y.s.Promise(all, "%s, %d of %d accepted jobs do not run: %q", when, len(left), len(jids), left)
	y.s.Figure("jobs that ran "+when, len(jids)-len(left))
}

// wait promises that jobs are there, and have not run.
func (y *beside) wait(ctx context.Context, jids []string) error {
	for _, jid := range jids {
		queue, id, _ := strings.Cut(jid, ":")
		var view struct{ State string }
		if err := y.Nodes[2].Ask(ctx, cluster.SubjectAPI+".job.show", map[string]string{"id": id, "queue": queue}, &view); err != nil {
			return err
		}
		y.mu.Lock()
		ran := y.ran[jid]
		y.mu.Unlock()
		y.s.Promise(ran == 0 && (view.State == "waiting" || view.State == "active"), "job %s, whose body is lost, is %s and ran %d times", jid, view.State, ran)
	}
	y.s.Figure("jobs that wait for a body that is lost", len(jids))
	return nil
}
