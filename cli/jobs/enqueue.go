package jobs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/durationflag"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/spf13/cobra"
)

// maxRequest is the largest body of a request, in bytes.
const maxRequest = 1 << 20

const retryOnTimeoutUsage = "retry an attempt that exceeds its timeout, like one that fails (default as the queue has it)"

// enqueueFlags are the flags of enqueue. The verb 'cron add' has some of them.
type enqueueFlags struct {
	id             string
	params         string
	payload        string
	in             time.Duration
	at             string
	priority       int64
	maxAttempts    int64
	timeout        time.Duration
	retryInterval  time.Duration
	retryOnTimeout bool
	resultTTL      time.Duration
	trace          []string // name=value
	guards         guardFlags
	labels         labelFlags
	wait           waitFlags
	bulk           string // file
}

// Enqueue returns the verb enqueue.
func Enqueue(env *command.Env) *cobra.Command {
	var f enqueueFlags
	c := env.WithJSON(&cobra.Command{
		Use:   "enqueue <queue> [function]",
		Short: "Enqueue a job",
		Long: `Enqueues a job and shows its id. When the command returns, the job is on the disks
of a quorum of members.

The function selects the handler: "handler" runs on a worker of the queue,
"runner#handler" on an RRQ runner. Without a function, the job runs on any Overhop
worker of the queue. If it is not certain that a job was accepted, repeat the
command with the same --id; it makes no second job.

A job with --unique-key, --rate-limit-key or --debounce-key is made only if no
other job holds that key, and the command waits for that decision. With a unique
key, the id shown may be that of the job that holds it. With a rate limit key, the
job may be refused. With a debounce key, the job replaces one that has not started.

Numbers with a fraction and integers beyond 64 bits reach the handlers of the Go and
Python clients and of RRQ runners as numbers. A worker with another client, which does
not have Overhop's capability "json", gets them as decimal strings: 0.5 as "0.5".

With --bulk, each line of a file is one job as a JSON object, which may have its
own queue and id. The results appear in the order of the lines, but jobs may be
stored in another order. A refused line does not affect the others, but the exit
code is 1. A line that is refused temporarily is sent again for up to a minute (12
times NATS_TIMEOUT), which makes no second job.`,
		Example: `  yardmaster enqueue mail send --params '{"to":"ann"}'
  yardmaster enqueue mail send --params @mail.json --in 10m --id order-7
  yardmaster enqueue mail digest --unique-key digest-ann --unique-ttl 1h
  yardmaster enqueue index rebuild --debounce-key index --debounce 5s
  yardmaster enqueue mail alert --limit-key acme --tag urgent --expires-in 15m
  echo '{"ms":500}' | yardmaster enqueue slow sleep --params - --wait
  echo '{"function":"send","params":{"to":"ann"},"id":"order-7"}' | yardmaster enqueue mail --bulk -`,
	})
	flags := c.Flags()
	flags.StringVar(&f.id, "id", "", "idempotency `key`: a UUID or any text up to 128 bytes")
	flags.StringVar(&f.params, "params", "", "JSON object given to the handler: `json`, @file, or - for standard input")
	flags.StringVar(&f.payload, "payload-file", "", "`file` with one MessagePack value instead of params; - for standard input")
	durationflag.Var(flags, &f.in, "in", 0, "start no earlier than this `time` after the job is stored")
	flags.StringVar(&f.at, "at", "", "start no earlier than this `time`, in RFC 3339 format")
	flags.Int64Var(&f.priority, "priority", job.DefaultPriority, "0 to 9; 9 starts first")
	flags.Int64Var(&f.maxAttempts, "max-attempts", 0, "total `number` of attempts (default set by the yard)")
	durationflag.Var(flags, &f.timeout, "timeout", 0, "`time` limit of one attempt (default set by the yard); NATS_TIMEOUT limits the request itself")
	durationflag.Var(flags, &f.retryInterval, "retry-interval", 0, "fixed `time` between attempts (default increasing)")
	flags.BoolVar(&f.retryOnTimeout, "retry-on-timeout", false, retryOnTimeoutUsage)
	durationflag.Var(flags, &f.resultTTL, "result-ttl", 0, "`time` to keep the result after the job has ended (default as long as the job)")
	flags.StringArrayVar(&f.trace, "trace", nil, "`name=value` of the trace context, passed to the worker or runner; may be repeated")
	f.guards.add(c)
	f.labels.add(c)
	f.labels.addMoment(c)
	f.wait.add(c, "the job")
	flags.StringVar(&f.bulk, "bulk", "", "`file` with one job as JSON per line; - for standard input")
	c.RunE = func(c *cobra.Command, args []string) error { return enqueue(env, c, args, &f) }
	return c
}

