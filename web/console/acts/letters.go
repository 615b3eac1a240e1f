package acts

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
)

// changeLetters returns an act on dead letters: those that are selected, or all that the
// filter of the page selects; or what it would do.
func changeLetters(endpoint, done string) func(context.Context, *Act) (string, error) {
	return func(ctx context.Context, a *Act) (string, error) {
		request := &api.DeadLetterRequest{DryRun: a.Form.Get("dry") != "", Limit: 1000}
		for _, text := range a.Form["letter"] {
			n, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				return "", invalid("a dead letter is not a number")
			}
			request.Letters = append(request.Letters, n)
		}
		if a.Form.Get("all") != "" {
			request.Letters, request.Queue, request.Function, request.Error = nil, a.value("queue"), a.value("function"), a.value("error")
			var err error
			if request.FailedAfter, err = a.time("failed_after"); err != nil {
				return "", err
			}
			if request.FailedBefore, err = a.time("failed_before"); err != nil {
				return "", err
			}
			request.All = request.Queue+request.Function+request.Error == "" && request.FailedAfter == nil && request.FailedBefore == nil
		} else if len(request.Letters) == 0 {
			return "", invalid("no dead letter is selected")
		}
		results := map[string]int{}
		for {
			r, err := do[api.DeadLetterResults](ctx, a, endpoint, "", request)
			if err != nil {
				return "", err
			}
			var failure string
			for _, item := range r.Items {
				results[item.Result]++
				failure = cmp.Or(failure, item.Error)
			}
			if r.Stopped != "" || results[api.ResultFailed] > 0 {
				return "", &api.Error{Code: api.CodeConflict, Text: lettersText(results) + ": " + cmp.Or(r.Stopped, failure)}
			}
			if r.Next == 0 || ctx.Err() != nil {
				if request.DryRun {
					return "Dry run: " + lettersText(results) + ". Nothing was changed.", nil
				}
				return cmp.Or(lettersText(results), "No dead letter was "+done) + ".", ctx.Err()
			}
			request.From, request.Until = r.Next, r.Until
		}
	}
}

// time returns a time of the form, nil if it has none.
func (a *Act) time(name string) (*time.Time, error) {
	text := a.value(name)
	if text == "" {
		return nil, nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return nil, invalid("%s is not a time", name)
	}
	return &at, nil
}

// lettersText returns what happened to dead letters, in words.
func lettersText(results map[string]int) string {
	var texts []string
	for _, result := range []string{api.ResultRetried, api.ResultEnqueued, api.ResultRemoved, api.ResultStale, api.ResultFailed} {
		if n := results[result]; n > 0 {
			texts = append(texts, fmt.Sprintf("%d %s", n, result))
		}
	}
	return cmp.Or(strings.Join(texts, ", "), "no dead letters selected")
}
