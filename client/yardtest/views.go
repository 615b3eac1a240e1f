package yardtest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math/big"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/client"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Jobs returns the jobs of a queue, or with "" of all, in the order in which they were
// accepted, with their params and results as JSON.
func (y *Yard) Jobs(queue string) []api.Job {
	y.t.Helper()
	defer y.enter()()
	y.catchUp()
	n := y.anyNode()
	if n == nil {
		y.t.Fatalf("yardtest: Jobs: no member runs.%s", y.quorumHint())
	}
	query := &ledger.JobQuery{Limit: maxPage, MaxScan: maxPage, Oldest: true}
	if queue != "" {
		query.Queues = []string{queue}
	}
	var jobs []api.Job
	for {
		page, err := n.viewer.JobList(y.ctx, query)
		if err != nil {
			y.t.Fatalf("yardtest: list jobs: %v", err)
		}
		for i := range page.Jobs {
			jobs = append(jobs, y.show(page.Jobs[i].ID))
		}
		if page.Next == nil {
			return jobs
		}
		query.After = page.Next
	}
}

// maxPage is the size of a page of jobs.
const maxPage = 1000

// show returns a job with its params and result as JSON.
func (y *Yard) show(id job.ID) api.Job {
	y.t.Helper()
	view, err := y.anyNode().viewer.Full(y.ctx, id, api.MaxShownBytes)
	if err != nil {
		y.t.Fatalf("yardtest: show job %s: %v", id, err)
	}
	shown := api.JobOf(&view)
	if len(shown.Params) == 0 && len(shown.Payload) > 0 {
		shown.Params = overhop.AppendLossyJSON(nil, overhop.Raw(shown.Payload))
	}
	if len(shown.Result) == 0 && len(shown.ResultMsgpack) > 0 {
		shown.Result = overhop.AppendLossyJSON(nil, overhop.Raw(shown.ResultMsgpack))
	}
	return shown
}

// Call returns args of a job whose params have no type of their own, for
// [Yard.ExpectEnqueued].
func Call(function string, params any) client.Args { return call{function, params} }

type call struct {
	function string
	params   any
}

func (c call) Kind() string                 { return c.function }
func (c call) MarshalJSON() ([]byte, error) { return json.Marshal(c.params) }

// ExpectEnqueued returns the first job, of any queue and in any state, that calls the
// function of args with the params that args are as JSON. If there is none, it fails the test
// and shows the jobs that there are.
func (y *Yard) ExpectEnqueued(args client.Args) api.Job {
	y.t.Helper()
	defer y.enter()()
	text, err := json.Marshal(args)
	if err != nil {
		y.t.Fatalf("yardtest: ExpectEnqueued(%T): %v", args, err)
	}
	want := canonical(text)
	for _, j := range y.Jobs("") {
		if j.Function == args.Kind() && reflect.DeepEqual(canonical(cmp.Or(string(j.Params), "null")), want) {
			return j
		}
	}
	y.t.Fatalf("yardtest: no job %s(%s) was enqueued; there are %s", args.Kind(), text, y.list(args.Kind()))
	return api.Job{}
}

// canonical returns a JSON text decoded, with numbers that are equal if their values are.
func canonical[T []byte | string](text T) any {
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return string(text)
	}
	return exact(v)
}

// exact returns v with a canonical text in place of each number.
func exact(v any) any {
	switch v := v.(type) {
	case json.Number:
		if r, ok := new(big.Rat).SetString(v.String()); ok {
			return json.Number(r.RatString())
		}
	case []any:
		for i := range v {
			v[i] = exact(v[i])
		}
	case map[string]any:
		for key := range v {
			v[key] = exact(v[key])
		}
	}
	return v
}

// maxListed is how many jobs a message shows.
const maxListed = 20

// listActive returns the jobs that run, those that have run for longest first, as a sentence
// with a line for each, and what to do about a handler that does not return.
func (y *Yard) listActive() string {
	y.t.Helper()
	var active []api.Job
	for _, j := range y.Jobs("") {
		if j.State == job.Active.String() && j.Started != nil {
			active = append(active, j)
		}
	}
	if len(active) == 0 {
		return ""
	}
	slices.SortStableFunc(active, func(a, b api.Job) int { return a.Started.Compare(*b.Started) })
	var b strings.Builder
	b.WriteString(" If a handler waits for the test, call Advance instead. The jobs that run:")
	for i := range active[:min(len(active), maxListed)] {
		j := &active[i]
		fmt.Fprintf(&b, "\n\t%s in queue %s, attempt %d, for %s: %s(%s)",
			j.ID, j.Queue, j.Attempts, time.Since(*j.Started).Round(time.Second), j.Function, j.Params)
	}
	if more := len(active) - maxListed; more > 0 {
		fmt.Fprintf(&b, "\n\t… %d more", more)
	}
	return b.String()
}

// list returns the jobs as lines of text, those of a function first.
func (y *Yard) list(function string) string {
	var first, rest bytes.Buffer
	jobs := y.Jobs("")
	shown := 0
	for i := range jobs {
		j := &jobs[i]
		b := &rest
		if j.Function == function {
			b = &first
		}
		if shown++; shown > maxListed {
			fmt.Fprintf(&rest, "\n\t… %d more", len(jobs)-maxListed)
			break
		}
		fmt.Fprintf(b, "\n\t%s in queue %s, %s after %d attempts: %s(%s)", j.ID, j.Queue, j.State, j.Attempts, j.Function, j.Params)
		if j.Error != nil {
			fmt.Fprintf(b, " failed: %s", j.Error.Message)
		}
	}
	if len(jobs) == 0 {
		return "no jobs at all"
	}
	return fmt.Sprintf("%d jobs:%s%s", len(jobs), first.String(), rest.String())
}
