package acts

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/web"
	"github.com/yardmaster-dev/yardmaster/web/console/calls"
	"github.com/yardmaster-dev/yardmaster/web/console/format"
)

// cronFields are the fields of the form of a cron entry.
var cronFields = []field{
	{"schedule", plain}, {"time_zone", plain}, {"queue", plain}, {"function", plain}, {"params", parsedObject}, {"options", parsedObject},
	{"skip_overlap", checked}, {"run_missed", checked},
}

// addCron adds a cron entry, or changes one as the form was edited.
func addCron(ctx context.Context, a *Act) (string, error) {
	name, isNew := a.value("name"), a.Form.Get("new") != ""
	for key := range a.Form { // browsers send lines that end with CR LF
		a.Form.Set(key, strings.ReplaceAll(a.Form.Get(key), "\r\n", "\n"))
	}
	change, err := a.changes(cronFields)
	switch {
	case err != nil:
		return "", err
	case len(change) == 0 && !isNew:
		return "Nothing to change: the entry is as it was.", nil
	}
	present := settings{}
	if !isNew {
		entry, err := calls.Ask[api.CronDetail](ctx, a.Call, a.User, "cron-show", &api.CronShowRequest{Name: name})
		if err != nil {
			return "", err
		}
		present = cronSettings(&entry.Cron)
		if err := a.checkCurrent(present, cronFields); err != nil {
			return "", err
		}
	}
	request := &api.CronChange{
		Name: name, Schedule: a.entered(present, "schedule"), Zone: a.entered(present, "time_zone"), Queue: a.entered(present, "queue"),
		Missed: api.CronSkip, Overlap: api.CronAllow, Replace: !isNew,
	}
	if a.entered(present, "run_missed") != "" {
		request.Missed = api.CronOnce
	}
	if a.entered(present, "skip_overlap") != "" {
		request.Overlap = api.CronSkip
	}
	if request.Job, err = a.cronJob(present); err != nil {
		return "", err
	}
	added, err := do[api.Cron](ctx, a, "cron-add", "", request)
	if err != nil {
		if isNew && calls.Problem(err).Code == api.CodeConflict {
			return "", &FieldError{"name", err}
		}
		return "", a.atField(err)
	}
	a.Form.Set("then", web.ConsolePath+"cron/"+added.Name)
	verb := " changed."
	if isNew {
		verb = " added."
	}
	return "Cron entry " + format.Shorten(added.Name, format.CutName) + verb, nil
}

// entered returns the value of a field if the user has edited it, or else the present one.
func (a *Act) entered(present settings, name string) string {
	if a.edited(name) {
		return a.value(name)
	}
	return present.text(name)
}

// cronJob returns the job of the entry as JSON. The form has its function, its params and its other
// options in three fields.
func (a *Act) cronJob(present settings) (json.RawMessage, error) {
	job := map[string]json.RawMessage{}
	if options := a.entered(present, "options"); options != "" {
		if err := json.Unmarshal([]byte(options), &job); err != nil {
			return nil, err
		}
	}
	if function := a.entered(present, "function"); function != "" {
		text, err := json.Marshal(function)
		if err != nil {
			return nil, err
		}
		job["function"] = text
	}
	if params := a.entered(present, "params"); params != "" {
		job["params"] = json.RawMessage(params)
	}
	return json.Marshal(job)
}

// cronSettings returns the settings of a cron entry as the fields of its form have them.
func cronSettings(c *api.Cron) settings {
	function, params, options := format.JobParts(c.Job)
	return settings{
		"schedule": c.Schedule, "time_zone": c.Zone, "queue": c.Queue, "function": function, "params": params, "options": options,
		"skip_overlap": c.Overlap == api.CronSkip, "run_missed": c.Missed == api.CronOnce,
	}
}

// parsedObject checks that a text is a JSON object.
func parsedObject(text string) (any, error) {
	var object map[string]json.RawMessage
	if json.Unmarshal([]byte(text), &object) != nil {
		return nil, errors.New("must be a JSON object, or empty")
	}
	return text, nil
}

// removeCron removes a cron entry.
func removeCron(ctx context.Context, a *Act) (string, error) {
	a.Form.Set("then", web.ConsolePath+"cron")
	return named("cron-remove", "Cron entry %s removed. Jobs that it has made stay.")(ctx, a)
}
