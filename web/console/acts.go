package console

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"
)

// actTimeout bounds an act; the yard goes on with one that takes longer.
const actTimeout = 25 * time.Second

// deed is an act that a user asks for with a form.
type deed struct {
	console *Console
	user    *User
	actor   string // recorded with the act
	form    url.Values
}

// acts are what users may do, by name. Each returns what happened, for the user.
var acts = map[string]func(context.Context, *deed) (string, error){
	"queue-add": addQueue, "queue-set": setQueue, "queue-pause": named("queue-pause", "Queue %s paused: it starts no more jobs."), "queue-resume": named("queue-resume", "Queue %s resumed."),
	"queue-cancel": changeQueueJobs("queue-cancel", "cancelled"), "queue-clear": changeQueueJobs("queue-clear", "removed"),
	"limit-set": setLimit, "limit-pause": named("limit-pause", "Limit %s paused: no more jobs that use it start."), "limit-resume": named("limit-resume", "Limit %s resumed."),
	"cron-run": runCron, "cron-pause": named("cron-pause", "Cron entry %s paused."), "cron-resume": named("cron-resume", "Cron entry %s resumed."),
	"job-cancel": changeJobs("job-cancel", "cancelled"), "job-retry": changeJobs("job-retry", "set to run again"), "job-remove": changeJobs("job-remove", "removed"),
	"job-replay": replayJob, "job-set": setJob,
	"dlq-requeue": changeLetters("dlq-requeue", "requeued"), "dlq-remove": changeLetters("dlq-remove", "removed"),
	"cluster-transfer": transferAuthority, "drain": drainNode, "resume": resumeNode,
}

// serveAct handles the form of an act: it does it, and leads back to the page.
func (c *Console) serveAct(w http.ResponseWriter, r *http.Request) {
	user := c.sessions.visitor(r)
	do := acts[r.PathValue("act")]
	switch err := r.ParseForm(); {
	case err != nil:
		http.Error(w, "the form cannot be read: "+err.Error(), http.StatusBadRequest)
		return
	case user == nil:
		http.Redirect(w, r, Path+"sign-in", http.StatusSeeOther)
		return
	case do == nil:
		http.Error(w, "there is no such act", http.StatusNotFound)
		return
	}
	back := localPath(r.PostForm.Get("back"))
	if !c.sessions.checkForm(r) {
		setFlash(w, c.cfg.TLS, flash{"Nothing was done: the page was too old, or of another session. Try again from this one.", true})
		http.Redirect(w, r, back, http.StatusSeeOther)
		return
	}
	d := &deed{console: c, user: user, actor: cmp.Or(user.Name, hostOf(r)), form: r.PostForm}
	ctx, cancel := context.WithTimeout(r.Context(), actTimeout)
	defer cancel()
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(actTimeout + writeTimeout)) // fails only for writers of tests
	message, err := do(ctx, d)
	if err != nil {
		setFlash(w, c.cfg.TLS, flash{"Not done: " + problemOf(err).Text, true})
	} else {
		setFlash(w, c.cfg.TLS, flash{Text: message})
		if to := d.form.Get("then"); to != "" {
			back = localPath(to)
		}
	}
	http.Redirect(w, r, back, http.StatusSeeOther)
}

// value returns a field of the form without spaces around it.
func (d *deed) value(name string) string { return strings.TrimSpace(d.form.Get(name)) }

// do sends the request of the act to an endpoint and decodes the reply.
func do[Reply any](ctx context.Context, d *deed, endpoint, node string, request any) (reply Reply, err error) {
	if !mayUse(d.user, endpoint, node) {
		return reply, forbidden(d.user, endpoint)
	}
	call := &Call{Endpoint: endpoint, Node: node, Actor: d.actor, Reason: d.value("reason")}
	if request != nil {
		if call.Data, err = json.Marshal(request); err != nil {
			return reply, err
		}
	}
	return get[Reply](ctx, d.console, call)
}

