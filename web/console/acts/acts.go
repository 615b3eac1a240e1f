// Package acts carries out what users ask for with forms.
package acts

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/yardmaster-dev/yardmaster/web/console/calls"
	"github.com/yardmaster-dev/yardmaster/web/console/format"
	"github.com/yardmaster-dev/yardmaster/web/console/session"
)

// Act is an act that a user asks for with a form.
type Act struct {
	Name  string // of the act
	Call  calls.Func
	User  *session.User
	Actor string // recorded with the act
	Form  url.Values
}

// table has what users may do, by name. Each returns what happened, for the user.
var table = map[string]func(context.Context, *Act) (string, error){
	"queue-add": addQueue, "queue-set": setQueue, "retry-set": setRetry, "schema-set": setSchema, "schema-remove": removeSchema, "queue-pause": named("queue-pause", "Queue %s paused: it starts no more jobs."), "queue-resume": named("queue-resume", "Queue %s resumed."),
	"limit-set": setLimit, "limit-pause": named("limit-pause", "Limit %s paused: no more jobs that use it start."), "limit-resume": named("limit-resume", "Limit %s resumed."),
	"cron-add": addCron, "cron-remove": removeCron,
	"cron-run": runCron, "cron-pause": named("cron-pause", "Cron entry %s paused."), "cron-resume": named("cron-resume", "Cron entry %s resumed."),
	"job-cancel": changeJobs("job-cancel", "cancelled"), "job-retry": changeJobs("job-retry", "set to run again"), "job-remove": changeJobs("job-remove", "removed"),
	"job-replay": replayJob, "job-set": startJob,
	"dlq-requeue": changeLetters("dlq-requeue", "requeued"), "dlq-remove": changeLetters("dlq-remove", "removed"),
	"operation-start": startOperation, "operation-set": changeOperation("operation-set", "has another rate"), "operation-pause": changeOperation("operation-pause", "paused"),
	"operation-resume": changeOperation("operation-resume", "resumed"), "operation-cancel": changeOperation("operation-cancel", "cancelled: jobs that it has changed stay so"),
	"worker-drain": changeWorker("worker-drain"), "worker-resume": changeWorker("worker-resume"),
	"cluster-transfer": transferAuthority, "drain": drainNode, "resume": resumeNode,
}

// Known reports whether there is an act of a name.
func Known(name string) bool { return table[name] != nil }

// Do carries out the act and returns what happened, for the user.
func (a *Act) Do(ctx context.Context) (string, error) { return table[a.Name](ctx, a) }

// value returns a field of the form without spaces around it.
func (a *Act) value(name string) string { return strings.TrimSpace(a.Form.Get(name)) }

// do sends the request of the act to an endpoint and decodes the reply.
func do[Reply any](ctx context.Context, a *Act, endpoint, node string, request any) (Reply, error) {
	return calls.Act[Reply](ctx, a.Call, a.User, &calls.Call{Endpoint: endpoint, Node: node, Actor: a.Actor, Reason: a.value("reason")}, request)
}

// named returns an act on the object that the form names. said is what happened, with its
// name.
func named(endpoint, said string) func(context.Context, *Act) (string, error) {
	return func(ctx context.Context, a *Act) (string, error) {
		_, err := do[json.RawMessage](ctx, a, endpoint, "", map[string]string{"name": a.Form.Get("name")})
		return fmt.Sprintf(said, format.Shorten(a.Form.Get("name"), format.CutName)), err
	}
}

// edited reports whether a field of the form differs from what the page had shown.
func (a *Act) edited(name string) bool {
	_, shown := a.Form["was-"+name]
	return shown && a.value(name) != strings.TrimSpace(a.Form.Get("was-"+name))
}

// change sends a change of the settings of the object that the form names, unless it is
// empty.
func (a *Act) change(ctx context.Context, endpoint, kind string, change map[string]any) (string, error) {
	if len(change) == 0 && a.Form.Get("new") == "" {
		return "Nothing to change: all settings are as they were.", nil
	}
	var keys []string
	for key := range change {
		keys = append(keys, strings.ReplaceAll(strings.TrimSuffix(key, "_ms"), "_", " "))
	}
	slices.Sort(keys)
	name := a.value("name")
	change["name"] = name
	if _, err := do[json.RawMessage](ctx, a, endpoint, "", change); err != nil {
		return "", a.atField(err)
	}
	if len(keys) == 0 {
		return fmt.Sprintf("%s %s added.", kind, format.Shorten(name, format.CutName)), nil
	}
	return fmt.Sprintf("%s %s changed: %s.", kind, format.Shorten(name, format.CutName), strings.Join(keys, ", ")), nil
}
