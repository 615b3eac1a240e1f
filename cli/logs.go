package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"yardmaster/cluster"
	"yardmaster/job"

	"github.com/spf13/cobra"
)

// logAnswer is the end of a job's log.
type logAnswer struct {
	ID    job.ID            `json:"id"`
	Lines []json.RawMessage `json:"lines"`
	More  bool              `json:"more"`
	Next  uint64            `json:"next"`
}

type logLine struct {
	Dispatch uint32          `json:"dispatch"`
	At       time.Time       `json:"at"`
	Level    string          `json:"level"`
	Stream   string          `json:"stream"`
	Node     string          `json:"node"`
	Worker   string          `json:"worker"`
	Text     string          `json:"text"`
	Record   json.RawMessage `json:"record"`
	Cut      bool            `json:"cut"`
	Dropped  int             `json:"dropped"`
}

// maxLogLines is the most a node gives at once.
const maxLogLines = 1000

func (a *app) jobLogs() *cobra.Command {
	var (
		queue  string
		lines  int
		follow bool
	)
	c := withQueue(a.takesJSON(&cobra.Command{
		Use:     "logs <job>",
		Aliases: []string{"log"},
		Short:   "Show what a job has said, and with --follow what it says",
		Long: `Shows the end of a job's log, oldest line first: what its runner printed or its
worker sent by LOG, in all its dispatches. With --follow it goes on until it is
interrupted. With --json each line is a JSON object, as in the stream YARD_LOGS.`,
		Example: `  yardmaster job logs order-7 --queue mail --lines 20
  yardmaster job logs mail:0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10 --follow`,
		Args: args("job"),
	}), &queue)
	c.Flags().IntVarP(&lines, "lines", "n", maxLogLines, "`number` of lines from the end")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on until it is interrupted")
	c.RunE = func(c *cobra.Command, given []string) error {
		if lines < 1 || lines > maxLogLines {
			return usage(c, fmt.Sprintf("--lines is %d: must be 1 to %d", lines, maxLogLines))
		}
		request := named(given[0], queue)
		request["lines"] = lines
		return a.logs(c.Context(), request, follow)
	}
	return c
}

func (a *app) logs(ctx context.Context, request map[string]any, follow bool) error {
	y, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer y.Close()
	answer, err := y.ask(ctx, cluster.SubjectAPI+".job.logs", request)
	if err != nil {
		return err
	}
	var log logAnswer
	if err := json.Unmarshal(answer, &log); err != nil {
		return unreadable(err)
	}
	if log.More && !a.json {
		fmt.Fprintln(a.Out, "... (earlier lines are not shown)")
	}
	for _, line := range log.Lines {
		if err := a.logLine(line); err != nil {
			return err
		}
	}
	if !follow {
		return nil
	}
	return y.FollowLog(ctx, log.ID, log.Next, func(p cluster.LogPage) error {
		for line := range bytes.SplitSeq(bytes.TrimSuffix(p.Body, []byte("\n")), []byte("\n")) {
			if err := a.logLine(line); err != nil {
				return err
			}
		}
		return nil
	})
}

func (a *app) logLine(line []byte) error {
	if a.json {
		_, err := fmt.Fprintf(a.Out, "%s\n", line)
		return err
	}
	var l logLine
	if err := json.Unmarshal(line, &l); err != nil {
		return unreadable(err)
	}
	return l.write(a.Out)
}

func (l *logLine) write(w io.Writer) error {
	says := l.Text
	switch {
	case l.Dropped > 0:
		says = fmt.Sprintf("(%d lines are missing here)", l.Dropped)
	case len(l.Record) > 0:
		says = string(l.Record)
	case l.Cut:
		says += " (cut)"
	}
	_, err := fmt.Fprintf(w, "%s  #%d %s %s %-5s %s\n", moment(&l.At), l.Dispatch, l.Node, l.Worker, l.Level, says)
	return err
}
