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

	"yardmaster/cluster"
	"yardmaster/drill/check"
	"yardmaster/job"
)

// Verdict is what came out of a drill.
type Verdict struct {
	Acknowledged int            `json:"acknowledged"`
	Completed    int            `json:"completed"`
	Failed       int            `json:"failed"`
	Lost         int            `json:"lost"`                 // acknowledged, and not ended
	Unexpected   int            `json:"unexpected"`           // ended, and never published
	Duplicates   int            `json:"duplicate_outcomes"`   // dispatches with more than one outcome, jobs completed twice
	HistoryGaps  int            `json:"history_gaps"`         // events whose number is not the next
	Unwitnessed  int            `json:"unwitnessed"`          // completed, and nobody saw it run
	Runs         int            `json:"runs"`                 // as witnessed
	Again        int            `json:"runs_again"`           // beyond a job's first
	Overlaps     int            `json:"overlaps"`             // runs of a job that began before an earlier one had ended
	Unjustified  int            `json:"overlaps_unjustified"` // those that history gives no reason for
	Twice        int            `json:"dispatches_run_twice"`
	MostAtOnce   map[string]int `json:"most_at_once"`   // by queue
	Stale        uint64         `json:"stale_outcomes"` // that came too late, as the yard counts
	AckGap       time.Duration  `json:"ack_gap_ns"`     // longest time between two acknowledgements of a load
	EndGap       time.Duration  `json:"end_gap_ns"`     // longest time between two ends while jobs were still published
	Recovery     time.Duration  `json:"recovery_ns"`    // longest time from killing a node to the next end
	Retried      int            `json:"publishes_repeated"`
	Refusals     map[string]int `json:"-"` // why publishes had to be repeated, and how often

	begins      []int64 // of witnessed runs, by the host's clock
	runs        []check.Run
	told        history
	unjustified []string
	reasons     map[string]int // of overlaps that history justifies
}

// String is the verdict in one line.
func (v *Verdict) String() string {
	return fmt.Sprintf("acknowledged %d, completed %d, failed %d, lost %d, unexpected %d, duplicate outcomes %d, history gaps %d, "+
		"unwitnessed %d, runs %d (%d again, %d overlapping), most at once %v, stale outcomes %d, longest gap between acks %s (%d publishes repeated: %v), between ends %s, from a kill to the next end %s",
		v.Acknowledged, v.Completed, v.Failed, v.Lost, v.Unexpected, v.Duplicates, v.HistoryGaps, v.Unwitnessed,
		v.Runs, v.Again, v.Overlaps, v.MostAtOnce, v.Stale, v.AckGap.Round(time.Millisecond), v.Retried, v.Refusals, v.EndGap.Round(time.Millisecond), v.Recovery.Round(time.Millisecond))
}

// Flaws lists what must never be.
func (v *Verdict) Flaws() (flaws []string) {
	for _, f := range []struct {
		what string
		n    int
	}{
		{"lost", v.Lost}, {"unexpected", v.Unexpected}, {"with two outcomes", v.Duplicates},
		{"missing in history", v.HistoryGaps}, {"completed and seen by nobody", v.Unwitnessed},
		{"twice at once without a reason", v.Unjustified}, {"dispatches that ran more than once", v.Twice},
	} {
		if f.n > 0 {
			flaws = append(flaws, fmt.Sprintf("%d %s", f.n, f.what))
		}
	}
	return flaws
}

// Await waits until every job of the loads has ended, as the yard says.
func (y *Yard) Await(ctx context.Context, loads ...*Load) error {
	return until(ctx, "all jobs have ended", func() error {
		up := y.Up()
		if len(up) == 0 {
			return fmt.Errorf("no node runs")
		}
		want := make(map[string]int)
		for _, l := range loads {
			want[l.Queue] += l.Jobs
		}
		for queue, jobs := range want {
			var q struct{ Counts map[string]int }
			n := up[time.Now().UnixNano()%int64(len(up))]
			if err := n.Ask(ctx, cluster.SubjectAPI+".queue.show", map[string]any{"name": queue}, &q); err != nil {
				return err
			}
			if ended := q.Counts["completed"] + q.Counts["failed"]; ended < jobs {
				return fmt.Errorf("%s: %d of %d: %v", queue, ended, jobs, q.Counts)
			}
		}
		return nil
	})
}

