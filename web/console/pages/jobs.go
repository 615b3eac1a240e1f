package pages

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/index/query"
	"github.com/yardmaster-dev/yardmaster/web"
)

// found is a page of jobs that a query has found.
type found struct {
	Jobs   []api.Job
	Next   string         // cursor of the next page; "" means that this is the last one
	Totals map[string]int // by state, whatever state the query asks for
}

// find finds jobs in the ledger's list of jobs: by queue, state and function.
func find(ctx context.Context, e *Env, v *View, q *query.Query, after string) (*found, error) {
	request := &api.JobListRequest{After: after, Limit: 50}
	if q.Sort.Oldest {
		request.Order = api.OrderOldest
	}
	if q.Sort.ByEnd {
		return nil, errNotListed("sort:ended")
	}
	if err := addTerms(request, q.Where); err != nil {
		return nil, err
	}
	list, err := ask[api.JobList](ctx, e, v, "job-list", request)
	return &found{list.Jobs, list.Next, list.Totals}, err
}

// errNotListed returns the error for a part of a query that the list of jobs cannot answer.
func errNotListed(part string) error {
	return &api.Error{Code: api.CodeInvalid, Text: part + " needs the index of jobs, which this node does not have; search by queue:, state: and function:, or by one id or key"}
}

// addTerms adds the terms of a query to a request.
func addTerms(request *api.JobListRequest, where query.Expr) error {
	switch e := where.(type) {
	case nil:
		return nil
	case query.And:
		for _, part := range e {
			if err := addTerms(request, part); err != nil {
				return err
			}
		}
		return nil
	case *query.Term:
		return addTerm(request, e)
	}
	return errNotListed("a query with or, or not")
}

// addTerm adds one term to a request.
func addTerm(request *api.JobListRequest, t *query.Term) error {
	var values []string
	for _, v := range t.Values {
		if v.Prefix {
			return errNotListed(t.Field.String() + ":" + v.Text + "*")
		}
		values = append(values, v.Text)
	}
	switch {
	case t.Field == query.FieldQueue && request.Queues == nil:
		request.Queues = values
	case t.Field == query.FieldState && request.States == nil:
		request.States = values
	case t.Field == query.FieldFunction && request.Function == "" && len(values) == 1:
		request.Function = values[0]
	default:
		return errNotListed("the term " + cmp.Or(t.Field.String(), t.Name))
	}
	return nil
}

// jobsData is the data of the page of jobs.
type jobsData struct {
	Text  string // of the query
	Error *query.SyntaxError
	*found
	Fields []string // values of the completion
}

// Jobs loads the page.
func Jobs(ctx context.Context, e *Env, v *View) (any, error) {
	d := &jobsData{Text: v.Query.Get("q"), found: &found{}}
	for _, q := range queueNames(ctx, e, v) {
		d.Fields = append(d.Fields, Term("queue", q))
	}
	for _, state := range States {
		d.Fields = append(d.Fields, "state:"+state)
	}
	parsed, err := query.Parse(d.Text, query.Options{Now: time.Now(), Location: time.UTC})
	if syntax, ok := errors.AsType[*query.SyntaxError](err); ok {
		d.Error = syntax
		return d, nil
	}
	if err != nil {
		return nil, err
	}
	if name := namedJob(d.Text, parsed); name != "" {
		shown, err := ask[api.Job](ctx, e, v, "job-show", &api.JobRequest{ID: name})
		if err != nil {
			return nil, err
		}
		return Redirect(web.ConsolePath + "jobs/" + shown.ID.String()), nil
	}
	f, err := find(ctx, e, v, parsed, v.Query.Get("after"))
	if err != nil {
		return nil, err
	}
	d.found = f
	return d, nil
}

// namedJob returns the name of the job if a query is nothing else: an id, a key, or either
// with its queue. Otherwise it returns "".
func namedJob(text string, q *query.Query) string {
	t, ok := q.Where.(*query.Term)
	if !ok || len(t.Values) != 1 || t.Values[0].Prefix {
		return ""
	}
	switch t.Field {
	case query.FieldAny, query.FieldID, query.FieldKey:
		return t.Values[0].Text
	case query.FieldLabel: // "mail:order-1" has the form of one
		return strings.TrimSpace(text)
	}
	return ""
}

// Parts returns the query before the part that is wrong, that part, and what follows.
func (d *jobsData) Parts() [3]string {
	from := min(d.Error.Offset, len(d.Text))
	to := min(from+d.Error.Length, len(d.Text))
	return [3]string{d.Text[:from], cmp.Or(d.Text[from:to], " "), d.Text[to:]}
}

// State returns the state that the query asks for, if it is the only one.
func (d *jobsData) State() string { return d.term(query.FieldState) }

// term returns the value of the query's only term of a field.
func (d *jobsData) term(field query.Field) (value string) {
	parsed, err := query.Parse(d.Text, query.Options{Now: time.Now(), Location: time.UTC})
	if err != nil {
		return ""
	}
	terms := query.And{parsed.Where}
	if and, ok := parsed.Where.(query.And); ok {
		terms = and
	}
	for _, e := range terms {
		if t, ok := e.(*query.Term); ok && t.Field == field && len(t.Values) == 1 {
			value = t.Values[0].Text
		}
	}
	return value
}

// WithState returns the address of the page with the same queue and function and another
// state, "" for all.
func (d *jobsData) WithState(state string) string {
	text := ""
	for _, part := range []struct {
		field query.Field
		name  string
	}{{query.FieldQueue, "queue"}, {query.FieldFunction, "function"}} {
		if value := d.term(part.field); value != "" {
			text += Term(part.name, value) + " "
		}
	}
	if state != "" {
		text += "state:" + state
	}
	return web.ConsolePath + "jobs?" + url.Values{"q": {text}}.Encode()
}

// queueNames returns the names of the queues, none if they are not known.
func queueNames(ctx context.Context, e *Env, v *View) (names []string) {
	list, err := ask[api.QueueList](ctx, e, v, "queue-list", &api.QueueListRequest{Limit: 200})
	if err != nil {
		return nil
	}
	for _, q := range list.Queues {
		names = append(names, q.Name)
	}
	return names
}

// parseUint returns the number that a text denotes, 0 if it denotes none.
func parseUint(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Term returns a term of a query of jobs.
func Term(field, value string) string {
	if strings.ContainsAny(value, " \t\"'():,*<>=") || value == "" {
		value = `"` + strings.ReplaceAll(strings.ReplaceAll(value, `\`, `\\`), `"`, `\"`) + `"`
	}
	return field + ":" + value
}
