package job

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/yardmaster-dev/yardmaster/internal/duration"
)

// RetryRule is how a queue retries the jobs of a function. What it does not set is as for the
// queue or the cluster. Settings of the job itself take precedence, except over DiscardOn.
type RetryRule struct {
	Function    string        // "": all functions of the queue without a rule of their own
	MaxAttempts uint32        // total attempts; 0: as the queue has it; only with a function
	Backoff     time.Duration // delay after the first failure, doubled with each attempt; 0: the cluster's
	MaxBackoff  time.Duration // longest delay; 0: the cluster's, or Backoff if that is longer
	Jitter      *uint8        // percent by which a delay is lengthened at most; nil: the cluster's
	RetryOn     []string      // types and codes of the errors that are retried, in order; nil: all
	DiscardOn   []string      // types and codes of the errors that end the job, in order
}

// Bounds of the retry rules of a queue.
const (
	MaxRetryRules = 100
	MaxRuleErrors = 32 // types and codes in both lists of a rule
	MaxJitter     = 100
)

// RetryChange is a change of a queue's rule for a function. Settings that are nil stay as they
// are. A rule without any setting is removed.
type RetryChange struct {
	Function    string
	Remove      bool    // drops the rule before the settings below are made
	MaxAttempts *uint32 // 0 removes it, likewise those below
	Backoff     *time.Duration
	MaxBackoff  *time.Duration
	Jitter      *int16 // -1 removes it
	RetryOn     *Names // empty removes it
	DiscardOn   *Names
}

// Rule returns the retry rule for the jobs of a function: its own, else that for all functions,
// else nil.
func (c *QueueConfig) Rule(function string) *RetryRule {
	if i, found := findRule(c.Retries, function); found {
		return &c.Retries[i]
	}
	if len(c.Retries) > 0 && c.Retries[0].Function == "" {
		return &c.Retries[0]
	}
	return nil
}

// Attempts returns how many attempts a job of a function has that names none; 0: as the cluster
// has it.
func (c *QueueConfig) Attempts(function string) uint32 {
	if r := c.Rule(function); r != nil && r.MaxAttempts > 0 {
		return r.MaxAttempts
	}
	return c.MaxAttempts
}

// findRule returns where the rule for a function is in rules, or would be.
func findRule(rules []RetryRule, function string) (i int, found bool) {
	return slices.BinarySearchFunc(rules, function, func(r RetryRule, function string) int { return strings.Compare(r.Function, function) })
}

// withRetries returns rules with changes, in a slice of its own.
func withRetries(rules []RetryRule, changes []RetryChange) []RetryRule {
	rules = slices.Clone(rules)
	for _, change := range changes {
		i, found := findRule(rules, change.Function)
		if !found {
			rules = slices.Insert(rules, i, RetryRule{Function: change.Function})
		}
		rules[i] = rules[i].changed(&change)
	}
	rules = slices.DeleteFunc(rules, func(r RetryRule) bool { return r.isEmpty() })
	if len(rules) == 0 {
		return nil // as of a queue that has never had any
	}
	return rules
}

// changed returns the rule with a change.
func (r RetryRule) changed(change *RetryChange) RetryRule {
	if change.Remove {
		r = RetryRule{Function: r.Function}
	}
	set(&r.MaxAttempts, change.MaxAttempts)
	set(&r.Backoff, change.Backoff)
	set(&r.MaxBackoff, change.MaxBackoff)
	if change.Jitter != nil {
		r.Jitter = nil
		if *change.Jitter >= 0 {
			r.Jitter = new(uint8(min(*change.Jitter, 255))) // see validate
		}
	}
	if change.RetryOn != nil {
		r.RetryOn = change.RetryOn.sorted()
	}
	if change.DiscardOn != nil {
		r.DiscardOn = change.DiscardOn.sorted()
	}
	return r
}

// sorted returns the names in order, each once.
func (n *Names) sorted() []string { return slices.Compact(slices.Sorted(slices.Values(n.Names))) }

// isEmpty reports whether the rule sets nothing.
func (r *RetryRule) isEmpty() bool {
	return r.MaxAttempts == 0 && r.Backoff == 0 && r.MaxBackoff == 0 && r.Jitter == nil && len(r.RetryOn) == 0 && len(r.DiscardOn) == 0
}

// validateRetries returns an error, which is an [*InvalidError], if a rule is out of range.
func validateRetries(rules []RetryRule) error {
	if len(rules) > MaxRetryRules {
		return invalid("the queue has %d retry rules; at most %d", len(rules), MaxRetryRules)
	}
	for i := range rules {
		if err := rules[i].validate(); err != nil {
			return err
		}
	}
	return nil
}

