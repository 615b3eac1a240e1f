package jobs

import (
	"context"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/operations"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"

	"github.com/spf13/cobra"
)

// jobFind returns the verb 'job find'.
func jobFind(env *command.Env) *cobra.Command {
	var request api.JobFindRequest
	c := env.WithJSON(&cobra.Command{
		Use:   "find [query]...",
		Short: "Find jobs by a query, also those that ended days ago",
		Long: `Finds jobs by a query: terms that a job must all match. "or" between terms, parentheses, and
"-" before a term that excludes. Without a query it lists all jobs, newest first.

  queue:mail,post           one of several values
  state:failed error:time*  a prefix; error is the type or code of the error
  text:"mailbox full"       words of the error's message
  since:1h took:>2s         times and durations; created:2026-11-01..2026-11-03
  tag:eu customer:acme      tags; metadata, or indexed params
  order-7                   a job's id, key, or a word of the error's message
  sort:-ended               newest first by the time at which they ended

The other fields are id, key, limit_key, function, node, worker, priority, attempts, dispatches,
started and ended. docs/reference/queries.md describes them all.
Write -- before a query that begins with "-". A last line has --after for the next page.`,
		Example: `  yardmaster job find queue:mail state:failed error:timeout since:1h customer:acme
  yardmaster job find mail:0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10
  yardmaster job find '(tag:eu or meta.region:eu*) -worker:overhop/*' --limit 100
  yardmaster job find -- '-state:completed since:10m'`,
		RunE: func(c *cobra.Command, args []string) error {
			if request.Limit < 1 {
				return usererror.Usage(c, "--limit must be at least 1")
			}
			request.Query = strings.Join(args, " ")
			return findJobs(c.Context(), env, &request)
		},
	})
	c.Flags().StringVar(&request.Sort, "sort", "", "`order`: created, ended, -created or -ended")
	c.Flags().IntVar(&request.Limit, "limit", 20, "largest `number` of jobs to list, up to 1000")
	c.Flags().StringVar(&request.Cursor, "after", "", "continue after the page that showed this `cursor`")
	command.Renamed(c, "cursor", "after")
	return c
}

// labelsCell returns a job's tags, metadata and indexed params, as terms of a query.
func labelsCell(j *api.Job) string {
	var terms []string
	for _, tag := range j.Tags {
		terms = append(terms, "tag:"+tag)
	}
	for _, labels := range []map[string]string{j.Meta, j.Indexed} {
		for _, name := range slices.Sorted(maps.Keys(labels)) {
			terms = append(terms, name+":"+labels[name])
		}
	}
	return cut(command.OrDash(strings.Join(terms, " ")), maxListedParams)
}

// findJobs shows the jobs that a query finds.
func findJobs(ctx context.Context, env *command.Env, request *api.JobFindRequest) error {
	found, err := connect.Decode[api.FoundJobs](env.Send(ctx, api.Subject("job-find"), request))
	if err != nil {
		return operations.Underline(env, request.Query, err)
	}
	table := func(w io.Writer, found *api.FoundJobs) { jobRows(w, found.Jobs, "LABELS", labelsCell) }
	if err := command.PrintValue(env, found, table); err != nil || env.JSON {
		return err
	}
	noteIndex(env, &found.Index)
	for _, advice := range found.Advice {
		env.Note("%s", advice)
	}
	if found.Next != "" {
		env.Note("there are more: --after %s continues", found.Next)
	}
	return nil
}

// noteIndex writes notes about jobs and labels that the index may not have.
func noteIndex(env *command.Env, index *api.IndexStatus) {
	if index.Unusable != "" {
		env.Note("the index has nothing after %s: %s", command.TimeText(&index.AsOfTime), index.Unusable)
		return
	}
	if index.Scanning {
		env.Note("the index is being rebuilt: %d jobs of the ledger are read, others may be missing", index.Scanned)
	}
	if index.Ahead > 0 {
		env.Note("jobs that have not ended may be missing: the node has started again, and awaits a majority of the members to know them")
	}
	if index.Rebuilt < 1 {
		env.Note("the index is being rebuilt: %.0f %% of the history is read; older jobs may be missing, and keys, tags, metadata and params of others", 100*index.Rebuilt)
	}
}
