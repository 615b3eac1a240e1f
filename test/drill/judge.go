package drill

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/test/drill/check"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// Verdict is the comparison of acknowledgements, the state of the cluster, history
// and witness files.
type Verdict struct {
	Acknowledged      int            `json:"acknowledged"`
	Completed         int            `json:"completed"`
	Failed            int            `json:"failed"`
	Lost              int            `json:"lost"`                 // acknowledged, but not ended
	Unexpected        int            `json:"unexpected"`           // ended, but never acknowledged
	Duplicates        int            `json:"duplicate_outcomes"`   // dispatches with more than one outcome, jobs completed twice
	HistoryGaps       int            `json:"history_gaps"`         // events whose number is not the next
	CompletedUnseen   int            `json:"unwitnessed"`          // completed, but not in any witness file
	Runs              int            `json:"runs"`                 // recorded by witnesses
	Reruns            int            `json:"runs_again"`           // beyond the first of a job
	Overlaps          int            `json:"overlaps"`             // runs of a job that began before an earlier one had ended
	Unjustified       int            `json:"overlaps_unjustified"` // overlaps without a reason in history
	Twice             int            `json:"dispatches_run_twice"`
	MaxConcurrent     map[string]int `json:"most_at_once"`   // by queue
	Stale             uint64         `json:"stale_outcomes"` // outcomes that came too late, as counted by a node
	LongestAckGap     time.Duration  `json:"ack_gap_ns"`     // longest time between two acknowledgements of a load
	LongestOutcomeGap time.Duration  `json:"end_gap_ns"`     // longest time between two ends while jobs were published
	Recovery          time.Duration  `json:"recovery_ns"`    // longest time from the kill of a node to the next end
	Retried           int            `json:"publishes_repeated"`
	Refusals          map[string]int `json:"-"` // number of failed publishes by error

	starts      []int64 // of recorded runs, by the host's clock
	runs        []check.Run
	events      history
	unjustified []string
	reasons     map[string]int // number of justified overlaps by reason
}

// String returns the verdict as one line.
func (v *Verdict) String() string {
	return fmt.Sprintf("acknowledged %d, completed %d, failed %d, lost %d, unexpected %d, duplicate outcomes %d, history gaps %d, "+
		"unwitnessed %d, runs %d (%d again, %d overlapping), maximum concurrency %v, stale outcomes %d, longest gap between acks %s (%d publishes repeated: %v), between ends %s, from a kill to the next end %s",
		v.Acknowledged, v.Completed, v.Failed, v.Lost, v.Unexpected, v.Duplicates, v.HistoryGaps, v.CompletedUnseen,
		v.Runs, v.Reruns, v.Overlaps, v.MaxConcurrent, v.Stale, v.LongestAckGap.Round(time.Millisecond), v.Retried, v.Refusals, v.LongestOutcomeGap.Round(time.Millisecond), v.Recovery.Round(time.Millisecond))
}

// Flaws returns the counts that must be 0 and are not.
func (v *Verdict) Flaws() (flaws []string) {
	for _, f := range []struct {
		what string
		n    int
	}{
		{"lost", v.Lost}, {"unexpected", v.Unexpected}, {"with two outcomes", v.Duplicates},
		{"gaps in history", v.HistoryGaps}, {"completed without a witness", v.CompletedUnseen},
		{"overlapping runs without a reason", v.Unjustified}, {"dispatches that ran more than once", v.Twice},
	} {
		if f.n > 0 {
			flaws = append(flaws, fmt.Sprintf("%d %s", f.n, f.what))
		}
	}
	return flaws
}

// Await waits until the cluster reports that every job of the loads has ended.
func (c *Cluster) Await(ctx context.Context, loads ...*Load) error {
	return until(ctx, "all jobs have ended", func() error {
		running := c.Running()
		if len(running) == 0 {
			return fmt.Errorf("no node is running")
		}
		want := make(map[string]int)
		for _, l := range loads {
			want[l.Queue] += l.Jobs
		}
		for queue, jobs := range want {
			var q api.Queue
			n := running[time.Now().UnixNano()%int64(len(running))]
			if err := n.Ask(ctx, api.SubjectAPI+".queue.show", map[string]any{"name": queue}, &q); err != nil {
				return err
			}
			if ended := q.Counts["completed"] + q.Counts["failed"]; ended < jobs {
				return fmt.Errorf("queue %s: %d of %d jobs have ended: %v", queue, ended, jobs, q.Counts)
			}
		}
		return nil
	})
}