// enqueue enqueues one job, or the jobs of --bulk, and prints the result. args are the
// queue and, optionally, the function.
func enqueue(env *command.Env, c *cobra.Command, args []string, f *enqueueFlags) error {
	queue := args[0]
	if err := job.ValidQueue(queue); err != nil {
		return usererror.Usage(c, "%v", err)
	}
	if c.Flags().Changed("bulk") {
		if err := checkBulkFlags(c, args[1:]); err != nil {
			return err
		}
		return enqueueBulk(env, c, queue, f.bulk)
	}
	if err := f.wait.check(c); err != nil {
		return err
	}
	body, err := enqueueBody(env, c, args[1:], f)
	if err != nil {
		return err
	}
	reply, err := env.Send(c.Context(), api.Subject("enqueue", queue), body)
	accepted, err := connect.Decode[api.EnqueueReply](reply, err)
	if err != nil {
		return err
	}
	noteExisting(env, &accepted, f.guards.unique.key != "")
	switch {
	case f.wait.given:
		return awaitAccepted(c.Context(), env, accepted, f.wait.limit)
	case env.JSON:
		return env.PrintJSON(reply)
	}
	return command.Printf(env.Out, "%s\n", accepted.ID)
}

// enqueueBody returns the body of the request that enqueues one job. function has at
// most one element. It returns an error for a job that a node would refuse.
func enqueueBody(env *command.Env, c *cobra.Command, function []string, f *enqueueFlags) ([]byte, error) {
	spec, err := f.spec(env, c)
	if err != nil {
		return nil, err
	}
	if len(function) > 0 {
		spec.Function = function[0]
	}
	if err := checkKey(c, f.id); err != nil {
		return nil, err
	}
	if err := spec.Validate(); err != nil {
		return nil, usererror.Usage(c, "%v", err)
	}
	body, err := job.EncodeJSON(struct {
		ID string `json:"id,omitempty"`
		*job.Spec
	}{f.id, spec})
	if err != nil {
		return nil, fmt.Errorf("write the job as JSON: %w", err)
	}
	if len(body) > maxRequest {
		return nil, usererror.New(fmt.Sprintf("the job has %d bytes, a request at most %d", len(body), maxRequest),
			"over HTTP a job may have 32 MiB: POST /v1/queues/<queue>/jobs at a node's http.listen; or store the data elsewhere and enqueue a reference to it")
	}
	return body, nil
}

// checkKey returns a usage error if --id is given and its value is empty, or too long for
// an idempotency key.
func checkKey(c *cobra.Command, key string) error {
	if key == "" && c.Flags().Changed("id") {
		return usererror.Usage(c, "--id is empty: give a key, or omit it")
	}
	if len(key) > job.MaxKeyLen {
		return usererror.Usage(c, "--id: %v", job.ErrKeyTooLong)
	}
	return nil
}

