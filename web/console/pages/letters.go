package pages

import (
	"context"

	"github.com/yardmaster-dev/yardmaster/api"
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

	filter api.DeadLetterRequest
}

// maxLetterGroups is how many groups the page has.
const maxLetterGroups = 30

// Letters loads the page.
func Letters(ctx context.Context, e *Env, v *View) (any, error) {
	filter := api.DeadLetterRequest{Queue: v.Query.Get("queue"), Function: v.Query.Get("function"), Error: v.Query.Get("error")}
	if filter.Queue != "" {
		if err := job.ValidQueue(filter.Queue); err != nil {
			return nil, &api.Error{Code: api.CodeInvalid, Text: "queue: " + err.Error()}
		}
	}
	d := &lettersData{filter: filter}
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
	d.DeadLetterPage, err = ask[api.DeadLetterPage](ctx, e, v, "dlq-list", page)
	return d, err
}

// QueryOf returns the query that finds the jobs of the dead letters of a filter.
func (d *lettersData) QueryOf() string {
	text := "state:failed"
	for _, part := range [][2]string{{"queue", d.filter.Queue}, {"function", d.filter.Function}, {"error", d.filter.Error}} {
		if part[1] != "" {
			text += " " + Term(part[0], part[1])
		}
	}
	return text
}
