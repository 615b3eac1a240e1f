package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"yardmaster/cluster"
	"yardmaster/job"

	"github.com/spf13/cobra"
)

// problem is an error as a person reads it: what was wrong, and what to do,
// unless what was wrong says that itself.
type problem struct {
	what, do string
	usage    bool // the command line itself was wrong
	code     int  // exit code; 0: 1, or 2 for usage
}

func (p *problem) Error() string {
	if p.do == "" {
		return p.what
	}
	return p.what + "; " + p.do
}

// exitError ends the program with a code and without a word: what there was to
// say is said.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprint("exit code ", e.code) }

func usage(c *cobra.Command, what string) error {
	return &problem{what: what, do: fmt.Sprintf("'%s --help' shows how it is used", c.CommandPath()), usage: true}
}

func unknownVerb(c *cobra.Command, verb string) error {
	p := &problem{what: fmt.Sprintf("%s has no verb %q", c.CommandPath(), verb), usage: true}
	p.do = fmt.Sprintf("'%s --help' lists its verbs", c.CommandPath())
	c.SuggestionsMinimumDistance = 2
	if near := c.SuggestionsFor(verb); len(near) > 0 {
		p.do = fmt.Sprintf("did you mean %q?", near[0])
	}
	return p
}

// args checks the number of arguments; names are as in Use, optional ones at
// the end in brackets.
func args(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, given []string) error {
		if len(given) > len(names) {
			return usage(c, fmt.Sprintf("%q is one argument too many", given[len(names)]))
		}
		if len(given) < len(names) && !strings.HasPrefix(names[len(given)], "[") {
			return usage(c, names[len(given)]+" is missing")
		}
		return nil
	}
}

// explain turns an error of the yard or of the way to it into a problem.
func (a *app) explain(err error) error {
	var (
		known       *problem
		refused     *cluster.APIError
		invalid     *job.InvalidError
		unavailable *job.UnavailableError
		forbidden   *cluster.ForbiddenError
	)
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &refused):
		return explainRefusal(refused)
	case errors.As(err, &forbidden):
		return &problem{what: forbidden.Error(), do: "ask as one whose role allows it, with --user or --nkey; docs/roles.md tells which does"}
	case errors.As(err, &invalid):
		return &problem{what: invalid.Reason, do: "correct it and try again"}
	case errors.As(err, &unavailable):
		return &problem{what: err.Error(), do: "'yardmaster status' tells why"}
	case errors.Is(err, cluster.ErrNobodyAnswers):
		return &problem{
			what: fmt.Sprintf("a NATS server listens at %s, but no node of a yard answers behind it", a.dialled),
			do:   "wait if the node is still starting, or name a node with --server",
		}
	case errors.Is(err, context.DeadlineExceeded):
		return &problem{
			what: fmt.Sprintf("no answer from %s within %s", a.whom(), a.timeout),
			do:   "name another node with --server, or wait longer with --timeout",
		}
	case errors.Is(err, context.Canceled):
		return &problem{what: "interrupted", do: "nothing is known of what was asked last: look, or repeat it with the same --id"}
	}
	if strings.Contains(err.Error(), "; ") {
		return err // names its own way out
	}
	return &problem{what: err.Error(), do: "'yardmaster --help' shows what can be asked"}
}

// remedies says what to do about a refusal by its code.
var remedies = map[string]string{
	"400": "correct it and try again",
	"404": "'yardmaster queue list' and 'yardmaster job list' show what there is",
	"408": "wait longer, or look with 'yardmaster job show'",
	"409": "look at how it stands with 'yardmaster job show' or 'yardmaster queue show'",
	"410": "enqueue it anew",
	"413": "make it smaller, or store it elsewhere and enqueue where it is",
	"429": "no job was made; try again later",
	"500": "the node's log tells more",
	"503": "'yardmaster status' tells why; try again soon",
	"504": "it may have been done: look, or repeat it with the same --id",
}

// remediesByText are for refusals whose code says too little.
var remediesByText = []struct{ text, do string }{
	{job.ErrNotFailed.Error(), "'yardmaster job show' shows its state; to do the same once more, enqueue it anew"},
	{"cron entry does not exist", "'yardmaster cron list' shows what there is"},
	{"there is no member", "'yardmaster cluster members' lists them"},
	{"no other member to hand the authority to", "'yardmaster cluster members' lists who there is"},
	{"that could be made anew", "'yardmaster cluster scrub' lists the streams and who has a copy"},
}

func explainRefusal(e *cluster.APIError) error {
	if strings.Contains(e.Text, "; ") {
		return &problem{what: e.Text[:strings.LastIndex(e.Text, "; ")], do: e.Text[strings.LastIndex(e.Text, "; ")+2:]}
	}
	p := &problem{what: e.Text, do: remedies[e.Code]}
	for _, known := range remediesByText {
		if strings.Contains(e.Text, known.text) {
			p.do = known.do
			return p
		}
	}
	if p.do == "" {
		p.do = "the refusal's code is " + e.Code
	}
	if e.Code == "503" && e.RetryAfter > 0 {
		p.do = fmt.Sprintf("'yardmaster status' tells why; try again in %s", e.RetryAfter.Round(time.Millisecond))
	}
	return p
}

// whom is who was asked, or would have been.
func (a *app) whom() string {
	if a.dialled == nil {
		return "the yard"
	}
	return a.dialled.String()
}

// unreachable says that nothing listens where the yard should be, or does not
// let this program in.
func (a *app) unreachable(err error) error {
	if login := (*cluster.LoginError)(nil); errors.As(err, &login) {
		text := strings.ReplaceAll(login.Error(), "nats: ", "")
		if !login.TLS && a.dialled.loginFrom != "" {
			text = a.dialled.loginFrom + ": " + text
		}
		return &problem{what: text, do: "no server was asked; correct it, or leave it out"}
	}
	cause := err
	for next := errors.Unwrap(cause); next != nil; next = errors.Unwrap(cause) {
		cause = next
	}
	text := strings.TrimPrefix(cause.Error(), "nats: ")
	switch {
	case strings.Contains(text, "tls"):
		return &problem{
			what: fmt.Sprintf("no TLS with %s: %s", a.dialled, strings.TrimPrefix(text, "tls error: ")),
			do:   "give the authorities to believe by --tlsca and, if the node asks for one, a certificate by --tlscert and --tlskey; 'yardmaster cert show' shows whose they are",
		}
	case !strings.Contains(strings.ToLower(text), "authorization") && !strings.Contains(text, "nkeys not supported"):
	case a.dialled.loginFrom == "":
		return &problem{
			what: fmt.Sprintf("the server at %s asks for credentials, and none are given", a.dialled),
			do:   "name a context with --context, or set NATS_USER and NATS_PASSWORD, NATS_TOKEN, NATS_CREDS or NATS_NKEY",
		}
	default:
		return &problem{
			what: fmt.Sprintf("the server at %s refuses the credentials of %s: %s", a.dialled, a.dialled.loginFrom, text),
			do:   "correct them, or name a server that takes them with --server",
		}
	}
	return &problem{
		what: fmt.Sprintf("no yard can be reached at %s: %s", a.dialled, text),
		do:   "start one with 'yardmaster node', or name another with --server",
	}
}
