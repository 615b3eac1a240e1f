package pages

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"regexp"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/index/query"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/web"
)

// jobsData is the data of the page of jobs.
type jobsData struct {
	Text  string // of the query
	Error *query.SyntaxError
	api.FoundJobs
	Totals map[string]int    // of the queues that the query names, else of all, by state
	Queues []string          // that Totals count; none: all
	Why    map[string]string // why the waiting jobs of a queue wait

	query *query.Query // nil if there is an Error
}

// Jobs loads the page: the jobs that a query finds.
func Jobs(ctx context.Context, e *Env, v *View) (any, error) {
	d := &jobsData{Text: strings.TrimSpace(v.Query.Get("q"))}
	parsed, err := query.Parse(d.Text, query.Options{Now: time.Now()})
	if syntax, ok := errors.AsType[*query.SyntaxError](err); ok {
		d.Error = syntax
		return d, nil
	}
	if err != nil {
		return nil, err
	}
	d.query = parsed
	if name := namedJob(d.Text, parsed); name != "" {
		shown, err := ask[api.Job](ctx, e, v, "job-show", &api.JobRequest{ID: name})
		if err == nil {
			return Redirect(web.ConsolePath + "jobs/" + shown.ID.String()), nil
		} // else the search may find it
	}
	d.FoundJobs, err = ask[api.FoundJobs](ctx, e, v, "job-find", &api.JobFindRequest{Query: d.Text, Cursor: v.Query.Get("after")})
	if err != nil {
		return nil, err
	}
	if t := d.only(query.FieldQueue); t != nil && !slices.ContainsFunc(t.Values, func(v query.Value) bool { return v.Prefix }) {
		for _, value := range t.Values {
			d.Queues = append(d.Queues, value.Text)
		}
	}
	d.Why = waiting(ctx, e, v, d.Jobs)
	listed, err := ask[api.JobList](ctx, e, v, "job-list", &api.JobListRequest{Queues: d.Queues, Limit: 1, Brief: true})
	d.Totals = listed.Totals
	return d, err
}

// Limits of the explanations of queues on a page of jobs.
const (
	maxExplained   = 4
	explainTimeout = 300 * time.Millisecond
)

// waiting returns why jobs wait, by the queue: of those queues that can be explained in a
// short time.
func waiting(ctx context.Context, e *Env, v *View, jobs []api.Job) map[string]string {
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	texts := map[string]string{}
	var queues []string
	var mu sync.Mutex
	var group crash.Group
	for i := range jobs {
		queue := jobs[i].Queue
		if jobs[i].State != job.Waiting.String() || slices.Contains(queues, queue) || len(queues) == maxExplained {
			continue
		}
		queues = append(queues, queue)
		group.Run(func() {
			explained, err := ask[api.QueueExplanation](ctx, e, v, "queue-explain", &api.QueueRequest{Name: queue})
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				texts[queue] = explained.Verdict
			}
		})
	}
	_ = group.Wait() // the functions return no errors
	return texts
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
		return text
	}
	return ""
}

// Parts returns the query before the part that is wrong, that part, and what follows.
func (d *jobsData) Parts() [3]string {
	from := min(d.Error.Offset, len(d.Text))
	to := min(from+d.Error.Length, len(d.Text))
	return [3]string{d.Text[:from], cmp.Or(d.Text[from:to], " "), d.Text[to:]}
}

// Behind reports whether the index lacks changes that people would notice.
func (d *jobsData) Behind() bool { return d.Index.Lag > 1000 }

// only returns the query's only term of a field, nil if it has none or several, or one that
// is a part of another condition.
func (d *jobsData) only(field query.Field) (only *query.Term) {
	if d.query == nil {
		return nil
	}
	terms, ok := d.query.Where.(query.And)
	if !ok {
		terms = query.And{d.query.Where}
	}
	for _, x := range terms {
		if t, ok := x.(*query.Term); ok && t.Field == field {
			if only != nil {
				return nil
			}
			only = t
		}
	}
	return only
}

// State returns the state that the query asks for, if it is the only one.
func (d *jobsData) State() string {
	if t := d.only(query.FieldState); t != nil && len(t.Values) == 1 {
		return t.Values[0].Text
	}
	return ""
}

// stateTerm matches a term of states at the top of a query.
var stateTerm = regexp.MustCompile(`(?i)(^|\s)state:[a-z,]+(\s|$)`)

// WithState returns the address of the page with the same query and another state, "" for
// all.
func (d *jobsData) WithState(state string) string {
	text := d.Text
	switch {
	case d.query == nil:
		text = ""
	case d.only(query.FieldState) != nil:
		text = strings.TrimSpace(stateTerm.ReplaceAllString(text, " "))
	}
	if d.query != nil && state != "" {
		if _, or := d.query.Where.(query.Or); or {
			text = "(" + (&query.Query{Where: d.query.Where}).String() + ")"
		}
	}
	if state != "" {
		text = strings.TrimSpace(text + " state:" + state)
	}
	return Search(text)
}

// All returns the query as an operation on many jobs takes it.
func (d *jobsData) All() string { return cmp.Or(d.Text, "id:*") }

// Search returns the address of the page of jobs with a query.
func Search(text string) string {
	if text == "" {
		return web.ConsolePath + "jobs"
	}
	return web.ConsolePath + "jobs?" + url.Values{"q": {text}}.Encode()
}

// savedView is a query with a name.
type savedView struct{ Name, Text string }

// Views returns queries that people often need.
func (d *jobsData) Views() []savedView {
	return []savedView{
		{"Failed in the last hour", "state:failed since:1h"},
		{"Timeouts of today", "error:timeout created:today"},
		{"Running for long", "state:active started:<15m"},
		{"Waiting for long", "state:waiting created:<15m sort:created"},
		{"Slow", "took:>10s since:24h"},
	}
}

// Term returns a term of a query of jobs.
func Term(field, value string) string {
	if strings.ContainsAny(value, " \t\"'():,*<>=") || value == "" {
		value = `"` + strings.ReplaceAll(strings.ReplaceAll(value, `\`, `\\`), `"`, `\"`) + `"`
	}
	return field + ":" + value
}