// Judge compares what was acknowledged, what the yard says and what witnesses
// saw. All jobs must have ended.
func (y *Yard) Judge(ctx context.Context, loads ...*Load) (v Verdict, err error) {
	v.MostAtOnce, v.Refusals = make(map[string]int), make(map[string]int)
	completed := make(map[job.ID]bool)
	lastAck := int64(0)
	n := y.Up()[0]
	if err := y.judgeStates(ctx, n, loads, &v, completed); err != nil {
		return v, err
	}
	for _, l := range loads {
		if acks := slices.Sorted(slices.Values(l.acks)); len(acks) > 0 {
			v.AckGap = max(v.AckGap, longest(acks, 0, math.MaxInt64))
			lastAck = max(lastAck, acks[len(acks)-1])
		}
		for why, times := range l.refused {
			v.Refusals[why] += times
			v.Retried += times
		}
	}
	// JetStream takes some seconds to elect whom to ask after a node's death.
	err = until(ctx, "history is read", func() error {
		told, err := readHistory(ctx, n)
		if err == nil && len(told.delivered) < v.Completed { // history follows the ledger at its own pace
			err = fmt.Errorf("it tells of %d jobs of %d", len(told.delivered), v.Completed)
		}
		v.told = told
		return err
	})
	v.Duplicates, v.HistoryGaps = v.told.twice, v.told.gaps
	v.EndGap, v.Recovery = y.gapsOfEnds(v.told.ends, lastAck)
	if err != nil {
		return v, err
	}
	s, err := n.Status(ctx)
	if err != nil {
		return v, err
	}
	v.Stale = s.StaleOutcomes
	return v, y.judgeWitnesses(&v, completed)
}

// judgeStates asks what became of the jobs of every queue that was loaded.
func (y *Yard) judgeStates(ctx context.Context, n *Node, loads []*Load, v *Verdict, completed map[job.ID]bool) error {
	open := make(map[string]map[job.ID]bool) // by queue: acknowledged, and not found ended
	for _, l := range loads {
		ids, err := l.ids()
		if err != nil {
			return err
		}
		if open[l.Queue] == nil {
			open[l.Queue] = make(map[job.ID]bool)
		}
		maps.Copy(open[l.Queue], ids)
		v.Acknowledged += len(ids)
	}
	for queue, open := range open {
		for _, state := range []string{"completed", "failed"} {
			err := y.eachEnded(ctx, n, queue, state, func(id job.ID) {
				if !open[id] {
					v.Unexpected++
				}
				delete(open, id)
				if state == "completed" {
					completed[id] = true
					v.Completed++
				} else {
					v.Failed++
				}
			})
			if err != nil {
				return err
			}
		}
		v.Lost += len(open)
	}
	return nil
}

// eachEnded lists the jobs of a queue that ended in a state. A page of large jobs
// may not fit an answer: then it is asked for by halves.
func (y *Yard) eachEnded(ctx context.Context, n *Node, queue, state string, visit func(job.ID)) error {
	seen, size := 0, 512 // size divides seen
	for {
		var answer struct {
			Jobs []struct {
				ID job.ID `json:"id"`
			} `json:"jobs"`
		}
		question := map[string]any{"queue": queue, "state": state, "page": seen/size + 1, "page_size": size}
		err := n.Ask(ctx, cluster.SubjectAPI+".job.list", question, &answer)
		if refusal := (*cluster.APIError)(nil); errors.As(err, &refusal) && refusal.Code == "413" && size > 1 {
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

// run is one run of a job as its worker saw it; end is 0 if the worker died.
type run struct {
	job        job.ID
	queue      string
	fence      int64
	begin, end int64
}

func (y *Yard) judgeWitnesses(v *Verdict, completed map[job.ID]bool) error {
	files, err := filepath.Glob(filepath.Join(y.Dir, "*.witness"))
	if err != nil {
		return err
	}
	var runs []run
	for _, f := range files {
		seen, err := readWitness(f)
		if err != nil {
			return err
		}
		runs = append(runs, seen...)
	}
	slices.SortFunc(runs, func(a, b run) int { return int(min(max(a.begin-b.begin, -1), 1)) })
	v.Runs = len(runs)
	for _, r := range runs {
		if r.begin > 0 {
			v.begins = append(v.begins, r.begin)
			v.runs = append(v.runs, check.Run{Job: r.job.String(), Fence: uint64(r.fence), Begin: r.begin, End: r.end})
		}
	}
	until := make(map[job.ID]int64)
	for _, r := range runs {
		if end, ran := until[r.job]; ran {
			v.Again++
			if end > r.begin {
				v.Overlaps++
			}
		}
		until[r.job] = max(until[r.job], r.end)
	}
	for id := range completed {
		if _, ran := until[id]; !ran {
			v.Unwitnessed++
		}
	}
	mostAtOnce(runs, v.MostAtOnce)
	v.reasons = make(map[string]int)
	v.Twice = len(check.SameDispatch(v.runs))
	for _, o := range check.Overlaps(v.runs, v.told.ends) {
		if o.Reason == "" {
			v.Unjustified++
			v.unjustified = append(v.unjustified, o.String())
		} else {
			v.reasons[o.Reason]++
		}
	}
	return nil
}

// mostAtOnce counts, by queue, how many runs there were at the same time. A
// run whose end nobody saw is not counted: its worker was killed.
func mostAtOnce(runs []run, most map[string]int) {
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
		most[e.queue] = max(most[e.queue], now[e.queue])
	}
}

// readWitness reads a worker's file or a runner's, which knows no ends.
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
			continue // a runner's handler: when, it does not say
		}
		id, _, ok := job.ParseRequestID(strings.Fields(lines.Text() + " ")[0])
		if !ok {
			return nil, fmt.Errorf("witness %s says %q", filepath.Base(path), lines.Text())
		}
		runs = append(runs, run{job: id})
	}
	return runs, lines.Err()
}
