package acts

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"
)

// addQueue adds a queue with default settings.
func addQueue(ctx context.Context, a *Act) (string, error) {
	q, err := do[api.Queue](ctx, a, "queue-add", "", map[string]any{"name": a.value("name")})
	return "Queue " + q.Name + " added.", err
}

// setQueue changes those settings of a queue that differ from what the page had shown.
func setQueue(ctx context.Context, a *Act) (string, error) {
	change := map[string]any{"name": a.Form.Get("name")}
	var err error
	for _, key := range []string{"concurrency_limit", "max_attempts", "priority"} {
		if a.edited(key) && err == nil {
			err = number(change, key, a.value(key))
		}
	}
	for _, key := range []string{"timeout_ms", "age_ms"} {
		if a.edited(key) && err == nil {
			err = milliseconds(change, key, a.value(key))
		}
	}
	for _, key := range []string{"fair", "key_optional", "retry_on_timeout", "allow_job_overrides"} {
		if a.edited(key) {
			change[key] = a.value(key) == "on"
		}
	}
	if a.edited("key") {
		change["key"] = nil
		if key := a.value("key"); key != "" {
			change["key"] = key
		}
	}
	if a.edited("limits") {
		change["limits"] = strings.FieldsFunc(a.value("limits"), func(r rune) bool { return r == ',' || r == ' ' })
	}
	if err != nil {
		return "", err
	}
	return a.change(ctx, "queue-set", "Queue", change)
}

// setLimit is setQueue for a limit, which it creates if the limit does not exist.
func setLimit(ctx context.Context, a *Act) (string, error) {
	change := map[string]any{"name": a.value("name")}
	for _, key := range []string{"total", "per_key"} {
		if a.edited(key) {
			if err := number(change, key, a.value(key)); err != nil {
				return "", err
			}
		}
	}
	for _, key := range []string{"rate", "rate_per_key"} {
		if a.edited(key) {
			change[key] = nil
			if text := a.value(key); text != "" {
				change[key] = text
			}
		}
	}
	return a.change(ctx, "limit-set", "Limit", change)
}

// number adds a setting that is a whole number to a change; an empty text resets it.
func number(change map[string]any, key, text string) error {
	if text == "" {
		change[key] = nil
		return nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return &job.InvalidError{Reason: fmt.Sprintf("%s is %q; must be a whole number, or empty", key, text)}
	}
	change[key] = n
	return nil
}

// milliseconds is number for a duration, such as 30s.
func milliseconds(change map[string]any, key, text string) error {
	if text == "" {
		change[key] = nil
		return nil
	}
	d, err := duration.Parse(text)
	if err != nil || d < time.Millisecond {
		return &job.InvalidError{Reason: fmt.Sprintf("%s is %q; must be a duration, such as 30s, or empty", strings.TrimSuffix(key, "_ms"), text)}
	}
	change[key] = d.Milliseconds()
	return nil
}
