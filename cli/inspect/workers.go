package inspect

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
)

// Workers returns the verb workers.
func Workers(env *command.Env) *cobra.Command {
	var request api.WorkerRequest
	c := command.Query(env, &cobra.Command{
		Use:   "workers",
		Short: "List workers and runners, and what they run now",
		Long: `Lists the connected Overhop workers and the processes of runners at all nodes, with
the jobs that each runs now. A node that does not answer is named, with the number
of jobs that the ledger has there.`,
		Example: `  yardmaster workers
  yardmaster workers --queue mail
  yardmaster workers --worker mailer-7 --json`,
	}, workersTable, func([]string) (string, any) { return api.Subject("worker-list"), request })
	c.Flags().StringVar(&request.Node, "node", "", "only those at the `node` of this name")
	c.Flags().StringVar(&request.Queue, "queue", "", "only workers of this `queue`")
	c.Flags().StringVar(&request.Worker, "worker", "", "only the worker or runner of this `name` or id, with more of its jobs")
	return c
}

// workersTable shows a line for each worker and each process, followed by one for each of
// its jobs, and then what is not known.
func workersTable(w io.Writer, list *api.WorkerList) {
	now := time.Now()
	count := 0
	command.Titles(w, "NODE\tKIND\tNAME\tWORKER\tADDRESS\tTAKES\tRUNNING\tSTATE\tSINCE", "SINCE", "KIND", "ADDRESS")
	for _, node := range list.Nodes {
		for i := range node.Workers {
			count++
			worker := &node.Workers[i]
			command.Row(w, node.Node, worker.Kind, command.OrDash(worker.Name),
				command.OrDash(worker.Worker), command.OrDash(worker.Address), capacity(worker), worker.Running, workerState(worker),
				command.TimeText(worker.Connected))
			for _, j := range worker.Jobs {
				command.Row(w, " ", " ", "  "+command.OrDash(j.Function), j.JID, fmt.Sprintf("attempt %d", j.Attempt), percentText(j.Percent),
					" ", fmt.Sprintf("for %s", duration.Format(now.Sub(j.Started).Truncate(time.Second))), command.TimeText(&j.Started))
			}
			if hidden := worker.Running - len(worker.Jobs); hidden > 0 && len(worker.Jobs) > 0 {
				command.Row(w, " ", " ", fmt.Sprintf("  and %d more", hidden), " ", " ", " ", " ", " ", " ")
			}
		}
	}
	command.Printf(w, "\n%d listed\n", count)
	for _, node := range list.Nodes {
		if node.Error != "" {
			command.Printf(w, "%s does not answer (%s): by the ledger it runs %d jobs\n", node.Node, node.Error, node.Running)
		}
		if node.More > 0 {
			command.Printf(w, "%s has %d more: use --queue or --worker\n", node.Node, node.More)
		}
	}
}

// capacity returns what a worker would take now, such as "mail 2, pdf 0".
func capacity(w *api.Worker) string {
	if w.Kind == "runner" && w.Drained {
		return fmt.Sprintf("0 of %d", w.Slots)
	}
	if w.Kind == "runner" {
		return fmt.Sprintf("%d of %d", max(w.Slots-w.Running, 0), w.Slots)
	}
	queues := make([]string, len(w.Queues))
	for i, q := range w.Queues {
		queues[i] = fmt.Sprintf("%s %d", q.Queue, q.Credits)
	}
	return command.OrDash(strings.Join(queues, ", "))
}

// workerState returns whether a worker works.
func workerState(w *api.Worker) string {
	switch {
	case w.Stalled:
		return "stalled"
	case w.Drained:
		return "drained"
	case w.Leaving:
		return "leaving"
	case w.Kind == "runner" && w.Worker == "":
		return "down: " + w.Reason
	}
	return "up"
}

func percentText(percent *int64) string {
	if percent == nil {
		return "-"
	}
	return fmt.Sprintf("%d %%", *percent)
}