// Judge compares the acknowledged jobs with the state of the cluster, history and
// witness files. All jobs must have ended.
func (c *Cluster) Judge(ctx context.Context, loads ...*Load) (v Verdict, err error) {
	err = must.Try(func() { c.judge(ctx, &v, loads) })
	return v, err
}

// judge fills in a verdict.
func (c *Cluster) judge(ctx context.Context, v *Verdict, loads []*Load) {
	v.MaxConcurrent, v.Refusals = make(map[string]int), make(map[string]int)
	n := c.Running()[0]
	completed := c.judgeStates(ctx, n, loads, v)
	lastAck := int64(0)
	for _, l := range loads {
		if acks := slices.Sorted(slices.Values(l.acks)); len(acks) > 0 {
			v.LongestAckGap = max(v.LongestAckGap, longest(acks, 0, math.MaxInt64))
			lastAck = max(lastAck, acks[len(acks)-1])
		}
		for reason, times := range l.refusals {
			v.Refusals[reason] += times
			v.Retried += times
		}
	}
	// After the death of a node, JetStream takes seconds to elect new stream leaders.
	err := until(ctx, "history is read", func() (err error) {
		v.events, err = readHistory(ctx, n)
		if err == nil && len(v.events.delivered) < v.Completed { // history is published after the commit
			err = fmt.Errorf("it has deliveries of %d jobs, want %d", len(v.events.delivered), v.Completed)
		}
		return err
	})
	v.Duplicates, v.HistoryGaps = v.events.duplicates, v.events.eventGaps
	v.LongestOutcomeGap, v.Recovery = c.outcomeGaps(v.events.ends, lastAck)
	must.Do(err)
	v.Stale = must.Get(n.Status(ctx)).StaleOutcomes
	c.judgeWitnesses(v, completed)
}

// judgeStates compares the acknowledged jobs with those that have ended, by queue,
// and returns the completed ones.
func (c *Cluster) judgeStates(ctx context.Context, n *Node, loads []*Load, v *Verdict) map[job.ID]bool {
	completed := make(map[job.ID]bool)
	open := make(map[string]map[job.ID]bool) // by queue: acknowledged, not found among the ended
	for _, l := range loads {
		if open[l.Queue] == nil {
			open[l.Queue] = make(map[job.ID]bool)
		}
		ids := must.Get(l.ids())
		maps.Copy(open[l.Queue], ids)
		v.Acknowledged += len(ids)
	}
	for queue, open := range open {
		must.Do(c.eachEnded(ctx, n, queue, "completed", func(id job.ID) {
			completed[id] = true
			v.Completed++
			v.judgeEnded(id, open)
		}))
		must.Do(c.eachEnded(ctx, n, queue, "failed", func(id job.ID) {
			v.Failed++
			v.judgeEnded(id, open)
		}))
		v.Lost += len(open)
	}
	return completed
}

// judgeEnded removes a job that has ended from the open ones.
func (v *Verdict) judgeEnded(id job.ID, open map[job.ID]bool) {
	if !open[id] {
		v.Unexpected++
	}
	delete(open, id)
}

// eachEnded calls visit for each job of a queue that ended in a state. It halves
// the page size if a page of large jobs does not fit into an answer.
func (c *Cluster) eachEnded(ctx context.Context, n *Node, queue, state string, visit func(job.ID)) error {
	seen, size := 0, 512 // size divides seen
	for {
		var answer api.JobPage
		request := api.JobRequest{Queue: queue, State: state, Page: seen/size + 1, PageSize: size}
		err := n.Ask(ctx, api.SubjectAPI+".job.list", request, &answer)
		if refusal := (*api.Error)(nil); errors.As(err, &refusal) && refusal.Code == "413" && size > 1 {
			size /= 2
			continue
		}
		if err != nil {
			return err
		}
		for _, j := range answer.Jobs {
			visit(j.ID)
		}
		if len(answer.Jobs) < size {
			return nil
		}
		seen += size
	}
}

