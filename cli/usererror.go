package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/spf13/cobra"
)

// userError is an error for people: what failed, and what to do about it. remedy
// is empty if msg already states it.
type userError struct {
	msg, remedy string
	usage       bool // the command line is invalid
	code        int  // exit code; 0 means 1, or 2 if usage is set
}

func (p *userError) Error() string {
	if p.remedy == "" {
		return p.msg
	}
	return p.msg + "; " + p.remedy
}

// exitError ends the program with an exit code and without a message.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprint("exit code ", e.code) }

// usageError returns the error for an invalid command line of c.
func usageError(c *cobra.Command, msg string) error {
	return &userError{msg: msg, remedy: fmt.Sprintf("'%s --help' shows how it is used", c.CommandPath()), usage: true}
}

func unknownCommandError(c *cobra.Command, verb string) error {
	p := &userError{msg: fmt.Sprintf("%s has no verb %q", c.CommandPath(), verb), usage: true}
	p.remedy = fmt.Sprintf("'%s --help' lists its verbs", c.CommandPath())
	c.SuggestionsMinimumDistance = 2
	if near := c.SuggestionsFor(verb); len(near) > 0 {
		p.remedy = fmt.Sprintf("did you mean %q?", near[0])
	}
	return p
}

// takeArgs returns a check of the number of arguments. names are those in Use;
// optional ones are last and in brackets.
func takeArgs(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, given []string) error {
		if len(given) > len(names) {
			return usageError(c, fmt.Sprintf("%q is one argument too many", given[len(names)]))
		}
		if len(given) < len(names) && !strings.HasPrefix(names[len(given)], "[") {
			return usageError(c, names[len(given)]+" is missing")
		}
		return nil
	}
}

// asUserError returns err as a user error, with a remedy that fits.
func (a *app) asUserError(err error) error {
	var (
		known       *userError
		refused     *api.Error
		invalid     *job.InvalidError
		unavailable *job.UnavailableError
		forbidden   *cluster.ForbiddenError
	)
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &refused):
		return explainAPIError(refused)
	case errors.As(err, &forbidden):
		return &userError{msg: forbidden.Error(), remedy: "log in as a user whose role allows it, with --user or --nkey; docs/guides/secure.md lists the roles"}
	case errors.As(err, &invalid):
		return &userError{msg: invalid.Reason, remedy: "correct it and try again"}
	case errors.As(err, &unavailable):
		return &userError{msg: err.Error(), remedy: "'yardmaster status' shows why"}
	case errors.Is(err, cluster.ErrNoNodes):
		return &userError{
			msg:    fmt.Sprintf("the NATS server at %s is not a yardmaster node, or the node is still starting", a.target),
			remedy: "try again, or name a node with --server",
		}
	case errors.Is(err, context.DeadlineExceeded):
		return &userError{
			msg:    fmt.Sprintf("no reply from %s within %s", a.targetText(), a.timeout),
			remedy: "name another node with --server, or wait longer with --timeout",
		}
	case errors.Is(err, context.Canceled):
		return &userError{msg: "interrupted", remedy: "the last request may or may not have been executed: check, or repeat it with the same --id"}
	}
	if strings.Contains(err.Error(), "; ") {
		return err // states its own remedy
	}
	return &userError{msg: err.Error(), remedy: "'yardmaster --help' lists the verbs"}
}

// remedies are the remedies of refusals, by error code.
var remedies = map[string]string{
	"400": "correct it and try again",
	"404": "'yardmaster queue list' and 'yardmaster job list' show what exists",
	"408": "wait longer, or check with 'yardmaster job show'",
	"409": "check its state with 'yardmaster job show' or 'yardmaster queue show'",
	"410": "enqueue it again",
	"413": "make it smaller, or store the data elsewhere and enqueue a reference to it",
	"429": "no job was made; try again later",
	"500": "see the node's log",
	"503": "'yardmaster status' shows why; try again soon",
	"504": "it may have been executed: check, or repeat it with the same --id",
}

// remediesByText are the remedies of refusals whose code is too general, by a part
// of their text.
var remediesByText = []struct{ text, do string }{
	{job.ErrNotFailed.Error(), "'yardmaster job show' shows its state, and 'yardmaster job replay' runs it again as a new job"},
	{"cron entry does not exist", "'yardmaster cron list' lists the entries"},
	{"there is no member", "'yardmaster cluster members' lists them"},
	{"no other member to hand the authority to", "'yardmaster cluster members' lists the members"},
}

// explainAPIError returns the user error for a refusal. A text that contains "; "
// states its own remedy.
func explainAPIError(e *api.Error) error {
	if strings.Contains(e.Text, "; ") {
		return &userError{msg: e.Text[:strings.LastIndex(e.Text, "; ")], remedy: e.Text[strings.LastIndex(e.Text, "; ")+2:]}
	}
	p := &userError{msg: e.Text, remedy: remedies[e.Code]}
	for _, known := range remediesByText {
		if strings.Contains(e.Text, known.text) {
			p.remedy = known.do
			return p
		}
	}
	if p.remedy == "" {
		p.remedy = "the refusal's code is " + e.Code
	}
	if e.Code == api.CodeUnavailable && e.RetryAfter > 0 {
		p.remedy = fmt.Sprintf("'yardmaster status' shows why; try again in %s", e.RetryAfter.Round(time.Millisecond))
	}
	return p
}

// targetText returns the address of the connection, if there is one.
func (a *app) targetText() string {
	if a.target == nil {
		return "the yard"
	}
	return a.target.String()
}

// unreachable returns the user error for a connection that failed with err.
func (a *app) unreachable(err error) error {
	if login := (*cluster.LoginError)(nil); errors.As(err, &login) {
		text := strings.ReplaceAll(login.Error(), "nats: ", "")
		if !login.TLS && a.target.loginFrom != "" {
			text = a.target.loginFrom + ": " + text
		}
		return &userError{msg: text, remedy: "no connection was made; correct it, or omit it"}
	}
	cause := err
	for next := errors.Unwrap(cause); next != nil; next = errors.Unwrap(cause) {
		cause = next
	}
	text := strings.TrimPrefix(cause.Error(), "nats: ")
	switch {
	case strings.Contains(text, "tls"):
		return &userError{
			msg:    fmt.Sprintf("no TLS connection to %s: %s", a.target, strings.TrimPrefix(text, "tls error: ")),
			remedy: "give the CA with --tlsca and, if the node requires it, a client certificate with --tlscert and --tlskey; 'yardmaster cert show' shows certificates",
		}
	case !strings.Contains(strings.ToLower(text), "authorization") && !strings.Contains(text, "nkeys not supported"):
	case a.target.loginFrom == "":
		return &userError{
			msg:    fmt.Sprintf("the server at %s requires credentials, and none are given", a.target),
			remedy: "name a context with --context, or set NATS_USER and NATS_PASSWORD, NATS_TOKEN, NATS_CREDS or NATS_NKEY",
		}
	default:
		return &userError{
			msg:    fmt.Sprintf("the server at %s refuses the credentials of %s: %s", a.target, a.target.loginFrom, text),
			remedy: "correct them, or name another server with --server",
		}
	}
	return &userError{
		msg:    fmt.Sprintf("no yard can be reached at %s: %s", a.target, text),
		remedy: "start one with 'yardmaster node', or name another with --server",
	}
}
