package drill

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
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
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
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
		published := make(map[string]int)
		for _, l := range loads {
			published[l.Queue] += l.Jobs
		}
		for queue, jobs := range published {
			var q api.Queue
			n := running[time.Now().UnixNano()%int64(len(running))]
			if err := n.Ask(ctx, api.SubjectAPI+".queue.show", map[string]any{"name": queue}, &q); err != nil {
				return err
			}
			if ended := q.Counts["completed"] + q.Counts["failed"] + q.Counts["cancelled"]; ended < jobs {
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
		for _, state := range []string{"failed", "cancelled"} {
			must.Do(c.eachEnded(ctx, n, queue, state, func(id job.ID) {
				v.Failed++
				v.judgeEnded(id, open)
			}))
		}
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

// eachEnded calls visit for each job of a queue that ended in a state.
func (c *Cluster) eachEnded(ctx context.Context, n *Node, queue, state string, visit func(job.ID)) error {
	request := api.JobListRequest{Queues: []string{queue}, States: []string{state}, Order: api.OrderOldest, Limit: 1000, Brief: true}
	for {
		var list api.JobList
		if err := n.Ask(ctx, api.Subject("job-list"), &request, &list); err != nil {
			return err
		}
		for i := range list.Jobs {
			visit(list.Jobs[i].ID)
		}
		if request.After = list.Next; list.Next == "" {
			return nil
		}
	}
}

// judgeWitnesses adds the runs recorded in all witness files to the verdict.
func (c *Cluster) judgeWitnesses(v *Verdict, completed map[job.ID]bool) {
	var runs []check.Run
	for _, f := range must.Get(filepath.Glob(filepath.Join(c.Dir, "*.witness"))) {
		runs = append(runs, must.Get(ReadWitness(f))...)
	}
	slices.SortFunc(runs, func(a, b check.Run) int { return cmp.Compare(a.Begin, b.Begin) })
	v.Runs = len(runs)
	until := make(map[string]int64) // the last end of each job's runs
	for _, r := range runs {
		if r.Begin > 0 {
			v.starts = append(v.starts, r.Begin)
			v.runs = append(v.runs, r)
		}
		if end, ran := until[r.Job]; ran {
			v.Reruns++
			if end > r.Begin {
				v.Overlaps++
			}
		}
		until[r.Job] = max(until[r.Job], r.End)
	}
	for id := range completed {
		if _, ran := until[id.String()]; !ran {
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
func maxConcurrent(runs []check.Run, result map[string]int) {
	type edge struct {
		at    int64
		step  int
		queue string
	}
	var edges []edge
	for _, r := range runs {
		if r.End > 0 && r.Begin > 0 {
			edges = append(edges, edge{r.Begin, 1, r.Queue}, edge{r.End, -1, r.Queue})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int {
		return cmp.Or(cmp.Compare(a.at, b.at), a.step-b.step)
	})
	now := make(map[string]int)
	for _, e := range edges {
		now[e.queue] += e.step
		result[e.queue] = max(result[e.queue], now[e.queue])
	}
}

// ReadWitness reads the witness file of a worker, an example worker or a runner. Only
// workers record times, so that the runs of the others have none.
func ReadWitness(path string) (runs []check.Run, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read witness: %w", err)
	}
	open := make(map[string]int) // by job and fence: index in runs
	for line := range strings.Lines(string(text)) {
		run, id, ended, err := parseWitness(line)
		if err != nil {
			return nil, fmt.Errorf("witness %s: malformed line %q: %w", filepath.Base(path), line, err)
		}
		run.Job, run.Worker = id.String(), filepath.Base(path)
		dispatch := fmt.Sprint(run.Job, run.Fence)
		i, begun := open[dispatch]
		switch {
		case ended && begun:
			runs[i].End = run.Begin
		case !ended || run.Begin > 0:
			open[dispatch] = len(runs)
			runs = append(runs, run)
		}
	}
	return runs, nil
}

// parseWitness parses a line of a witness file. If it records the end of a run, ended is
// true and run.Begin is the time of the end.
func parseWitness(line string) (run check.Run, id job.ID, ended bool, err error) {
	words := strings.Fields(line)
	if len(words) == 0 {
		return run, id, false, errors.New("it is empty")
	}
	ended = words[0] == "end"
	queue, text, isJID := strings.Cut(words[0], ":")
	switch {
	case len(words) == 5 || len(words) == 6: // a worker: "<begin|end> <queue>:<job> <attempt> <fence> <time> [<key>]"
		run.Key = strings.Join(words[5:], "")
		run.Queue, text, _ = strings.Cut(words[1], ":")
		if _, err := fmt.Sscan(words[3]+" "+words[4], &run.Fence, &run.Begin); err != nil {
			return run, id, ended, err
		}
		id, err = job.ParseID(text)
	case isJID: // the example worker: "<queue>:<job> <attempt> <fence>"
		run.Queue = queue
		id, err = job.ParseID(text)
	case !ended: // a runner: "<dispatch id> <job> <attempt>", then "end <dispatch id>"
		var valid bool
		if id, _, valid = job.ParseRequestID(words[0]); !valid {
			err = errors.New("it has no dispatch id")
		}
	}
	return run, id, ended, err
}

// history is a summary of a cluster's events; times are by the host's clock.
type history struct {
	eventGaps  int            // events whose number is not the next
	duplicates int            // dispatches with two ends, and jobs delivered twice
	delivered  map[string]int // number of deliveries of each job
	placed     []placement
	ends       []check.End
	leases     []check.Lease
}

// placement is the assignment of a job to a node.
type placement struct {
	job, queue string
	at         int64
}

// readHistory reads the whole history through one node.
func readHistory(ctx context.Context, n *Node) (h history, err error) {
	c, err := cluster.Dial(ctx, n.URL(), cluster.DialOptions{Name: "drill"})
	if err != nil {
		return h, err
	}
	defer c.Close()
	now, err := readHostClock()
	if err != nil {
		return h, err
	}
	offset := time.Now().UnixNano() - now // all processes are on this host
	h.delivered = make(map[string]int)
	ended := make(map[string]int) // number of ends of each dispatch
	queues := make(map[string]string)
	next := uint64(1)
	err = c.History(ctx, time.Time{}, false, func(b streams.Batch) error {
		for _, text := range bytes.Split(bytes.TrimSpace(b.Body), []byte("\n")) {
			var e struct {
				Event, Owner, Queue, Target, Channel, Reason string
				Request                                      string `json:"request_id"`
				Lease                                        string `json:"lease_id"`
				Seq                                          uint64
				At                                           time.Time
			}
			if err := json.Unmarshal(text, &e); err != nil {
				return fmt.Errorf("malformed line of history %q: %w", text, err)
			}
			if e.Seq != next {
				h.eventGaps++
			}
			next = e.Seq + 1
			at := e.At.UnixNano() - offset
			switch e.Event {
			case "AuthorityAcquired", "AuthorityRenewed":
				h.leases = append(h.leases, check.Lease{Acquired: e.Event == "AuthorityAcquired", Owner: e.Owner, ID: e.Lease, At: at})
			case "DispatchQueued":
				queues[e.Request] = cmp.Or(e.Queue, e.Target) // the target of a worker's job is its queue
			case "DispatchNotified":
				if e.Channel != "none" {
					id, _, _ := strings.Cut(e.Request, "#")
					h.placed = append(h.placed, placement{id, queues[e.Request], at})
				}
			case "DispatchDelivered", "DispatchFailed":
				id, _, _ := strings.Cut(e.Request, "#")
				h.ends = append(h.ends, check.End{Job: id, Failed: e.Event == "DispatchFailed", Reason: e.Reason, At: at})
				if ended[e.Request]++; ended[e.Request] > 1 {
					h.duplicates++
				}
				if e.Event == "DispatchDelivered" {
					if h.delivered[id]++; h.delivered[id] > 1 {
						h.duplicates++
					}
				}
			}
		}
		return nil
	})
	return h, err
}

// acquired returns the number of acquisitions of the authority between two moments.
func (h *history) acquired(from, to int64) (n int) {
	for _, l := range h.leases {
		if l.Acquired && l.At > from && l.At < to {
			n++
		}
	}
	return n
}

// outcomeGaps returns the longest time between two ends before lastAck, and the
// longest time from the kill of a node to the next end.
func (c *Cluster) outcomeGaps(ends []check.End, lastAck int64) (gap, recovery time.Duration) {
	last := int64(0)
	for _, e := range ends {
		if last > 0 && e.At < lastAck {
			gap = max(gap, time.Duration(e.At-last))
		}
		for _, kill := range c.kills {
			if last <= kill && e.At > kill {
				recovery = max(recovery, time.Duration(e.At-kill))
			}
		}
		last = e.At
	}
	return gap, recovery
}
