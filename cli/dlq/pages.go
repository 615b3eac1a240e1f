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
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/faults"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/job"
)

// page is one page of the reply to a request for dead letters. An endpoint sets
// either the counts, or Letters, or Items.
type page struct {
	api.DeadLetterCounts
	api.Continuation
	Stopped        string // why the node stopped early; "" means that it did not
	Letters, Items []json.RawMessage
}

// pages is a request for any number of dead letters, which is sent page by page.
type pages struct {
	env      *command.Env
	endpoint string         // last part of the endpoint's name
	request  map[string]any // body of the request for the next page
	limit    int            // largest number of dead letters; 0 means all
}

// each requests the pages and calls fn for each of them. It stops at the first error
// of a request or of fn. moreLeft reports whether there are dead letters beyond the
// limit.
func (p *pages) each(ctx context.Context, fn func(*page) error) (moreLeft bool, err error) {
	const pageSize = 1000
	for received := 0; ; {
		p.request["limit"] = pageSize
		if p.limit > 0 {
			p.request["limit"] = min(pageSize, p.limit-received)
		}
		part, err := connect.Decode[page](p.env.Send(ctx, api.Subject("dlq-"+p.endpoint), p.request))
		if err != nil {
			return false, err
		}
		if err := fn(&part); err != nil {
			return false, err
		}
		if part.Stopped != "" {
			return false, usererror.NotReady(part.Stopped, "repeat the command for the rest: nothing is done twice")
		}
		received += part.Count + len(part.Letters) + len(part.Items)
		if part.Next == 0 || p.limit > 0 && received >= p.limit {
			return part.Next > 0, nil
		}
		p.request["from"], p.request["until"] = part.Next, part.Until
	}
}

// listDeadLetters prints the dead letters of p as a list, and a note if there are more
// than its limit.
func listDeadLetters(ctx context.Context, p pages) error {
	list := &command.List{Env: p.env, Titles: "LETTER\tJOB\tQUEUE\tFUNCTION\tATTEMPTS\tFAILED\tSTATE\tERROR", Least: []string{"STATE", "ATTEMPTS", "FUNCTION", "FAILED"}, Name: "letters"}
	moreLeft, err := p.each(ctx, func(part *page) error {
		return command.WriteItems(list, part.Letters, func(w io.Writer, l *api.DeadLetter) {
			command.Row(w, l.Number, command.OrDash(l.ID), l.Queue, command.OrDash(l.Function), l.Attempts,
				command.TimeText(&l.Failed), command.OrDash(l.State), command.OrDash(deadLetterCause(l)))
		})
	})
	if err != nil {
		return err
	}
	if moreLeft {
		p.env.Note("there are more; --limit 0 lists all")
	}
	return list.End("no dead letters")
}

// deadLetterCause returns the error of a dead letter in one line. Without an error it
// returns the reason why the job failed.
func deadLetterCause(l *api.DeadLetter) string {
	if l.Error == nil || l.Error.Message == "" {
		return l.Reason
	}
	return faults.Line(l.Error)
}

// deadLetterTable shows one dead letter, without empty fields.
func deadLetterTable(w io.Writer, l *api.DeadLetter) {
	row := command.Fields(w)
	row("letter", fmt.Sprint(l.Number))
	row("job", l.ID)
	row("queue", l.Queue)
	row("function", l.Function)
	row("reason", l.Reason)
	if fault := l.Error; fault != nil {
		row("error", faults.Line(fault))
	}
	row("attempts", fmt.Sprint(l.Attempts))
	row("accepted", command.TimeText(&l.Accepted))
	row("failed", command.TimeText(&l.Failed))
	row("state", cmp.Or(l.State, "no longer in the ledger"))
	row("record", string(l.Job))
	if l.Record != nil {
		row("record", "not JSON, as Base64: "+base64.StdEncoding.EncodeToString(l.Record))
	}
	if fault := l.Error; fault != nil {
		command.Printf(w, "\nerror\n")
		faults.Write(w, "  ", fault)
	}
}

// countDeadLetters prints the counts of the dead letters of p, added up over all pages.
func countDeadLetters(ctx context.Context, p pages) error {
	total := api.DeadLetterCounts{Queues: map[string]int{}, Functions: map[string]int{}, Errors: map[string]int{}}
	groups := map[api.DeadLetterGroup]int{}
	_, err := p.each(ctx, func(part *page) error {
		total.Count += part.Count
		if total.Oldest == nil || part.Oldest != nil && part.Oldest.Before(*total.Oldest) {
			total.Oldest = part.Oldest
		}
		if total.Newest == nil || part.Newest != nil && part.Newest.After(*total.Newest) {
			total.Newest = part.Newest
		}
		addCounts(total.Queues, part.Queues)
		addCounts(total.Functions, part.Functions)
		addCounts(total.Errors, part.Errors)
		for _, group := range part.Groups {
			n := group.Count
			group.Count = 0
			groups[group] += n
		}
		return nil
	})
	if err != nil {
		return err
	}
	total.Groups = api.DeadLetterGroups(groups)
	return command.PrintValue(p.env, total, statsTable)
}

