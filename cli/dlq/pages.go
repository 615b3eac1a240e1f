package dlq

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
)

// page is the reply to any request for several dead letters.
type page struct {
	api.DeadLetterCounts
	api.Continuation
	Stopped        string
	Letters, Items []json.RawMessage
}

// eachPage requests dead letters page by page until all of them, or limit if it
// is positive, are received, and calls fn for each page. more reports whether there
// are further ones.
func eachPage(ctx context.Context, env *command.Env, verb string, q map[string]any, limit int, fn func(*page) error) (more bool, err error) {
	const pageSize = 1000
	for received := 0; ; {
		q["limit"] = pageSize
		if limit > 0 {
			q["limit"] = min(pageSize, limit-received)
		}
		part, err := connect.Decode[page](env.Send(ctx, api.Subject("dlq-"+verb), q))
		if err == nil {
			err = fn(&part)
		}
		if err != nil {
			return false, err
		}
		if part.Stopped != "" {
			return false, usererror.New(part.Stopped, "repeat the command for the rest: nothing is done twice")
		}
		if received += part.Count + len(part.Letters) + len(part.Items); part.Next == 0 || limit > 0 && received >= limit {
			return part.Next > 0, nil
		}
		q["from"], q["until"] = part.Next, part.Until
	}
}

func listDeadLetters(ctx context.Context, env *command.Env, q map[string]any, limit int) error {
	list := &command.List{Env: env, Head: "LETTER\tJOB\tQUEUE\tFUNCTION\tATTEMPTS\tFAILED\tSTATE\tERROR\n", Name: "letters"}
	more, err := eachPage(ctx, env, "list", q, limit, func(p *page) error {
		return command.WriteItems(list, p.Letters, func(w io.Writer, l *api.DeadLetter) {
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", l.Number, command.OrDash(l.ID), l.Queue, command.OrDash(l.Function), l.Attempts,
				command.TimeText(&l.Failed), command.OrDash(l.State), command.OrDash(deadLetterCause(l)))
		})
	})
	if err != nil {
		return err
	}
	if more {
		env.Note("there are more; --limit 0 lists all")
	}
	return list.End("no dead letters")
}

// deadLetterCause returns the error of a dead letter in one line.
func deadLetterCause(l *api.DeadLetter) string {
	e := l.Error
	switch {
	case e == nil || e.Message == "":
		return command.FitCell(l.Reason)
	case e.Type == "":
		return command.FitCell(e.Message)
	}
	return command.FitCell(e.Type + ": " + e.Message)
}

// deadLetterTable shows one dead letter, without empty fields.
func deadLetterTable(w io.Writer, l *api.DeadLetter) {
	row := command.Rows(w)
	row("letter", fmt.Sprint(l.Number))
	row("job", l.ID)
	row("queue", l.Queue)
	row("function", l.Function)
	row("reason", command.Sanitize(l.Reason))
	if e := l.Error; e != nil {
		row("error", command.Sanitize(e.Message))
		row("error type", command.Sanitize(e.Type))
		row("error code", command.Sanitize(e.Code))
		row("details", string(e.Details))
	}
	row("attempts", fmt.Sprint(l.Attempts))
	row("accepted", command.TimeText(&l.Accepted))
	row("failed", command.TimeText(&l.Failed))
	row("state", cmp.Or(l.State, "no longer in the ledger"))
	row("record", string(l.Job))
	if l.Record != nil {
		row("record", "not JSON, as Base64: "+base64.StdEncoding.EncodeToString(l.Record))
	}
}

// addCounts adds numbers of dead letters by a name.
func addCounts(to, counts map[string]int) {
	for name, n := range counts {
		to[name] += n
	}
}

func countDeadLetters(ctx context.Context, env *command.Env, q map[string]any) error {
	all := api.DeadLetterCounts{Queues: map[string]int{}, Functions: map[string]int{}, Errors: map[string]int{}}
	_, err := eachPage(ctx, env, "stats", q, 0, func(part *page) error {
		all.Count += part.Count
		if all.Oldest == nil || part.Oldest != nil && part.Oldest.Before(*all.Oldest) {
			all.Oldest = part.Oldest
		}
		if all.Newest == nil || part.Newest != nil && part.Newest.After(*all.Newest) {
			all.Newest = part.Newest
		}
		addCounts(all.Queues, part.Queues)
		addCounts(all.Functions, part.Functions)
		addCounts(all.Errors, part.Errors)
		return nil
	})
	if err != nil {
		return err
	}
	return command.PrintValue(env, all, statsTable)
}

func statsTable(w io.Writer, s *api.DeadLetterCounts) {
	fmt.Fprintf(w, "letters\t%d\n", s.Count)
	if s.Count == 0 {
		return
	}
	fmt.Fprintf(w, "oldest\t%s\nnewest\t%s\n", command.TimeText(s.Oldest), command.TimeText(s.Newest))
	for _, kind := range []struct {
		name   string
		counts map[string]int
	}{{"QUEUE", s.Queues}, {"FUNCTION", s.Functions}, {"ERROR", s.Errors}} {
		fmt.Fprintf(w, "\n%s\tLETTERS\n", kind.name)
		names := command.SortedKeys(kind.counts)
		slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(kind.counts[b], kind.counts[a]) })
		for _, name := range names {
			fmt.Fprintf(w, "%s\t%d\n", command.OrDash(command.FitCell(name)), kind.counts[name])
		}
	}
}

func changeDeadLetters(ctx context.Context, env *command.Env, verb string, q map[string]any, limit int) error {
	list := &command.List{Env: env, Head: "LETTER\tRESULT\tJOB\tQUEUE\tNOTE\n", Name: "items"}
	results, failed := map[string]int{}, 0
	_, err := eachPage(ctx, env, verb, q, limit, func(p *page) error {
		return command.WriteItems(list, p.Items, func(w io.Writer, i *api.DeadLetterResult) {
			results[i.Result]++
			if i.Error != "" {
				failed++
			}
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\n", i.Number, i.Result, command.OrDash(cmp.Or(i.Job, i.ID)), command.OrDash(i.Queue), command.OrDash(command.FitCell(cmp.Or(i.Error, i.Note))))
		})
	})
	if ended := list.End("no dead letters"); ended != nil {
		return errors.Join(err, ended)
	}
	if len(results) > 0 && !env.JSON {
		dry := ""
		if q["dry_run"] == true {
			dry = "dry run, nothing was changed: "
		}
		env.Note("%s%s", dry, command.Counts(results))
	}
	if err == nil && failed > 0 {
		return usererror.Failed
	}
	return err
}
