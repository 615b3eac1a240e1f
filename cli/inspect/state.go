package inspect

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
)

// points explains in the help how a point of history is given.
const points = `A point is the number of an event, a time such as 2026-03-19T14:03:00Z, a date, a
time of today such as 14:03 (UTC), or a duration before now such as 1h or 2d. It may
be as old as the history that is kept, see 'yardmaster retention show'.`

// State returns the verb state.
func State(env *command.Env) *cobra.Command {
	var at string
	var event uint64
	c := command.Query(env, &cobra.Command{
		Use:   "state",
		Short: "Show queues, limits, running jobs and the authority as of any point of history",
		Long: `Shows the state of the yard at a point of its history: the numbers of jobs by queue
and state, settings, limits, running jobs and the authority. It is rebuilt from
history, by code that shares nothing with the ledger.

` + points,
		Example: `  yardmaster state --at 14:03
  yardmaster state --at-event 81234 --json`,
	}, stateTable, func([]string) (string, any) {
		if event > 0 {
			at = strconv.FormatUint(event, 10)
		}
		return api.Subject("state-at"), api.StateRequest{At: at}
	})
	c.Flags().StringVar(&at, "at", "", "`point` of history; default: now")
	c.Flags().Uint64Var(&event, "at-event", 0, "`number` of an event")
	c.PreRunE = func(c *cobra.Command, _ []string) error {
		switch numbered := c.Flags().Changed("at-event"); {
		case numbered && c.Flags().Changed("at"):
			return usererror.Usage(c, "--at and --at-event were both given; give one of them")
		case numbered && event == 0:
			return usererror.Usage(c, "--at-event is 0; must be 1 or more")
		}
		return nil
	}
	return c
}

// Diff returns the verb diff.
func Diff(env *command.Env) *cobra.Command {
	var request api.StateDiffRequest
	c := command.Query(env, &cobra.Command{
		Use:   "diff",
		Short: "Show what differs between the states at two points of history",
		Long: `Shows what differs between the states of the yard at two points of its history.

` + points,
		Example: `  yardmaster diff --from 14:00 --to 14:10
  yardmaster diff --from 1h`,
	}, diffTable, func([]string) (string, any) { return api.Subject("state-diff"), request })
	c.Flags().StringVar(&request.From, "from", "", "`point` of history")
	c.Flags().StringVar(&request.To, "to", "", "later `point`; default: now")
	c.PreRunE = func(c *cobra.Command, _ []string) error {
		if request.From == "" {
			return usererror.Usage(c, "--from is missing; give the point with which another one is compared")
		}
		return nil
	}
	return c
}

// shownState is the part of a state that stateTable shows.
type shownState struct {
	Queues map[string]struct {
		Paused bool
		Counts map[string]int64
	}
	Limits map[string]struct{ Paused, Open bool }
	Crons  map[string]struct{ Paused bool }

	Running map[string]struct {
		Queue, Function, Node, Worker string
		Started                       time.Time
	}
	Authority struct{ Owner string }
}

// stateTable shows a state: its point, a line for each queue, and one for each running job.
func stateTable(w io.Writer, reply *api.State) {
	var s shownState
	if err := json.Unmarshal(reply.State, &s); err != nil {
		command.Printf(w, "the reply is malformed: %v\n", err)
		return
	}
	command.Printf(w, "event %d, %s\n", reply.Event, command.TimeText(&reply.At))
	command.Printf(w, "authority %s, limits: %d, cron entries: %d, running jobs: %d, imbalance: %d\n\n", command.OrDash(s.Authority.Owner), len(s.Limits), len(s.Crons), len(s.Running), reply.Imbalance)
	states := []string{"waiting", "delayed", "active", "completed", "failed", "cancelled", "expired"}
	command.Titles(w, "QUEUE\tWAITING\tDELAYED\tACTIVE\tCOMPLETED\tFAILED\tCANCELLED\tEXPIRED\tSTATE", "EXPIRED", "CANCELLED", "DELAYED", "COMPLETED")
	for _, name := range slices.Sorted(maps.Keys(s.Queues)) {
		q := s.Queues[name]
		cells := []any{name}
		for _, state := range states {
			cells = append(cells, q.Counts[state])
		}
		command.Row(w, append(cells, pausedText(q.Paused, "running"))...)
	}
	if len(s.Limits) > 0 {
		command.Printf(w, "\nLIMIT\tSTATE\n")
	}
	for _, name := range slices.Sorted(maps.Keys(s.Limits)) {
		text := pausedText(s.Limits[name].Paused, "in force")
		if s.Limits[name].Open {
			text = "circuit open"
		}
		command.Row(w, name, text)
	}
	if len(s.Running) > 0 {
		command.Printf(w, "\n")
		command.Titles(w, "RUNNING JOB\tQUEUE\tFUNCTION\tNODE\tWORKER\tSINCE", "WORKER", "SINCE")
	}
	for _, id := range slices.Sorted(maps.Keys(s.Running)) {
		r := s.Running[id]
		command.Row(w, id, r.Queue, command.OrDash(r.Function), r.Node, r.Worker, command.TimeText(&r.Started))
	}
}

func pausedText(paused bool, otherwise string) string {
	if paused {
		return "paused"
	}
	return otherwise
}

// diffTable shows a line for each difference.
func diffTable(w io.Writer, d *api.StateDiff) {
	command.Printf(w, "from event %d, %s, to event %d, %s\n\n", d.From.Event, command.TimeText(&d.From.At), d.To.Event, command.TimeText(&d.To.At))
	command.Titles(w, "WHAT\tFROM\tTO")
	for _, difference := range d.Differences {
		command.Row(w, difference.What, command.OrDash(difference.From), command.OrDash(difference.To))
	}
	command.Printf(w, "\n%s\n", fmt.Sprintf("%d differences", len(d.Differences)))
}
