package jobs

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/spf13/cobra"
)

// maxLogLines is the largest number of lines in one reply.
const maxLogLines = 1000

// jobLogs returns the verb 'job logs'.
func jobLogs(env *command.Env) *cobra.Command {
	var (
		queue  string
		lines  int
		follow bool
	)
	c := withQueue(env.WithJSON(&cobra.Command{
		Use:     "logs <job>",
		Aliases: []string{"log"},
		Short:   "Show the log of a job, and with --follow new lines",
		Long: `Shows the end of a job's log, oldest line first: the lines that its runner printed
or its worker sent with LOG, in all its dispatches. With --follow it continues with
new lines. With --json each line is a JSON object, as in the stream YARD_LOGS.`,
		Example: `  yardmaster job logs order-7 --queue mail --lines 20
  yardmaster job logs mail:0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10 --follow`,
	}), &queue)
	c.Flags().IntVarP(&lines, "lines", "n", maxLogLines, "`number` of lines from the end")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "continue with new lines until interrupted")
	c.RunE = func(c *cobra.Command, args []string) error {
		if lines < 1 || lines > maxLogLines {
			return usererror.Usage(c, "--lines is %d: must be 1 to %d", lines, maxLogLines)
		}
		request := command.JobRequest(args[0], queue)
		request["lines"] = lines
		return showLog(c.Context(), env, request, follow)
	}
	return c
}

// showLog requests the end of a job's log from a node and prints it. With follow it
// then prints new lines as they are written, until ctx ends.
func showLog(ctx context.Context, env *command.Env, request map[string]any, follow bool) error {
	log, err := connect.Decode[api.LogReply](env.Send(ctx, api.Subject("job-logs"), request))
	if err != nil {
		return err
	}
	if log.More && !env.JSON {
		command.Printf(env.Out, "... (earlier lines are not shown)\n")
	}
	for _, line := range log.Lines {
		if err := showLogLine(env, line); err != nil {
			return err
		}
	}
	if !follow {
		if len(log.Lines) == 0 {
			env.Note("no lines: the job has written none, or they were removed; 'yardmaster retention show' says how long logs are kept")
		}
		return nil
	}
	client, err := env.Dial(ctx)
	if err != nil {
		return err
	}
	return client.FollowLog(ctx, log.ID, log.Next, func(page streams.LogPage) error {
		for line := range bytes.SplitSeq(bytes.TrimSuffix(page.Body, []byte("\n")), []byte("\n")) {
			if err := showLogLine(env, line); err != nil {
				return err
			}
		}
		return nil
	})
}

// showLogLine prints one line of a job log, which is a JSON object. With --json it
// prints the object; otherwise it prints the line's time, number, node, worker, level
// and text. It prints the structured record instead of the text, if the line has one, and
// the number of lost lines, if the line reports that lines were lost.
func showLogLine(env *command.Env, line []byte) error {
	if env.JSON {
		return env.PrintLine(line)
	}
	var parsed job.LogLine
	if err := json.Unmarshal(line, &parsed); err != nil {
		return connect.BadReply(err)
	}
	text := parsed.Text
	switch {
	case parsed.Dropped > 0:
		text = fmt.Sprintf("(%d lines dropped)", parsed.Dropped)
	case len(parsed.Record) > 0:
		text = string(parsed.Record)
	case parsed.Truncated:
		text += " (truncated)"
	}
	return command.Printf(env.Out, "%s  #%d %s %s %-5s %s\n",
		command.TimeText(&parsed.At), parsed.N, parsed.Node, parsed.Worker, parsed.Level, text)
}