// spec returns the job that the flags of c describe, without function and id. Flags
// that are not given leave their field of the job unset.
func (f *enqueueFlags) spec(env *command.Env, c *cobra.Command) (spec *job.Spec, err error) {
	spec = new(job.Spec)
	if err := f.guards.setOn(spec, c); err != nil {
		return nil, err
	}
	given := c.Flags().Changed
	if given("params") && given("payload-file") {
		return nil, usererror.Usage(c, "--params and --payload-file exclude each other")
	}
	if given("params") {
		if spec.Params, err = readParams(env, c, f.params); err != nil {
			return nil, err
		}
	}
	if given("payload-file") {
		if spec.Payload, err = readFile(env, f.payload); err != nil {
			return nil, err
		}
	}
	if err := f.setStart(spec, c); err != nil {
		return nil, err
	}
	if spec.Trace, err = namedValues(c, "trace", f.trace); err != nil {
		return nil, err
	}
	if err := f.labels.setOn(spec, c); err != nil {
		return nil, err
	}
	if given("retry-on-timeout") {
		spec.RetryOnTimeout = &f.retryOnTimeout
	}
	for _, number := range []struct {
		flag  string
		value int64
		field **int64
	}{
		{"priority", f.priority, &spec.Priority},
		{"max-attempts", f.maxAttempts, &spec.MaxAttempts},
		{"timeout", f.timeout.Milliseconds(), &spec.TimeoutMS},
		{"retry-interval", f.retryInterval.Milliseconds(), &spec.RetryInterval},
		{"result-ttl", f.resultTTL.Milliseconds(), &spec.ResultTTLMS},
	} {
		if given(number.flag) {
			*number.field = &number.value
		}
	}
	return spec, nil
}

// setStart sets in spec when the job may start, from the flags --in and --at. The
// delay of --in begins when the yard stores the job, by the yard's clock.
func (f *enqueueFlags) setStart(spec *job.Spec, c *cobra.Command) error {
	hasIn, hasAt := c.Flags().Changed("in"), c.Flags().Changed("at")
	switch {
	case hasIn && hasAt:
		return usererror.Usage(c, "--in and --at exclude each other")
	case hasIn && (f.in < 0 || f.in > job.MaxDuration):
		return usererror.Usage(c, "--in is %s: must be 0 to %s", duration.Format(f.in), duration.Format(job.MaxDuration))
	case hasIn:
		spec.DelayMS = new(f.in.Milliseconds())
	case hasAt:
		start, err := time.Parse(time.RFC3339, f.at)
		if err != nil {
			return usererror.Usage(c, "--at is %q: must be a time like %s", f.at, time.Now().UTC().Format(time.RFC3339))
		}
		spec.RunAt = &start
	}
	return nil
}

// readParams returns the JSON object that a value of --params gives: the value itself,
// the content of a file ("@path"), or standard input ("-"). The text is not changed, so
// that numbers keep all their digits.
func readParams(env *command.Env, c *cobra.Command, value string) (json.RawMessage, error) {
	text := []byte(value)
	path, isFile := strings.CutPrefix(value, "@")
	if isFile || value == "-" {
		var err error
		if text, err = readText(env, path); err != nil {
			return nil, err
		}
	}
	if err := json.Unmarshal(text, new(json.RawMessage)); err != nil {
		return nil, usererror.Usage(c, "--params is not JSON (%v)", err)
	}
	if text = bytes.TrimSpace(text); text[0] != '{' {
		return nil, usererror.Usage(c, "--params must be a JSON object; pass any other value as MessagePack with --payload-file")
	}
	return text, nil
}

// byteOrderMark is U+FEFF in UTF-8, with which some editors begin a file. JSON must not begin with it.
var byteOrderMark = []byte("\ufeff")

// readFile reads a file, or standard input if path is "-".
func readFile(env *command.Env, path string) ([]byte, error) {
	if path == "-" {
		data, err := io.ReadAll(env.In)
		if err != nil {
			return nil, usererror.New(fmt.Sprintf("standard input cannot be read: %v", err), "name a file instead")
		}
		return data, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fileError(err)
	}
	return data, nil
}

// readText is readFile for a text in UTF-8, without its byte order mark.
func readText(env *command.Env, path string) ([]byte, error) {
	text, err := readFile(env, path)
	return bytes.TrimPrefix(text, byteOrderMark), err
}

// fileError returns the user error for an input file that cannot be read.
func fileError(err error) error {
	return usererror.New(err.Error(), "name a file that can be read, or - for standard input")
}

// guardFlags are the flags of unique, rate limit and debounce keys.
type guardFlags struct {
	unique, rateLimit, debounce guard
	uniqueUntil                 string
}

