package diagnose

import (
	"cmp"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
)

// Sources of the settings of a job's attempts, see [api.ReasonData].
const (
	fromJob   = "job"
	fromRule  = "rule"
	fromQueue = "queue"
)

// attemptSettings sets in data what has set the attempts of the job.
func (d *diagnosis) attemptSettings(data *api.ReasonData) {
	p := &d.job
	rule := p.QueueView.Config.Rule(p.Function)
	switch {
	case p.OwnAttempts:
		data.AttemptsFrom = fromJob
	case rule != nil && rule.MaxAttempts > 0:
		data.AttemptsFrom, data.RuleFunction = fromRule, &rule.Function
	case p.MaxAttempts > 0:
		data.AttemptsFrom = fromQueue
	}
}

// delaySettings sets in data what sets the delays between attempts of the job, unless a worker
// asks for another one.
func (d *diagnosis) delaySettings(data *api.ReasonData) {
	p := &d.job
	rule := p.QueueView.Config.Rule(p.Function)
	switch {
	case p.RetryInterval > 0:
		data.DelayFrom = fromJob
	case rule != nil && (rule.Backoff > 0 || rule.MaxBackoff > 0 || rule.Jitter != nil):
		data.DelayFrom, data.RuleFunction = fromRule, &rule.Function
	}
}

// timeoutSettings sets in data what has set the timeout of the job's attempts.
func (d *diagnosis) timeoutSettings(data *api.ReasonData) {
	switch {
	case d.job.OwnTimeout:
		data.TimeoutFrom = fromJob
	case d.job.Timeout > 0:
		data.TimeoutFrom = fromQueue
	}
}

// settingsNote returns which of the settings in data its queue has set, such as " (attempts and
// delay by the retry rule of queue mail for function send)", or "" for none.
func (d *diagnosis) settingsNote(data *api.ReasonData) string {
	by := map[string][]string{}
	for _, s := range []struct{ name, from string }{{"attempts", data.AttemptsFrom}, {"delay", data.DelayFrom}, {"timeout", data.TimeoutFrom}} {
		by[s.from] = append(by[s.from], s.name)
	}
	queue := "queue " + d.job.View.Queue
	var notes []string
	if names := by[fromRule]; names != nil {
		function := "all functions"
		if *data.RuleFunction != "" {
			function = "function " + *data.RuleFunction
		}
		notes = append(notes, strings.Join(names, " and ")+" by the retry rule of "+queue+" for "+function)
	}
	if names := by[fromQueue]; names != nil {
		notes = append(notes, strings.Join(names, " and ")+" by "+queue)
	}
	if notes == nil {
		return ""
	}
	return " (" + strings.Join(notes, ", ") + ")"
}

// maxAttempts returns how many attempts the job may have.
func (d *diagnosis) maxAttempts() uint32 { return cmp.Or(d.job.MaxAttempts, d.attempts) }
