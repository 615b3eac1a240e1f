package pages

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/index/query"
	"github.com/yardmaster-dev/yardmaster/job"
)

// lettersData is the data of the page of dead letters.
type lettersData struct {
	api.DeadLetterPage
	Stats api.DeadLetterStats
	Whole bool // Stats count all dead letters of the filter
	// Groups are the largest ones of Stats, MoreGroups is the number of the others.
	Groups     []api.DeadLetterGroup
	MoreGroups int

	filter   api.DeadLetterRequest
	from, to string // of the filter, as the user wrote them
}

// maxLetterGroups is how many groups the page has.
const maxLetterGroups = 30

// Letters loads the page.
func Letters(ctx context.Context, e *Env, v *View) (any, error) {
	d := &lettersData{from: strings.TrimSpace(v.Query.Get("from")), to: strings.TrimSpace(v.Query.Get("to"))}
	filter, err := d.parseFilter(v)
	if err != nil {
		return nil, err
	}
	if filter.Queue != "" {
		if err := job.ValidQueue(filter.Queue); err != nil {
			return nil, &api.Error{Code: api.CodeInvalid, Text: "queue: " + err.Error()}
		}
	}
	from, err := v.after()
	if err != nil {
		return nil, err
	}
	if d.Stats, err = ask[api.DeadLetterStats](ctx, e, v, "dlq-stats", filter); err != nil {
		return nil, err
	}
	d.Whole = d.Stats.Next == 0
	d.Groups = d.Stats.Groups[:min(len(d.Stats.Groups), maxLetterGroups)]
	d.MoreGroups = len(d.Stats.Groups) - len(d.Groups)
	page := filter
	page.Limit = 50
	page.From = from
	if d.Named() {
		page.Limit, page.From = 1, filter.Letters[0]
	}
	d.DeadLetterPage, err = ask[api.DeadLetterPage](ctx, e, v, "dlq-list", page)
	return d, err
}

// parseFilter returns the filter of the page's address.
func (d *lettersData) parseFilter(v *View) (filter api.DeadLetterRequest, err error) {
	if number := v.Query.Get("letter"); number != "" {
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil || n == 0 {
			return filter, &api.Error{Code: api.CodeInvalid, Text: "a dead letter has a number from 1 on"}
		}
		filter.Letters = []uint64{n}
	}
	filter.Queue, filter.Function, filter.Error = v.Query.Get("queue"), v.Query.Get("function"), v.Query.Get("error")
	now := time.Now()
	if d.from != "" {
		from, err := timeOf("from", ">=", d.from, now)
		if err != nil {
			return filter, err
		}
		filter.FailedAfter = new(time.Unix(0, from.From-1).UTC()) // that time is not part of the filter
	}
	if d.to != "" {
		to, err := timeOf("to", "<=", d.to, now)
		if err != nil {
			return filter, err
		}
		filter.FailedBefore = new(time.Unix(0, to.To).UTC())
	}
	d.filter = filter
	return filter, nil
}

// timeOf parses a time as queries of jobs have them, such as "2h" or "2026-11-01". operator compares with it.
func timeOf(parameter, operator, text string, now time.Time) (query.Value, error) {
	parsed, err := query.Parse(Term(query.FieldEnded.String(), operator+text), query.Options{Now: now})
	if syntax, ok := errors.AsType[*query.SyntaxError](err); ok {
		return query.Value{}, &api.Error{Code: api.CodeInvalid, Text: parameter + ": " + syntax.Problem + "; " + syntax.Advice}
	}
	if err != nil {
		return query.Value{}, err
	}
	return parsed.Where.(*query.Term).Values[0], nil
}

// Filtered reports whether the page has not all dead letters.
func (d *lettersData) Filtered() bool {
	f := &d.filter
	return d.Named() || f.Queue+f.Function+f.Error+d.from+d.to != ""
}

// Named reports whether the page is that of one letter.
func (d *lettersData) Named() bool { return len(d.filter.Letters) > 0 }

// FailedAfter and FailedBefore return the times of the filter as forms send them, "" for none.
func (d *lettersData) FailedAfter() string  { return timeText(d.filter.FailedAfter) }
func (d *lettersData) FailedBefore() string { return timeText(d.filter.FailedBefore) }

// timeText returns a time as forms send it, "" for nil.
func timeText(at *time.Time) string {
	if at == nil {
		return ""
	}
	return at.Format(time.RFC3339Nano)
}

// QueryOf returns the query that finds the jobs of the dead letters of a filter.
func (d *lettersData) QueryOf() string {
	if d.Named() && len(d.Letters) > 0 {
		return Term("id", d.Letters[0].ID)
	}
	text := "state:failed"
	if d.from != "" {
		text += " ended:>=" + d.from
	}
	if d.to != "" {
		text += " ended:<=" + d.to
	}
	for _, part := range [][2]string{{"queue", d.filter.Queue}, {"function", d.filter.Function}, {"error", d.filter.Error}} {
		if part[1] != "" {
			text += " " + Term(part[0], part[1])
		}
	}
	return text
}
