package pages

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/web/console/calls"
)

// Limits of the page of a past state.
const (
	pastJobs   = 100
	pastQueues = 200
)

// pastData is the data of the page of a past state.
type pastData struct {
	api.State
	Queue     string // only this one; "" means all
	Queues    []pastQueue
	Limits    []pastObject
	Crons     []pastObject
	Running   []pastRun
	MoreJobs  int // further running jobs
	More      int // further queues
	Authority string
	Leased    string     // until when the authority has its lease, as it was given; may be any text
	LeasedAt  time.Time  // zero if Leased is not a time
	Now       time.Time  // when the page was loaded
	Problem   *api.Error // why there is no state
}

// pastObject is an object of a past state, with its settings.
type pastObject struct {
	Name     string          `json:"-"`
	Paused   bool            `json:"paused"`
	Open     bool            `json:"open"` // the circuit of a limit
	Settings json.RawMessage `json:"settings"`
}

type pastQueue struct {
	pastObject
	Counts map[string]int64 `json:"counts"`
}

// pastRun is a job that ran.
type pastRun struct {
	ID       string    `json:"-"`
	Queue    string    `json:"queue"`
	Function string    `json:"function"`
	Node     string    `json:"node"`
	Worker   string    `json:"worker"`
	Attempt  uint32    `json:"attempt"`
	Started  time.Time `json:"started"`
}

// Past loads the page: the state of the yard, or of one queue, at a point of its history.
func Past(ctx context.Context, e *Env, v *View) (any, error) {
	at := strings.TrimSpace(v.Query.Get("at"))
	if ago := v.Query.Get("ago"); ago != "" && at == "" {
		at = ago + "m"
	}
	d := &pastData{Queue: v.Query.Get("queue"), Now: time.Now().UTC()}
	var err error
	if d.State, err = ask[api.State](ctx, e, v, "state-at", &api.StateRequest{At: at}); err != nil {
		d.Problem, err = askAgain(err)
		return d, err
	}
	var state struct {
		Queues    map[string]*pastQueue  `json:"queues"`
		Limits    map[string]*pastObject `json:"limits"`
		Crons     map[string]*pastObject `json:"crons"`
		Running   map[string]*pastRun    `json:"running"`
		Authority struct {
			Owner string `json:"owner"`
			Until string `json:"leased_until"`
		} `json:"authority"`
	}
	if err := json.Unmarshal(d.State.State, &state); err != nil {
		return nil, err
	}
	d.Authority, d.Leased = state.Authority.Owner, state.Authority.Until
	d.LeasedAt, _ = time.Parse(time.RFC3339, d.Leased)
	for _, name := range slices.Sorted(maps.Keys(state.Queues)) {
		q := state.Queues[name]
		if q.Name = name; d.Queue == "" || d.Queue == name {
			d.Queues = append(d.Queues, *q)
		}
	}
	if d.Queue != "" && len(d.Queues) == 0 {
		return nil, &api.Error{Code: api.CodeNotFound, Text: "there was no queue " + d.Queue + " then"}
	}
	d.More = max(0, len(d.Queues)-pastQueues)
	d.Queues = d.Queues[:min(len(d.Queues), pastQueues)]
	if d.Queue == "" {
		d.Limits, d.Crons = pastObjects(state.Limits), pastObjects(state.Crons)
	}
	for id, run := range state.Running {
		if run.ID = id; d.Queue == "" || d.Queue == run.Queue {
			d.Running = append(d.Running, *run)
		}
	}
	slices.SortFunc(d.Running, func(a, b pastRun) int { return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.ID, b.ID)) })
	d.MoreJobs = max(0, len(d.Running)-pastJobs)
	d.Running = d.Running[:min(len(d.Running), pastJobs)]
	return d, nil
}

// askAgain returns an error as a part of a page from which another request can be made. It
// returns one that no other request would avoid as an error of the whole page.
func askAgain(err error) (*api.Error, error) {
	problem := calls.Problem(err)
	if problem.Code == api.CodeForbidden || problem.Code == api.CodeUnavailable {
		return nil, err
	}
	return problem, nil
}

// pastObjects returns objects by name.
func pastObjects(objects map[string]*pastObject) (all []pastObject) {
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		objects[name].Name = name
		all = append(all, *objects[name])
	}
	return all
}

// Ago returns how many minutes ago the state was, at most a day.
func (d *pastData) Ago() int {
	if d.At.IsZero() {
		return 0
	}
	return min(max(0, int(d.Now.Sub(d.At).Minutes())), 24*60)
}

// Before and After return the numbers of the events next to the state's.
func (d *pastData) Before() uint64 { return max(d.Event, 1) - 1 }
func (d *pastData) After() uint64  { return d.Event + 1 }

// diffData is the data of the page of what differs between two states.
type diffData struct {
	api.StateDiff
	More    int        // further differences
	Problem *api.Error // why there is no StateDiff
}

// maxDifferences is how many differences the page shows.
const maxDifferences = 500

// Diff loads the page: what differs between two points of history.
func Diff(ctx context.Context, e *Env, v *View) (any, error) {
	from, to := strings.TrimSpace(v.Query.Get("from")), strings.TrimSpace(v.Query.Get("to"))
	d := &diffData{}
	var err error
	if from == "" {
		return d, nil
	}
	if d.StateDiff, err = ask[api.StateDiff](ctx, e, v, "state-diff", &api.StateDiffRequest{From: from, To: to}); err != nil {
		d.Problem, err = askAgain(err)
		return d, err
	}
	d.More = max(0, len(d.Differences)-maxDifferences)
	d.Differences = d.Differences[:min(len(d.Differences), maxDifferences)]
	return d, nil
}