// named returns an act on the object that the form names. said is what happened, with its
// name.
func named(endpoint, said string) func(context.Context, *deed) (string, error) {
	return func(ctx context.Context, d *deed) (string, error) {
		_, err := do[json.RawMessage](ctx, d, endpoint, "", map[string]string{"name": d.form.Get("name")})
		return fmt.Sprintf(said, shorten(d.form.Get("name"), cutName)), err
	}
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

// edited reports whether a field of the form differs from what the page had shown.
func (d *deed) edited(name string) bool {
	_, shown := d.form["was-"+name]
	return shown && d.value(name) != strings.TrimSpace(d.form.Get("was-"+name))
}

// addQueue adds a queue with default settings.
func addQueue(ctx context.Context, d *deed) (string, error) {
	q, err := do[api.Queue](ctx, d, "queue-add", "", map[string]any{"name": d.value("name")})
	return "Queue " + q.Name + " added.", err
}

// setQueue changes those settings of a queue that differ from what the page had shown.
func setQueue(ctx context.Context, d *deed) (string, error) {
	change := map[string]any{"name": d.form.Get("name")}
	var err error
	for _, key := range []string{"concurrency_limit", "max_attempts", "priority"} {
		if d.edited(key) && err == nil {
			err = number(change, key, d.value(key))
		}
	}
	for _, key := range []string{"timeout_ms", "age_ms"} {
		if d.edited(key) && err == nil {
			err = milliseconds(change, key, d.value(key))
		}
	}
	for _, key := range []string{"fair", "key_optional", "retry_on_timeout", "allow_job_overrides"} {
		if d.edited(key) {
			change[key] = d.value(key) == "on"
		}
	}
	if d.edited("key") {
		change["key"] = nil
		if key := d.value("key"); key != "" {
			change["key"] = key
		}
	}
	if d.edited("limits") {
		change["limits"] = strings.FieldsFunc(d.value("limits"), func(r rune) bool { return r == ',' || r == ' ' })
	}
	if err != nil {
		return "", err
	}
	return d.change(ctx, "queue-set", "Queue", change)
}

// setLimit is setQueue for a limit, which it creates if the limit does not exist.
func setLimit(ctx context.Context, d *deed) (string, error) {
	change := map[string]any{"name": d.value("name")}
	for _, key := range []string{"total", "per_key"} {
		if d.edited(key) {
			if err := number(change, key, d.value(key)); err != nil {
				return "", err
			}
		}
	}
	for _, key := range []string{"rate", "rate_per_key"} {
		if d.edited(key) {
			change[key] = nil
			if text := d.value(key); text != "" {
				change[key] = text
			}
		}
	}
	return d.change(ctx, "limit-set", "Limit", change)
}

// change sends a change of an object's settings, unless it is empty.
func (d *deed) change(ctx context.Context, endpoint, kind string, change map[string]any) (string, error) {
	if len(change) == 1 && d.form.Get("new") == "" {
		return "Nothing to change: all settings are as they were.", nil
	}
	if _, err := do[json.RawMessage](ctx, d, endpoint, "", change); err != nil {
		return "", err
	}
	var keys []string
	for key := range change {
		if key != "name" {
			keys = append(keys, strings.ReplaceAll(strings.TrimSuffix(key, "_ms"), "_", " "))
		}
	}
	slices.Sort(keys)
	name, _ := change["name"].(string)
	return strings.TrimSpace(fmt.Sprintf("%s %s changed: %s", kind, shorten(name, cutName), strings.Join(keys, ", "))) + ".", nil
}

// changeQueueJobs returns an act on the jobs of a queue, or what it would do.
func changeQueueJobs(endpoint, done string) func(context.Context, *deed) (string, error) {
	return func(ctx context.Context, d *deed) (string, error) {
		dry := d.form.Get("dry") != ""
		request := map[string]any{"name": d.form.Get("name"), "dry_run": dry, "limit": 1000}
		if states := d.form["state"]; len(states) > 0 {
			request["states"] = states
		}
		if function := d.value("function"); function != "" {
			request["function"] = function
		}
		if request["states"] == nil && request["function"] == nil {
			return "", &job.InvalidError{Reason: "choose states, or a function"}
		}
		if endpoint == "queue-cancel" && d.value("reason") != "" {
			request["reason"] = d.value("reason")
		}
		total := 0
		for { // in parts of at most 1000
			r, err := do[api.QueueJobsReply](ctx, d, endpoint, "", request)
			if err != nil {
				return "", err
			}
			if dry {
				return fmt.Sprintf("Dry run: %d%s jobs would be %s. Nothing was changed.", len(r.Jobs), map[bool]string{true: " or more"}[r.More], done), nil
			}
			total += r.Changed
			if r.Stopped != "" {
				return "", &api.Error{Code: api.CodeUnavailable, Text: fmt.Sprintf("%d jobs %s, then: %s", total, done, r.Stopped)}
			}
			if !r.More || r.Changed == 0 || ctx.Err() != nil {
				return fmt.Sprintf("%d jobs %s.", total, done), ctx.Err()
			}
		}
	}
}

// changeJobs returns an act on each job of the form, at most maxSelected.
func changeJobs(endpoint, done string) func(context.Context, *deed) (string, error) {
	const maxSelected = 500
	return func(ctx context.Context, d *deed) (string, error) {
		ids := d.form["id"]
		if len(ids) == 0 {
			return "", &job.InvalidError{Reason: "no job is selected"}
		}
		if len(ids) > maxSelected {
			return "", &job.InvalidError{Reason: fmt.Sprintf("%d jobs are selected; select at most %d", len(ids), maxSelected)}
		}
		changed, failed := 0, 0
		var first error
		for _, id := range ids {
			request := map[string]any{"id": id}
			if endpoint == "job-cancel" && d.value("reason") != "" {
				request["reason"] = d.value("reason")
			}
			_, err := do[json.RawMessage](ctx, d, endpoint, "", request)
			if err == nil {
				changed++
				continue
			}
			failed++
			first = cmp.Or(first, err)
		}
		switch {
		case failed == 0 && changed == 1:
			return "The job was " + done + ".", nil
		case failed == 0:
			return fmt.Sprintf("%d jobs %s.", changed, done), nil
		case changed == 0 && failed == 1:
			return "", first
		}
		return "", &api.Error{Code: problemOf(first).Code, Text: fmt.Sprintf("%d jobs %s, %d not; the first of those: %s", changed, done, failed, problemOf(first).Text)}
	}
}

// replayJob enqueues a copy of a job, with other params if the form has some.
func replayJob(ctx context.Context, d *deed) (string, error) {
	request := map[string]any{"id": d.form.Get("id")}
	if to := d.value("to"); to != "" {
		request["to"] = to
	}
	if d.edited("params") {
		params := []byte(d.value("params"))
		if !json.Valid(params) {
			return "", &job.InvalidError{Reason: "params is not valid JSON"}
		}
		request["params"] = json.RawMessage(params)
	}
	r, err := do[api.ReplayReply](ctx, d, "job-replay", "", request)
	if err == nil {
		d.form.Set("then", Path+"jobs/"+r.ID.String())
	}
	return "A copy of the job was enqueued: this is it.", err
}

// setJob changes when a job starts, or its priority.
func setJob(ctx context.Context, d *deed) (string, error) {
	change := map[string]any{"id": d.form.Get("id")}
	if d.form.Get("now") != "" {
		change["delay_ms"] = 0
	}
	if d.edited("priority") {
		if err := number(change, "priority", d.value("priority")); err != nil {
			return "", err
		}
	}
	return d.change(ctx, "job-set", "Job", change)
}

// runCron enqueues a cron entry's job.
func runCron(ctx context.Context, d *deed) (string, error) {
	r, err := do[api.EnqueueReply](ctx, d, "cron-run", "", map[string]string{"name": d.form.Get("name")})
	if err == nil {
		d.form.Set("then", Path+"jobs/"+r.ID.String())
	}
	return "The job of cron entry " + shorten(d.form.Get("name"), cutName) + " was enqueued: this is it.", err
}

// changeLetters returns an act on dead letters: those that are selected, or all that the
// filter of the page selects; or what it would do.
func changeLetters(endpoint, done string) func(context.Context, *deed) (string, error) {
	return func(ctx context.Context, d *deed) (string, error) {
		request := &api.DeadLetterRequest{DryRun: d.form.Get("dry") != "", Limit: 1000}
		for _, text := range d.form["letter"] {
			n, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				return "", &job.InvalidError{Reason: "a dead letter is not a number"}
			}
			request.Letters = append(request.Letters, n)
		}
		if d.form.Get("all") != "" {
			request.Letters, request.Queue, request.Function, request.Error = nil, d.value("queue"), d.value("function"), d.value("error")
			request.All = request.Queue == "" && request.Function == "" && request.Error == ""
		} else if len(request.Letters) == 0 {
			return "", &job.InvalidError{Reason: "no dead letter is selected"}
		}
		results := map[string]int{}
		for {
			r, err := do[api.DeadLetterResults](ctx, d, endpoint, "", request)
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

// transferAuthority transfers the authority to a member.
func transferAuthority(ctx context.Context, d *deed) (string, error) {
	r, err := do[api.Transfer](ctx, d, "cluster-transfer", "", map[string]string{"to": d.value("to")})
	return fmt.Sprintf("%s holds the authority now, from %s.", r.To, r.From), err
}

// drainNode drains a member.
func drainNode(ctx context.Context, d *deed) (string, error) {
	_, err := do[api.DrainStatus](ctx, d, "drain", d.form.Get("node"), nil)
	return d.form.Get("node") + " takes no more work. Its jobs finish, and what it leads moves to other members.", err
}

// resumeNode ends the drain of a member.
func resumeNode(ctx context.Context, d *deed) (string, error) {
	_, err := do[api.Resumed](ctx, d, "resume", d.form.Get("node"), nil)
	return d.form.Get("node") + " takes work again.", err
}

// hostOf returns the address from which a request comes.
func hostOf(r *http.Request) string { return r.RemoteAddr }