// addCounts adds counts by name to total.
func addCounts(total, counts map[string]int) {
	for name, n := range counts {
		total[name] += n
	}
}

// statsTable writes the number of dead letters, their age, and a table of the numbers
// by queue and function, and by type and code of the error, each with the largest number first.
func statsTable(w io.Writer, s *api.DeadLetterCounts) {
	command.Printf(w, "letters\t%d\n", s.Count)
	if s.Count == 0 {
		return
	}
	command.Printf(w, "oldest\t%s\nnewest\t%s\n", command.TimeText(s.Oldest), command.TimeText(s.Newest))
	for _, table := range []struct {
		title  string
		counts map[string]int
	}{{"QUEUE", s.Queues}, {"FUNCTION", s.Functions}, {"ERROR", s.Errors}} {
		if table.title == "ERROR" && len(s.Groups) > 0 { // nodes of older releases have none
			continue
		}
		command.Printf(w, "\n%s\tLETTERS\n", table.title)
		names := command.SortedKeys(table.counts)
		slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(table.counts[b], table.counts[a]) })
		for _, name := range names {
			command.Row(w, command.OrDash(name), table.counts[name])
		}
	}
	if len(s.Groups) > 0 {
		command.Printf(w, "\n")
		command.Titles(w, "ERROR\tCODE\tLETTERS")
	}
	for _, group := range s.Groups {
		command.Row(w, command.OrDash(group.Type), command.OrDash(group.Code), group.Count)
	}
}

// changeDeadLetters requeues or removes the dead letters of p, and prints the result
// of each as a list and their number by result as a note. It returns
// [usererror.Failed] if one of them could not be changed, and another error if one that
// p names was not found. dryRun is whether p only asks what would be done.
func changeDeadLetters(ctx context.Context, p pages, dryRun bool) error {
	list := &command.List{Env: p.env, Titles: "LETTER\tRESULT\tJOB\tQUEUE\tNOTE", Least: []string{"QUEUE"}, Name: "items"}
	results, failed := map[string]int{}, 0
	found := map[string]bool{} // by number and by job
	moreLeft, err := p.each(ctx, func(part *page) error {
		return command.WriteItems(list, part.Items, func(w io.Writer, r *api.DeadLetterResult) {
			result := r.Result
			if dryRun && r.Error == "" && result != api.ResultStale {
				result = "would be " + result
			}
			results[result]++
			found[fmt.Sprint(r.Number)], found[r.ID] = true, true
			if r.Error != "" {
				failed++
			}
			command.Row(w, r.Number, result, command.OrDash(cmp.Or(r.Job, r.ID)), command.OrDash(r.Queue),
				command.OrDash(cmp.Or(r.Error, r.Note)))
		})
	})
	if err != nil && len(results) == 0 && !p.env.JSON {
		return err // rather than report an empty list
	}
	if writeErr := list.End("no dead letters"); writeErr != nil {
		return errors.Join(err, writeErr)
	}
	if len(results) > 0 && !p.env.JSON {
		prefix := ""
		if dryRun {
			prefix = "dry run, nothing was changed: "
		}
		p.env.Note("%s%s", prefix, command.Counts(results))
	}
	if err == nil && !moreLeft {
		err = p.missing(found)
	}
	if err == nil && failed > 0 {
		return usererror.Failed
	}
	return err
}

// missing returns an error for the dead letters that p names and that are not in found,
// or nil. A filter may have excluded them as well.
func (p *pages) missing(found map[string]bool) error {
	var missing []string
	numbers, _ := p.request["letters"].([]uint64)
	for _, number := range numbers {
		if name := fmt.Sprint(number); !found[name] {
			missing = append(missing, name)
		}
	}
	jobs, _ := p.request["jobs"].([]job.ID)
	for _, id := range jobs {
		if name := id.String(); !found[name] {
			missing = append(missing, "of job "+name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	return usererror.NotFound("no such dead letter: "+strings.Join(slices.Compact(missing), ", "), "'yardmaster dlq list' shows what there is")
}
