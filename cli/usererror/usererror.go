// Package usererror has the errors that the command line shows to people: what
// failed, and what to do about it.
package usererror

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"

	"github.com/spf13/cobra"
)

// Error is an error for people. Remedy is empty if Msg already states it.
type Error struct {
	Msg, Remedy string
	Usage       bool // the command line is invalid
	Code        int  // exit code; 0 means 1, or 2 if Usage is set
}

func (e *Error) Error() string {
	if e.Remedy == "" {
		return e.Msg
	}
	return e.Msg + "; " + e.Remedy
}

// New returns an error with a remedy, which may be "".
func New(msg, remedy string) error { return &Error{Msg: msg, Remedy: remedy} }

// Exit ends the program with an exit code and without a message.
type Exit struct{ Code int }

func (e *Exit) Error() string { return fmt.Sprint("exit code ", e.Code) }

// Failed ends the program with the exit code of a failure.
var Failed error = &Exit{1}

// Invalid returns the error for an invalid command line, with a remedy.
func Invalid(msg, remedy string) error { return &Error{Msg: msg, Remedy: remedy, Usage: true} }

// Usage returns the error for an invalid command line of c. Its remedy is the help
// of c.
func Usage(c *cobra.Command, format string, args ...any) error {
	return Invalid(fmt.Sprintf(format, args...), fmt.Sprintf("'%s --help' shows how it is used", c.CommandPath()))
}

// UnknownVerb returns the error for a verb that c does not have. It suggests a verb
// with a similar name, if there is one.
func UnknownVerb(c *cobra.Command, verb string) error {
	remedy := fmt.Sprintf("'%s --help' lists its verbs", c.CommandPath())
	c.SuggestionsMinimumDistance = 2
	if similar := c.SuggestionsFor(verb); len(similar) > 0 {
		remedy = fmt.Sprintf("did you mean %q?", similar[0])
	}
	return Invalid(fmt.Sprintf("%s has no verb %q", c.CommandPath(), verb), remedy)
}

// Explain returns err as an error with a remedy, chosen by the kind of err. An error
// that states its own remedy is returned unchanged. target is the address of the
// connection, and timeout the time limit of one request; both appear in some texts.
func Explain(err error, target string, timeout time.Duration) error {
	var (
		withRemedy  *Error
		refused     *api.Error
		invalid     *job.InvalidError
		unavailable *job.UnavailableError
		forbidden   *cluster.ForbiddenError
	)
	switch {
	case errors.As(err, &withRemedy):
		return withRemedy
	case errors.As(err, &refused):
		return Refusal(refused)
	case errors.As(err, &forbidden):
		return New(forbidden.Error(), "log in as a user whose role allows it, with --user or --nkey; docs/guides/secure.md lists the roles")
	case errors.As(err, &invalid):
		return New(invalid.Reason, remedies[api.CodeInvalid])
	case errors.As(err, &unavailable):
		return New(err.Error(), "'yardmaster status' shows why")
	case errors.Is(err, cluster.ErrNoNodes):
		return New(fmt.Sprintf("the NATS server at %s is not a yardmaster node, or the node is still starting", target), "try again, or name a node with --server")
	case errors.Is(err, context.DeadlineExceeded):
		return New(fmt.Sprintf("no reply from %s within %s", target, timeout), "name another node with --server, or wait longer with --timeout")
	case errors.Is(err, context.Canceled):
		return New("interrupted", "the last request may or may not have been executed: check, or repeat it with the same --id")
	case strings.Contains(err.Error(), "; "):
		return err // states its own remedy
	}
	return New(err.Error(), "'yardmaster --help' lists the verbs")
}

// Line returns the text of err as one line. The errors that [errors.Join] has put on
// lines of their own are separated by "; ".
func Line(err error) string {
	return strings.ReplaceAll(strings.TrimRight(err.Error(), "\n"), "\n", "; ")
}

// remedies are the remedies of refusals, by error code.
var remedies = map[string]string{
	api.CodeInvalid:     "correct it and try again",
	api.CodeNotFound:    "'yardmaster queue list' and 'yardmaster job list' show what exists",
	api.CodeTimeout:     "wait longer, or check with 'yardmaster job show'",
	api.CodeConflict:    "check its state with 'yardmaster job show' or 'yardmaster queue show'",
	api.CodeGone:        "enqueue it again",
	api.CodeTooLarge:    "make it smaller, or store the data elsewhere and enqueue a reference to it",
	api.CodeLimited:     "no job was made; try again later",
	api.CodeInternal:    "see the node's log",
	api.CodeUnavailable: "'yardmaster status' shows why; try again soon",
	api.CodeUnknown:     "it may have been executed: check, or repeat it with the same --id",
}

// remediesByText are the remedies of refusals whose code is too general, by a part
// of their text.
var remediesByText = []struct{ part, remedy string }{
	{job.ErrNotFailed.Error(), "'yardmaster job show' shows its state, and 'yardmaster job replay' runs it again as a new job"},
	{ledger.ErrCronNotFound.Error(), "'yardmaster cron list' lists the entries"},
	{ledger.ErrSchemaNotFound.Error(), "'yardmaster schema list' lists the schemas"},
	{ledger.ErrLimitNotFound.Error(), "'yardmaster limit list' lists the limits, and 'yardmaster limit set' creates one"},
	{ledger.ErrNewLimitEmpty.Error(), "'yardmaster limit set --help' shows them"},
	{ledger.ErrOperationEnded.Error(), "'yardmaster operation show' shows how it ended"},
	{ledger.ErrLimitPaused.Error(), "'yardmaster limit show' shows its state"},
	{ledger.ErrLimitNotPaused.Error(), "'yardmaster limit show' shows its state"},
	{job.ErrQueueNotFound.Error(), "'yardmaster queue add' creates one, and 'yardmaster queue list' shows what exists"},
	{"there is no member", "'yardmaster cluster members' lists them"},
	{"no other member to hand the authority to", "'yardmaster cluster members' lists the members"},
}

// Refusal returns the error for a request that a node refused. The remedy comes from
// the refusal's text if it contains "; ", otherwise from remediesByText or remedies.
func Refusal(refused *api.Error) error {
	if i := strings.LastIndex(refused.Text, "; "); i >= 0 {
		return New(refused.Text[:i], refused.Text[i+2:])
	}
	for _, special := range remediesByText {
		if strings.Contains(refused.Text, special.part) {
			return New(refused.Text, special.remedy)
		}
	}
	if refused.Code == api.CodeUnavailable && refused.RetryAfter > 0 {
		return New(refused.Text, fmt.Sprintf("'yardmaster status' shows why; try again in %s", refused.RetryAfter.Round(time.Millisecond)))
	}
	return New(refused.Text, cmp.Or(remedies[refused.Code], "the refusal's code is "+refused.Code))
}
