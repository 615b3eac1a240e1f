package pages

import (
	"cmp"
	"context"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/web"
)

// Actions are the actions on all jobs that match a query.
var Actions = []string{"retry", "requeue", "cancel", "remove"}

// Operations loads the page: the list of operations.
func Operations(ctx context.Context, e *Env, v *View) (any, error) {
	after, err := v.after()
	if err != nil {
		return nil, err
	}
	return ask[api.OperationList](ctx, e, v, "operation-list", &api.OperationRequest{After: after})
}

// Operation loads the page: one operation.
func Operation(ctx context.Context, e *Env, v *View) (any, error) {
	id, err := strconv.ParseUint(v.Name, 10, 64)
	if err != nil {
		return nil, &api.Error{Code: api.CodeNotFound, Text: "operations have numbers"}
	}
	return ask[api.Operation](ctx, e, v, "operation-show", &api.OperationRequest{ID: id})
}

// previewData is the data of the page on which an operation begins.
type previewData struct {
	api.OperationStart
	Edit    string // params, as they were written
	Preview *api.OperationPreview
	Problem *api.Error // why there is no Preview
}

// Preview loads the page: what an operation would do.
func Preview(ctx context.Context, e *Env, v *View) (any, error) {
	d := &previewData{Edit: strings.TrimSpace(v.Query.Get("params"))}
	d.Action, d.Query, d.To, d.KeepAttempts = cmp.Or(v.Query.Get("action"), Actions[0]), strings.TrimSpace(v.Query.Get("query")), v.Query.Get("to"), v.Query.Get("keep_attempts") != ""
	if d.Edit != "" {
		d.Params = json.RawMessage(d.Edit)
		if !json.Valid(d.Params) {
			d.Problem = &api.Error{Code: api.CodeInvalid, Text: "The change of params is not valid JSON. Write an object with the params that change, such as {\"retries\": 3}; null removes one."}
			return d, nil
		}
	}
	preview, err := ask[api.OperationPreview](ctx, e, v, "operation-preview", &d.OperationStart)
	if err != nil {
		d.Problem, err = askAgain(err)
		return d, err
	}
	d.Preview = &preview
	return d, nil
}

// OperationURL returns the address of the page on which an operation begins.
func OperationURL(action, query string) string {
	return web.ConsolePath + "operations/new?" + url.Values{"action": {action}, "query": {query}}.Encode()
}