// validate returns an error, which is an [*InvalidError], if a setting is out of range.
func (r *RetryRule) validate() error {
	bad := func(format string, args ...any) error {
		return invalid("%s: %s", r.describe(), fmt.Sprintf(format, args...))
	}
	isDelay := func(d time.Duration) bool { return d == 0 || d >= time.Millisecond && d <= MaxDuration }
	switch {
	case len(r.Function) > MaxFunctionLen:
		return invalid("retry rule: function has %d bytes; at most %d", len(r.Function), MaxFunctionLen)
	case r.Function == "" && r.MaxAttempts > 0:
		return bad("it takes no max_attempts; set max_attempts of the queue")
	case !isDelay(r.Backoff):
		return bad("backoff is %s; must be 1ms to %s", duration.Format(r.Backoff), duration.Format(MaxDuration))
	case !isDelay(r.MaxBackoff):
		return bad("max_backoff is %s; must be 1ms to %s", duration.Format(r.MaxBackoff), duration.Format(MaxDuration))
	case r.MaxBackoff > 0 && r.MaxBackoff < r.Backoff:
		return bad("max_backoff is %s; must be at least backoff, which is %s", duration.Format(r.MaxBackoff), duration.Format(r.Backoff))
	case r.Jitter != nil && *r.Jitter > MaxJitter:
		return bad("jitter is %d; must be 0 to %d (percent)", *r.Jitter, MaxJitter)
	case len(r.RetryOn)+len(r.DiscardOn) > MaxRuleErrors:
		return bad("retry_on and discard_on name %d errors; at most %d", len(r.RetryOn)+len(r.DiscardOn), MaxRuleErrors)
	}
	for _, name := range slices.Concat(r.RetryOn, r.DiscardOn) {
		if !validErrorName(name) {
			return bad("%q is not a type or code of errors: must have 1 to %d bytes, and no space, comma or control character", CutText(name, MaxFaultNameLen), MaxFaultNameLen)
		}
	}
	for _, name := range r.DiscardOn {
		if slices.Contains(r.RetryOn, name) {
			return bad("%s is both in retry_on and in discard_on", name)
		}
	}
	return nil
}

// validErrorName reports whether a rule may name a type or code of errors.
func validErrorName(name string) bool {
	isBad := func(r rune) bool {
		return r == ',' || r == unicode.ReplacementChar || unicode.IsSpace(r) || unicode.IsControl(r)
	}
	return name != "" && len(name) <= MaxFaultNameLen && !strings.ContainsFunc(name, isBad)
}

// describe returns which rule it is.
func (r *RetryRule) describe() string {
	if r.Function == "" {
		return "retry rule for all functions"
	}
	return "retry rule for function " + r.Function
}

// names returns the type or code of a failure that is in names, or "".
func (o *Outcome) names(names []string) string {
	if o.Status == TimedOut && slices.Contains(names, FaultTimeout) {
		return FaultTimeout
	}
	if f := o.Fault; f != nil {
		for _, name := range []string{f.Code, f.Type} {
			if name != "" && slices.Contains(names, name) {
				return name
			}
		}
	}
	return ""
}

// kind returns the code of a failure, else its type, for people.
func (o *Outcome) kind() string {
	switch {
	case o.Fault != nil && cmp.Or(o.Fault.Code, o.Fault.Type) != "":
		return cmp.Or(o.Fault.Code, o.Fault.Type)
	case o.Status == TimedOut:
		return FaultTimeout
	}
	return "an error without a type"
}

// discards returns why the rule ends a job after an outcome whatever attempts are left, or "" if
// it does not.
func (r *RetryRule) discards(o *Outcome) string {
	if r == nil {
		return ""
	}
	if name := o.names(r.DiscardOn); name != "" {
		return fmt.Sprintf("%s%s is in discard_on of the %s)", notRetried, name, r.describe())
	}
	return ""
}

// excludes returns why the rule does not retry an error, or "" if it does. A handler that asks
// for another attempt gets it.
func (r *RetryRule) excludes(o *Outcome) string {
	if r == nil || len(r.RetryOn) == 0 || o.Status != Error || o.RetryAfter != nil || o.names(r.RetryOn) != "" {
		return ""
	}
	return fmt.Sprintf("%s%s is not in retry_on of the %s)", notRetried, o.kind(), r.describe())
}

// notRetried begins the note in the reason of a job that a rule has ended.
const notRetried = " (not retried: "

// DecidedByRule reports whether a retry rule ended a job that failed for a reason.
func DecidedByRule(reason string) bool { return strings.Contains(reason, notRetried) }

// retriesTimeouts reports whether the rule has timeouts retried unless the job decides.
func (r *RetryRule) retriesTimeouts() bool {
	return r != nil && slices.Contains(r.RetryOn, FaultTimeout)
}

// with returns the policy with what a rule sets. A nil rule sets nothing.
func (p Policy) with(r *RetryRule) Policy {
	if r == nil {
		return p
	}
	p.MaxAttempts = cmp.Or(r.MaxAttempts, p.MaxAttempts)
	p.BaseDelay = cmp.Or(r.Backoff, p.BaseDelay)
	p.MaxDelay = cmp.Or(r.MaxBackoff, max(p.MaxDelay, r.Backoff))
	if r.Jitter != nil {
		p.Jitter = *r.Jitter
	}
	return p
}

// settings returns the changed settings, such as "retry.send.backoff=10s".
func (c *RetryChange) settings(long bool) (settings []string) {
	prefix := "retry."
	if c.Function != "" {
		prefix += c.Function + "."
	}
	add := func(name string, given bool, value string) {
		if given {
			settings = append(settings, prefix+name+"="+cmp.Or(value, "none"))
		}
	}
	list := func(name string, names *Names) {
		if names != nil {
			add(name, true, strings.Join(names.Names, ","))
		}
	}
	add("remove", c.Remove, text(&c.Remove, long))
	add("max_attempts", c.MaxAttempts != nil, text(c.MaxAttempts, long))
	add("backoff", c.Backoff != nil, text(c.Backoff, long))
	add("max_backoff", c.MaxBackoff != nil, text(c.MaxBackoff, long))
	add("jitter", c.Jitter != nil, text(c.Jitter, long))
	list("retry_on", c.RetryOn)
	list("discard_on", c.DiscardOn)
	return settings
}
