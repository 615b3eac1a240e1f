package cli

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
)

func dlqSubject(verb string) string { return api.Subject("dlq-" + verb) }

// eachPage requests dead letters page by page until all of them, or limit if it
// is positive, are received. fn handles a page and returns how many dead letters
// it held. more reports whether there are further ones.
func (a *app) eachPage(ctx context.Context, verb string, q map[string]any, limit int, fn func(answer []byte) (int, error)) (more bool, err error) {
	cl, err := a.dial(ctx)
	if err != nil {
		return false, err
	}
	defer cl.Close()
	const pageSize = 1000
	for received := 0; ; {
		q["limit"] = pageSize
		if limit > 0 {
			q["limit"] = min(pageSize, limit-received)
		}
		answer, err := cl.request(ctx, dlqSubject(verb), q)
		if err != nil {
			return false, err
		}
		var part struct {
			Next, Until uint64
			Stopped     string
		}
		if err := json.Unmarshal(answer, &part); err != nil {
			return false, badReplyError(err)
		}
		n, err := fn(answer)
		if err != nil {
			return false, err
		}
		if part.Stopped != "" {
			return false, &userError{msg: part.Stopped, remedy: "repeat the command for the rest: nothing is done twice"}
		}
		if received += n; part.Next == 0 || limit > 0 && received >= limit {
			return part.Next > 0, nil
		}
		q["from"], q["until"] = part.Next, part.Until
	}
}

func (a *app) listDeadLetters(ctx context.Context, q map[string]any, limit int) error {
	list := &listWriter{a: a, head: "LETTER\tJOB\tQUEUE\tFUNCTION\tATTEMPTS\tFAILED\tSTATE\tERROR\n", name: "letters"}
	more, err := a.eachPage(ctx, "list", q, limit, func(answer []byte) (int, error) {
		var part struct{ Letters []json.RawMessage }
		if err := json.Unmarshal(answer, &part); err != nil {
			return 0, badReplyError(err)
		}
		return len(part.Letters), writeItems(list, part.Letters, func(w io.Writer, l *api.DeadLetter) {
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", l.Number, orDash(l.ID), l.Queue, orDash(l.Function), l.Attempts,
				timeText(&l.Failed), orDash(l.State), orDash(deadLetterCause(l)))
		})
	})
	if err != nil {
		return err
	}
	if more {
		fmt.Fprintln(a.Err, "yardmaster: there are more; --limit 0 lists all")
	}
	return list.end("no dead letters")
}

// deadLetterCause returns the error of a dead letter in one line.
func deadLetterCause(l *api.DeadLetter) string {
	e := l.Error
	switch {
	case e == nil || e.Message == "":
		return fitCell(l.Reason)
	case e.Type == "":
		return fitCell(e.Message)
	}
	return fitCell(e.Type + ": " + e.Message)
}

// deadLetterTable shows one dead letter, without empty fields.
func deadLetterTable(w io.Writer, l *api.DeadLetter) {
	row := func(name, value string) {
		if value != "" && value != "-" && value != "null" {
			fmt.Fprintf(w, "%s\t%s\n", name, value)
		}
	}
	row("letter", fmt.Sprint(l.Number))
	row("job", l.ID)
	row("queue", l.Queue)
	row("function", l.Function)
	row("reason", sanitize(l.Reason))
	if e := l.Error; e != nil {
		row("error", sanitize(e.Message))
		row("error type", sanitize(e.Type))
		row("error code", sanitize(e.Code))
		row("details", string(e.Details))
	}
	row("attempts", fmt.Sprint(l.Attempts))
	row("accepted", timeText(&l.Accepted))
	row("failed", timeText(&l.Failed))
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

func (a *app) countDeadLetters(ctx context.Context, q map[string]any) error {
	all := api.DeadLetterCounts{Queues: map[string]int{}, Functions: map[string]int{}, Errors: map[string]int{}}
	_, err := a.eachPage(ctx, "stats", q, 0, func(answer []byte) (int, error) {
		var part api.DeadLetterCounts
		if err := json.Unmarshal(answer, &part); err != nil {
			return 0, badReplyError(err)
		}
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
		return part.Count, nil
	})
	if err != nil {
		return err
	}
	answer, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return printReply(a, answer, statsTable)
}

func statsTable(w io.Writer, s *api.DeadLetterCounts) {
	fmt.Fprintf(w, "letters\t%d\n", s.Count)
	if s.Count == 0 {
		return
	}
	fmt.Fprintf(w, "oldest\t%s\nnewest\t%s\n", timeText(s.Oldest), timeText(s.Newest))
	for _, kind := range []struct {
		name   string
		counts map[string]int
	}{{"QUEUE", s.Queues}, {"FUNCTION", s.Functions}, {"ERROR", s.Errors}} {
		fmt.Fprintf(w, "\n%s\tLETTERS\n", kind.name)
		names := sortedKeys(kind.counts)
		slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(kind.counts[b], kind.counts[a]) })
		for _, name := range names {
			fmt.Fprintf(w, "%s\t%d\n", orDash(fitCell(name)), kind.counts[name])
		}
	}
}

func (a *app) changeDeadLetters(ctx context.Context, verb string, q map[string]any, limit int) error {
	list := &listWriter{a: a, head: "LETTER\tRESULT\tJOB\tQUEUE\tNOTE\n", name: "items"}
	results, failed := map[string]int{}, 0
	_, err := a.eachPage(ctx, verb, q, limit, func(answer []byte) (int, error) {
		var part struct{ Items []json.RawMessage }
		if err := json.Unmarshal(answer, &part); err != nil {
			return 0, badReplyError(err)
		}
		return len(part.Items), writeItems(list, part.Items, func(w io.Writer, i *api.DeadLetterResult) {
			results[i.Result]++
			if i.Error != "" {
				failed++
			}
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\n", i.Number, i.Result, orDash(cmp.Or(i.Job, i.ID)), orDash(i.Queue), orDash(fitCell(cmp.Or(i.Error, i.Note))))
		})
	})
	if ended := list.end("no dead letters"); ended != nil {
		return errors.Join(err, ended)
	}
	if len(results) > 0 && !a.json {
		var words []string
		for _, name := range sortedKeys(results) {
			words = append(words, fmt.Sprint(results[name], " ", name))
		}
		dry := ""
		if q["dry_run"] == true {
			dry = "dry run, nothing was changed: "
		}
		fmt.Fprintf(a.Err, "yardmaster: %s%s\n", dry, strings.Join(words, ", "))
	}
	if err == nil && failed > 0 {
		return &exitError{exitFailed}
	}
	return err
}
