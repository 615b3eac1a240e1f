package console

import (
	"context"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
)

func loadQueues(ctx context.Context, c *Console, v *view) (any, error) {
	return ask[api.QueueList](ctx, c, v.user, "queue-list", &api.QueueListRequest{Limit: 200, After: v.query.Get("after")})
}

// queueData is the data of the page of a queue.
type queueData struct {
	api.QueueExplanation
	Limits []api.LimitDetail // that all jobs of the queue use
}

func loadQueue(ctx context.Context, c *Console, v *view) (any, error) {
	q := &queueData{}
	var err error
	q.QueueExplanation, err = ask[api.QueueExplanation](ctx, c, v.user, "queue-explain", &api.QueueRequest{Name: v.name})
	if err != nil {
		return nil, err
	}
	for _, name := range q.Queue.Limits {
		limit, err := ask[api.LimitDetail](ctx, c, v.user, "limit-show", &api.LimitRequest{Name: name})
		if err != nil {
			return nil, err
		}
		q.Limits = append(q.Limits, limit)
	}
	return q, nil
}

func loadLimits(ctx context.Context, c *Console, v *view) (any, error) {
	return ask[api.LimitList](ctx, c, v.user, "limit-list", &api.LimitListRequest{After: v.query.Get("after")})
}

func loadLimit(ctx context.Context, c *Console, v *view) (any, error) {
	return ask[api.LimitDetail](ctx, c, v.user, "limit-show", &api.LimitRequest{Name: v.name})
}

// lettersData is the data of the page of dead letters.
type lettersData struct {
	api.DeadLetterPage
	Stats api.DeadLetterStats
	Whole bool // Stats count all dead letters of the filter
}

func loadLetters(ctx context.Context, c *Console, v *view) (any, error) {
	filter := api.DeadLetterRequest{Queue: v.query.Get("queue"), Function: v.query.Get("function"), Error: v.query.Get("error")}
	if filter.Queue != "" {
		if err := job.ValidQueue(filter.Queue); err != nil {
			return nil, &api.Error{Code: api.CodeInvalid, Text: "queue: " + err.Error()}
		}
	}
	d := &lettersData{}
	var err error
	if d.Stats, err = ask[api.DeadLetterStats](ctx, c, v.user, "dlq-stats", filter); err != nil {
		return nil, err
	}
	d.Whole = d.Stats.Next == 0
	page := filter
	page.Limit = 50
	page.From = parseUint(v.query.Get("after"))
	d.DeadLetterPage, err = ask[api.DeadLetterPage](ctx, c, v.user, "dlq-list", page)
	return d, err
}

// cronData is the data of the page of cron entries.
type cronData struct {
	api.CronPage
	Last string // name of the last entry of the page
}

func loadCron(ctx context.Context, c *Console, v *view) (any, error) {
	page, err := ask[api.CronPage](ctx, c, v.user, "cron-list", &api.CronRequest{After: v.query.Get("after"), Limit: 100})
	d := &cronData{CronPage: page}
	if n := len(page.Entries); n > 0 {
		d.Last = page.Entries[n-1].Name
	}
	return d, err
}

// queryTerm returns a term of a query of jobs.
func queryTerm(field, value string) string {
	if strings.ContainsAny(value, " \t\"'():,*<>=") || value == "" {
		value = `"` + strings.ReplaceAll(strings.ReplaceAll(value, `\`, `\\`), `"`, `\"`) + `"`
	}
	return field + ":" + value
}