// guard is a key, and the time a job holds it.
type guard struct {
	key  string
	held time.Duration
}

// add adds the flags to c.
func (f *guardFlags) add(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&f.unique.key, "unique-key", "", "make no second job with this `key`; show the id of the first")
	durationflag.Var(flags, &f.unique.held, "unique-ttl", 0, "`time` the job holds the unique key, ended or not, at least until it is due (default 6h)")
	flags.StringVar(&f.uniqueUntil, "unique-until", "", "hold the unique key until the `event` start or end of the job, not for a time")
	flags.StringVar(&f.rateLimit.key, "rate-limit-key", "", "make no job while another job holds this `key`")
	durationflag.Var(flags, &f.rateLimit.held, "rate-limit", 0, "`time` the job holds the rate limit key")
	flags.StringVar(&f.debounce.key, "debounce-key", "", "replace a job with this `key` that has not started")
	durationflag.Var(flags, &f.debounce.held, "debounce", 0, "`time` to wait for a newer job with the debounce key before this one starts")
}

// setOn sets the keys that the flags of c name, and how long the job holds them, on
// spec. It returns a usage error for combinations and times that a node would refuse.
func (f *guardFlags) setOn(spec *job.Spec, c *cobra.Command) error {
	given := c.Flags().Changed
	for _, g := range []struct {
		keyFlag, timeFlag string
		guard             *guard
		key               **string
		ms                **int64
	}{
		{"unique-key", "unique-ttl", &f.unique, &spec.UniqueKey, &spec.UniqueTTLMS},
		{"rate-limit-key", "rate-limit", &f.rateLimit, &spec.RateLimitKey, &spec.RateLimitMS},
		{"debounce-key", "debounce", &f.debounce, &spec.DebounceKey, &spec.DebounceMS},
	} {
		switch held := g.guard.held; {
		case given(g.timeFlag) && !given(g.keyFlag):
			return usererror.Usage(c, "--%s requires --%s", g.timeFlag, g.keyFlag)
		case given(g.keyFlag) && !given(g.timeFlag) && g.keyFlag != "unique-key":
			return usererror.Usage(c, "--%s requires --%s", g.keyFlag, g.timeFlag)
		case given(g.timeFlag) && (held < time.Millisecond || held > job.MaxGuardTTL):
			return usererror.Usage(c, "--%s is %s; must be 1ms to %s", g.timeFlag, duration.Format(held), duration.Format(job.MaxGuardTTL))
		}
		if given(g.keyFlag) {
			*g.key = &g.guard.key
		}
		if given(g.timeFlag) {
			*g.ms = new(g.guard.held.Milliseconds())
		}
	}
	if given("unique-until") {
		spec.UniqueUntil = &f.uniqueUntil
	}
	switch {
	case given("unique-until") && !given("unique-key"):
		return usererror.Usage(c, "--unique-until requires --unique-key")
	case given("unique-until") && given("unique-ttl"):
		return usererror.Usage(c, "--unique-until and --unique-ttl exclude each other")
	case given("rate-limit-key") && given("debounce-key"):
		return usererror.Usage(c, "--rate-limit-key and --debounce-key exclude each other")
	case given("debounce-key") && (given("in") || given("at")):
		return usererror.Usage(c, "--debounce-key excludes --in and --at")
	}
	return nil
}

// noteExisting writes a line to standard error if the id in the reply is that of
// an existing job. unique is whether the job has a unique key.
func noteExisting(env *command.Env, accepted *api.EnqueueReply, unique bool) {
	switch {
	case accepted.Debounced && accepted.Duplicate:
		env.Note("a job was enqueued under this --id before, and replaced this one before it started")
	case accepted.Debounced:
		env.Note("the job replaces one that has not started, under its id")
	case accepted.Duplicate && unique && accepted.Queue == "":
		env.Note("there already is a job with this --unique-key, in a queue that you may not use")
	case accepted.Duplicate && unique:
		env.Note("there already is a job with this --unique-key or --id, in queue %s", accepted.Queue)
	case accepted.Duplicate:
		env.Note("the job already existed")
	}
}
