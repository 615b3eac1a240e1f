// Package usererror has the errors that the command line shows to people: what
// failed, and what to do about it.
package usererror

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/internal/similar"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"

	"github.com/spf13/cobra"
)

// Exit codes of all verbs except node, whose codes are in docs/guides/operate.md.
const (
	CodeFailed   = 1 // refused, or a job failed
	CodeUsage    = 2 // the command line is invalid
	CodeNotFound = 3 // a job, queue or other object does not exist, or no longer exists
	CodeNotReady = 4 // no node can be reached, or the yard is not ready
	CodeTimeout  = 5 // a time limit has passed; a change that was requested may take effect
)

// Error is an error for people. Remedy is empty if Msg already states it.
type Error struct {
	Msg, Remedy string
	Code        int // exit code; 0 means CodeFailed
}

func (e *Error) Error() string {
	if e.Remedy == "" {
		return e.Msg
	}
	return e.Msg + "; " + e.Remedy
}

// New returns an error with a remedy, which may be "", and the exit code of a failure.
func New(msg, remedy string) error { return &Error{Msg: msg, Remedy: remedy} }

// NotFound is New with the exit code for an object that does not exist.
func NotFound(msg, remedy string) error { return &Error{msg, remedy, CodeNotFound} }

// NotReady is New with the exit code for a yard that cannot be reached or is not ready.
func NotReady(msg, remedy string) error { return &Error{msg, remedy, CodeNotReady} }

// Timeout is New with the exit code for a time limit that has passed.
func Timeout(msg, remedy string) error { return &Error{msg, remedy, CodeTimeout} }

// Exit ends the program with an exit code and without a message.
type Exit struct{ Code int }

func (e *Exit) Error() string { return fmt.Sprint("exit code ", e.Code) }

// Failed ends the program with the exit code of a failure.
var Failed error = &Exit{CodeFailed}

// Invalid returns the error for an invalid command line, with a remedy.
func Invalid(msg, remedy string) error { return &Error{msg, remedy, CodeUsage} }

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
	if verbs := c.SuggestionsFor(verb); len(verbs) > 0 { // in the order of the verbs
		nearest := slices.MinFunc(verbs, func(a, b string) int { return cmp.Compare(similar.Distance(verb, a), similar.Distance(verb, b)) })
		remedy = fmt.Sprintf("did you mean %q?", nearest)
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
		return NotReady(err.Error(), "'yardmaster status' shows why")
	case errors.Is(err, cluster.ErrNoNodes):
		return NotReady(fmt.Sprintf("the NATS server at %s is not a yardmaster node, or the node is still starting", target), "try again, or name a node with --server")
	case errors.Is(err, context.DeadlineExceeded):
		return Timeout(fmt.Sprintf("no reply from %s within %s", target, duration.Format(timeout)), "name another node with --server, or wait longer with --timeout")
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

// refusalCodes are the exit codes of refusals, by error code.
var refusalCodes = map[string]int{
	api.CodeNotFound: CodeNotFound, api.CodeGone: CodeNotFound, api.CodeUnavailable: CodeNotReady,
	api.CodeTimeout: CodeTimeout, api.CodeUnknown: CodeTimeout,
}

// Refused returns the error for a request that a node refused, with a remedy.
func Refused(refused *api.Error, remedy string) error {
	return &Error{refused.Text, remedy, refusalCodes[refused.Code]}
}

// Refusal returns the error for a request that a node refused. The remedy comes from
// the refusal's text if it contains "; ", otherwise from remediesByText or remedies.
func Refusal(refused *api.Error) error {
	msg, remedy := refused.Text, cmp.Or(remedies[refused.Code], "the refusal's code is "+refused.Code)
	if refused.Code == api.CodeUnavailable && refused.RetryAfter > 0 {
		remedy = fmt.Sprintf("'yardmaster status' shows why; try again in %s", duration.Format(refused.RetryAfter.Round(time.Millisecond)))
	}
	for _, special := range slices.Backward(remediesByText) {
		if strings.Contains(msg, special.part) {
			remedy = special.remedy
		}
	}
	if i := strings.LastIndex(msg, "; "); i >= 0 {
		msg, remedy = msg[:i], msg[i+2:]
	}
	return &Error{msg, remedy, refusalCodes[refused.Code]}
}
