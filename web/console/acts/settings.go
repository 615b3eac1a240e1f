package acts

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/web/console/format"
)

// addQueue adds a queue with default settings.
func addQueue(ctx context.Context, a *Act) (string, error) {
	q, err := do[api.Queue](ctx, a, "queue-add", "", map[string]any{"name": a.value("name")})
	return "Queue " + q.Name + " added.", err
}

// queueFields are the settings of a queue.
var queueFields = []field{
	{"concurrency_limit", whole}, {"priority", whole}, {"age_ms", milliseconds}, {"max_attempts", whole}, {"timeout_ms", milliseconds},
	{"retry_on_timeout", checked}, {"limits", list}, {"key", plain}, {"key_optional", checked}, {"fair", checked}, {"index", list},
	{"retention.finished.age_ms", milliseconds}, {"retention.finished.count", whole}, {"retention.failed.age_ms", milliseconds},
	{"retention.failed.count", whole}, {"retention.results.age_ms", milliseconds},
	{"allow_job_overrides", checked},
}

// setQueue changes those settings of a queue that differ from what the page had shown.
func setQueue(ctx context.Context, a *Act) (string, error) {
	change, err := a.changes(queueFields)
	if err != nil {
		return "", err
	}
	if a.edited("allow_job_overrides") { // the only one whose default is true
		change["allow_job_overrides"] = a.value("allow_job_overrides") != ""
	}
	var shown, weights map[string]any
	if a.edited("weights") {
		if shown, weights, err = changedWeights(a.Form.Get("was-weights"), a.Form.Get("weights")); err != nil {
			return "", &FieldError{"weights", err}
		}
		change["weights"] = weights
	}
	if len(change) > 0 {
		present, err := a.present(ctx, "queue-show")
		if err = cmp.Or(err, a.checkCurrent(present, queueFields), a.checkWeights(present, shown, weights)); err != nil {
			return "", err
		}
	}
	return a.change(ctx, "queue-set", "Queue", change)
}

// changedWeights returns the weights of keys in a text, and those that differ in another, with
// nil for one that is missing there.
func changedWeights(was, is string) (before, changed map[string]any, err error) {
	if before, err = weightsOf(was); err != nil {
		return nil, nil, err
	}
	after, err := weightsOf(is)
	if err != nil {
		return nil, nil, err
	}
	changed = map[string]any{}
	for key := range before {
		if _, ok := after[key]; !ok {
			changed[key] = nil
		}
	}
	maps.DeleteFunc(after, func(key string, weight any) bool { return before[key] == weight })
	maps.Copy(changed, after)
	return before, changed, nil
}

// weightsOf parses weights of keys: an escaped key, "=" and a number in each line.
func weightsOf(text string) (map[string]any, error) {
	weights := map[string]any{}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \r\n")
		if line == "" {
			continue
		}
		i := strings.LastIndexByte(line, '=')
		if i < 0 {
			return nil, invalid("%q has no weight; write a key, = and a number in each line, such as acme=3", line)
		}
		weight, err := whole(strings.TrimSpace(line[i+1:]))
		if err != nil {
			return nil, invalid("the weight in %q must be a whole number", line)
		}
		weights[format.Unescape(line[:i])] = weight
	}
	return weights, nil
}

// retryFields are the settings of a queue's retry rule.
var retryFields = []field{
	{"max_attempts", whole}, {"backoff_ms", milliseconds}, {"max_backoff_ms", milliseconds}, {"jitter", whole}, {"retry_on", list}, {"discard_on", list},
}

// setRetry changes the retry rule of a queue for a function, makes one, or removes it.
func setRetry(ctx context.Context, a *Act) (string, error) {
	rule, err := a.changes(retryFields)
	if err != nil {
		return "", err
	}
	if a.Form.Get("remove") != "" {
		rule = map[string]any{"remove": true}
	}
	if len(rule) == 0 {
		return "Nothing to change: all settings of the rule are as they were.", nil
	}
	if a.Form.Get("part") != "new" && rule["remove"] == nil {
		present, err := a.present(ctx, "queue-show")
		if err = cmp.Or(err, a.checkCurrent(present.item("retry", "function", a.value("function")), retryFields)); err != nil {
			return "", err
		}
	}
	rule["function"] = a.value("function")
	_, err = do[json.RawMessage](ctx, a, "queue-set", "", map[string]any{"name": a.Form.Get("name"), "retry": []any{rule}})
	return "Retries of " + format.Shorten(cmp.Or(a.value("function"), "all functions"), format.CutName) + " changed.", a.atField(err)
}

// setSchema sets the schema of a queue's function.
func setSchema(ctx context.Context, a *Act) (string, error) {
	schema, err := object(a.value("schema"))
	if err != nil {
		return "", &FieldError{"schema", err}
	}
	request := &api.SchemaChange{SchemaRequest: api.SchemaRequest{Queue: a.Form.Get("name"), Function: a.value("function")}, Schema: schema, Warn: a.value("warn") != ""}
	if _, err := do[json.RawMessage](ctx, a, "schema-set", "", request); err != nil {
		return "", a.atField(err)
	}
	return "Schema set. It applies to jobs from now on.", nil
}

// removeSchema removes the schema of a queue's function.
func removeSchema(ctx context.Context, a *Act) (string, error) {
	_, err := do[json.RawMessage](ctx, a, "schema-remove", "", &api.SchemaRequest{Queue: a.Form.Get("name"), Function: a.value("function")})
	return "Schema removed.", err
}

// limitFields are the settings of a limit.
var limitFields = []field{{"total", whole}, {"per_key", whole}, {"rate", plain}, {"rate_per_key", plain}}

// setLimit is setQueue for a limit, which it creates if the limit does not exist.
func setLimit(ctx context.Context, a *Act) (string, error) {
	change, err := a.changes(limitFields)
	if err != nil {
		return "", err
	}
	if len(change) > 0 && a.Form.Get("new") == "" {
		present, err := a.present(ctx, "limit-show")
		if err = cmp.Or(err, a.checkCurrent(present, limitFields)); err != nil {
			return "", err
		}
	}
	return a.change(ctx, "limit-set", "Limit", change)
}
