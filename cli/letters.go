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

	"yardmaster/cluster"
)

func dlqSubject(verb string) string { return cluster.SubjectAPI + ".dlq." + verb }

// eachPart asks for letters part by part until all, or limit of them, have
// come; fn tells how many a part held. more says that there are others.
func (a *app) eachPart(ctx context.Context, verb string, q map[string]any, limit int, fn func(answer []byte) (int, error)) (more bool, err error) {
	y, err := a.dial(ctx)
	if err != nil {
		return false, err
	}
	defer y.Close()
	const most = 1000 // in an answer
	for had := 0; ; {
		q["limit"] = most
		if limit > 0 {
			q["limit"] = min(most, limit-had)
		}
		answer, err := y.ask(ctx, dlqSubject(verb), q)
		if err != nil {
			return false, err
		}
		var part struct {
			Next, Until uint64
			Stopped     string
		}
		if err := json.Unmarshal(answer, &part); err != nil {
			return false, unreadable(err)
		}
		n, err := fn(answer)
		if err != nil {
			return false, err
		}
		if part.Stopped != "" {
			return false, &problem{what: part.Stopped, do: "ask again for the rest: nothing is done twice"}
		}
		if had += n; part.Next == 0 || limit > 0 && had >= limit {
			return part.Next > 0, nil
		}
		q["from"], q["until"] = part.Next, part.Until
	}
}

func (a *app) listLetters(ctx context.Context, q map[string]any, limit int) error {
	list := &listing{a: a, head: "LETTER\tJOB\tQUEUE\tFUNCTION\tATTEMPTS\tFAILED\tNOW\tERROR\n", name: "letters"}
	more, err := a.eachPart(ctx, "list", q, limit, func(answer []byte) (int, error) {
		var part struct{ Letters []json.RawMessage }
		if err := json.Unmarshal(answer, &part); err != nil {
			return 0, unreadable(err)
		}
		return len(part.Letters), each(list, part.Letters, func(w io.Writer, l *letterAnswer) {
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", l.Letter, or(l.ID), l.Queue, or(l.Function), l.Attempts,
				moment(l.Failed), or(l.State), or(l.cause()))
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

// cause is what went wrong, in one line.
func (l *letterAnswer) cause() string {
	e := l.Error
	switch {
	case e == nil || e.Message == "":
		return oneLine(l.Reason)
	case e.Type == "":
		return oneLine(e.Message)
	}
	return oneLine(e.Type + ": " + e.Message)
}

// letterTable shows one letter, leaving out what it has not.
func letterTable(w io.Writer, l *letterAnswer) {
	row := func(name, value string) {
		if value != "" && value != "-" && value != "null" {
			fmt.Fprintf(w, "%s\t%s\n", name, value)
		}
	}
	row("letter", fmt.Sprint(l.Letter))
	row("job", l.ID)
	row("queue", l.Queue)
	row("function", l.Function)
	row("reason", plain(l.Reason))
	if e := l.Error; e != nil {
		row("error", plain(e.Message))
		row("error type", plain(e.Type))
		row("error code", plain(e.Code))
		row("details", string(e.Details))
	}
	row("attempts", fmt.Sprint(l.Attempts))
	row("accepted", moment(l.Accepted))
	row("failed", moment(l.Failed))
	row("now", cmp.Or(l.State, "forgotten by the yard"))
	row("record", string(l.Job))
	if l.Record != nil {
		row("record", "not JSON, in Base64: "+base64.StdEncoding.EncodeToString(l.Record))
	}
}

// tally counts letters over the parts of an answer.
type tally map[string]int

func (t tally) add(o tally) {
	for name, n := range o {
		t[name] += n
	}
}

func (a *app) countLetters(ctx context.Context, q map[string]any) error {
	all := statsAnswer{Queues: tally{}, Functions: tally{}, Errors: tally{}}
	_, err := a.eachPart(ctx, "stats", q, 0, func(answer []byte) (int, error) {
		var part statsAnswer
		if err := json.Unmarshal(answer, &part); err != nil {
			return 0, unreadable(err)
		}
		all.Count += part.Count
		if all.Oldest == nil || part.Oldest != nil && part.Oldest.Before(*all.Oldest) {
			all.Oldest = part.Oldest
		}
		if all.Newest == nil || part.Newest != nil && part.Newest.After(*all.Newest) {
			all.Newest = part.Newest
		}
		all.Queues.add(part.Queues)
		all.Functions.add(part.Functions)
		all.Errors.add(part.Errors)
		return part.Count, nil
	})
	if err != nil {
		return err
	}
	answer, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return print(a, answer, statsTable)
}

func statsTable(w io.Writer, s *statsAnswer) {
	fmt.Fprintf(w, "letters\t%d\n", s.Count)
	if s.Count == 0 {
		return
	}
	fmt.Fprintf(w, "oldest\t%s\nnewest\t%s\n", moment(s.Oldest), moment(s.Newest))
	for _, kind := range []struct {
		name   string
		counts tally
	}{{"QUEUE", s.Queues}, {"FUNCTION", s.Functions}, {"ERROR", s.Errors}} {
		fmt.Fprintf(w, "\n%s\tLETTERS\n", kind.name)
		names := sortedKeys(kind.counts)
		slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(kind.counts[b], kind.counts[a]) })
		for _, name := range names {
			fmt.Fprintf(w, "%s\t%d\n", or(oneLine(name)), kind.counts[name])
		}
	}
}

func (a *app) changeLetters(ctx context.Context, verb string, q map[string]any, limit int) error {
	list := &listing{a: a, head: "LETTER\tRESULT\tJOB\tQUEUE\tNOTE\n", name: "items"}
	results, failed := map[string]int{}, 0
	_, err := a.eachPart(ctx, verb, q, limit, func(answer []byte) (int, error) {
		var part struct{ Items []json.RawMessage }
		if err := json.Unmarshal(answer, &part); err != nil {
			return 0, unreadable(err)
		}
		return len(part.Items), each(list, part.Items, func(w io.Writer, i *itemAnswer) {
			results[i.Result]++
			if i.Error != "" {
				failed++
			}
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\n", i.Letter, i.Result, or(cmp.Or(i.Job, i.ID)), or(i.Queue), or(oneLine(cmp.Or(i.Error, i.Note))))
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
			dry = "dry run, nothing is changed: "
		}
		fmt.Fprintf(a.Err, "yardmaster: %s%s\n", dry, strings.Join(words, ", "))
	}
	if err == nil && failed > 0 {
		return &exitError{exitFailed}
	}
	return err
}