// run is one run of a job as recorded by its worker. end is 0 if the worker died, or
// is a runner; begin is 0 in the files of runners and example workers.
type run struct {
	job        job.ID
	queue      string
	fence      int64
	begin, end int64
}

// judgeWitnesses adds the runs recorded in all witness files to the verdict.
func (c *Cluster) judgeWitnesses(v *Verdict, completed map[job.ID]bool) {
	var runs []run
	for _, f := range must.Get(filepath.Glob(filepath.Join(c.Dir, "*.witness"))) {
		runs = append(runs, must.Get(readWitness(f))...)
	}
	slices.SortFunc(runs, func(a, b run) int { return int(min(max(a.begin-b.begin, -1), 1)) })
	v.Runs = len(runs)
	for _, r := range runs {
		if r.begin > 0 {
			v.starts = append(v.starts, r.begin)
			v.runs = append(v.runs, check.Run{Job: r.job.String(), Fence: uint64(r.fence), Begin: r.begin, End: r.end})
		}
	}
	until := make(map[job.ID]int64)
	for _, r := range runs {
		if end, ran := until[r.job]; ran {
			v.Reruns++
			if end > r.begin {
				v.Overlaps++
			}
		}
		until[r.job] = max(until[r.job], r.end)
	}
	for id := range completed {
		if _, ran := until[id]; !ran {
			v.CompletedUnseen++
		}
	}
	maxConcurrent(runs, v.MaxConcurrent)
	v.reasons = make(map[string]int)
	v.Twice = len(check.SameDispatch(v.runs))
	for _, o := range check.Overlaps(v.runs, v.events.ends) {
		if o.Reason == "" {
			v.Unjustified++
			v.unjustified = append(v.unjustified, o.String())
		} else {
			v.reasons[o.Reason]++
		}
	}
}

// maxConcurrent determines, by queue, the maximum number of concurrent runs. Runs
// without an end do not count: their worker was killed.
func maxConcurrent(runs []run, result map[string]int) {
	type edge struct {
		at    int64
		step  int
		queue string
	}
	var edges []edge
	for _, r := range runs {
		if r.end > 0 && r.begin > 0 {
			edges = append(edges, edge{r.begin, 1, r.queue}, edge{r.end, -1, r.queue})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int {
		if a.at == b.at {
			return a.step - b.step
		}
		return int(min(max(a.at-b.at, -1), 1))
	})
	now := make(map[string]int)
	for _, e := range edges {
		now[e.queue] += e.step
		result[e.queue] = max(result[e.queue], now[e.queue])
	}
}

// readWitness reads the witness file of a worker, an example worker or a runner.
func readWitness(path string) (runs []run, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read witness: %w", err)
	}
	open := make(map[string]int) // by job and fence: index in runs
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		var what, jid string
		var attempt, fence, at int64
		if n, _ := fmt.Sscan(lines.Text(), &what, &jid, &attempt, &fence, &at); n == 5 {
			queue, id, _ := strings.Cut(jid, ":")
			name := fmt.Sprint(jid, fence)
			if i, ok := open[name]; ok && what == "end" {
				runs[i].end = at
				continue
			}
			r := run{queue: queue, fence: fence, begin: at}
			if r.job, err = job.ParseID(id); err != nil {
				return nil, fmt.Errorf("witness %s: %w", filepath.Base(path), err)
			}
			open[name] = len(runs)
			runs = append(runs, r)
			continue
		}
		// The example worker writes "<queue>:<job> <attempt> <fence>".
		if queue, id, ok := strings.Cut(what, ":"); ok && len(strings.Fields(lines.Text())) == 3 {
			r := run{queue: queue}
			if r.job, err = job.ParseID(id); err != nil {
				return nil, fmt.Errorf("witness %s: %w", filepath.Base(path), err)
			}
			runs = append(runs, r)
			continue
		}
		if what == "end" {
			continue // end of a runner's handler, without a time
		}
		id, _, ok := job.ParseRequestID(strings.Fields(lines.Text() + " ")[0])
		if !ok {
			return nil, fmt.Errorf("witness %s: malformed line %q", filepath.Base(path), lines.Text())
		}
		runs = append(runs, run{job: id})
	}
	return runs, lines.Err()
}
