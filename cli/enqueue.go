package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"yardmaster/cluster"
	"yardmaster/job"

	"github.com/spf13/cobra"
)

// maxRequest is the largest job that a request may carry, in bytes of JSON.
const maxRequest = 1 << 20

// enqueueFlags are the flags of enqueue as they were given.
type enqueueFlags struct {
	id            string
	params        string
	payload       string
	in            time.Duration
	at            string
	priority      int64
	maxAttempts   int64
	timeout       time.Duration
	retryInterval time.Duration
	resultTTL     time.Duration
	trace         []string // name=value
	guards        guardFlags
	wait          bool
	longest       time.Duration
	bulk          string // file
}

func (a *app) enqueueVerb() *cobra.Command {
	var f enqueueFlags
	c := a.takesJSON(&cobra.Command{
		Use:   "enqueue <queue> [function]",
		Short: "Give the yard a job",
		Long: `Gives the yard a job and shows its id. The yard has it on the disks of a quorum
when this returns.

The function says what is to be done: "handler" goes to any worker of the queue,
"runner#handler" to an RRQ runner. Without one, any Overhop worker of the queue
gets the job. Whoever is not sure whether a job was accepted repeats it with the
same --id and gets the same job.

A job with --unique-key, --rate-limit-key or --debounce-key is made only if no
other with that key is in its way; the answer comes when that is decided. With a
unique key the id may be the other job's; with a rate limit key the job may be
refused; a job that is debounced takes the place of one that has not started.

Numbers with a fraction reach Overhop workers as decimal text, 0.5 as "0.5",
because Overhop's wire has no floats; so do integers beyond 64 bits. RRQ runners
get them as they are.

With --bulk each line of a file is a job as the yard takes it in JSON; it may
name its queue and id. The answers come in the order of the lines, the jobs are
stored side by side. A line that is refused holds up no other, but makes the
exit code 1. What the yard cannot take now is sent again for up to a minute (12
times NATS_TIMEOUT), and never makes a second job.`,
		Example: `  yardmaster enqueue mail send --params '{"to":"ann"}'
  yardmaster enqueue mail send --params @mail.json --in 10m --id order-7
  yardmaster enqueue mail digest --unique-key digest-ann --unique-ttl 1h
  yardmaster enqueue index rebuild --debounce-key index --debounce 5s
  echo '{"ms":500}' | yardmaster enqueue slow sleep --params - --wait
  echo '{"function":"send","params":{"to":"ann"},"id":"order-7"}' | yardmaster enqueue mail --bulk -`,
		Args: args("queue", "[function]"),
	})
	flags := c.Flags()
	flags.StringVar(&f.id, "id", "", "idempotency `key`: a UUID or any text up to 128 bytes")
	flags.StringVar(&f.params, "params", "", "JSON object given to the handler: `json`, @file, or - for standard input")
	flags.StringVar(&f.payload, "payload-file", "", "`file` with one MessagePack value instead of params; - for standard input")
	flags.DurationVar(&f.in, "in", 0, "start no earlier than this `time` from when the yard stores it")
	flags.StringVar(&f.at, "at", "", "start no earlier than this `moment`, RFC 3339")
	flags.Int64Var(&f.priority, "priority", job.DefaultPriority, "0 to 9, 9 starts first")
	flags.Int64Var(&f.maxAttempts, "max-attempts", 0, "total `number` of attempts (default the yard's)")
	flags.DurationVar(&f.timeout, "timeout", 0, "hard `time` limit of one attempt (default the yard's); NATS_TIMEOUT is the request's")
	flags.DurationVar(&f.retryInterval, "retry-interval", 0, "fixed `time` between attempts (default growing)")
	flags.DurationVar(&f.resultTTL, "result-ttl", 0, "`time` that the result is shown after the job's end (default while the yard keeps it)")
	flags.StringArrayVar(&f.trace, "trace", nil, "`name=value` of the job's trace, handed to whoever runs it; repeat for more")
	f.guards.add(c)
	flags.BoolVar(&f.wait, "wait", false, "wait until the job has ended; exit with 1 if it failed")
	flags.DurationVar(&f.longest, "for", 0, "longest `time` of --wait; exit with 1 after it (default until the job has ended)")
	flags.StringVar(&f.bulk, "bulk", "", "`file` with a job as JSON on each line; - for standard input")
	c.RunE = func(c *cobra.Command, args []string) error { return a.enqueue(c, args, &f) }
	return c
}

func (a *app) enqueue(c *cobra.Command, args []string, f *enqueueFlags) error {
	queue := args[0]
	if err := job.ValidQueue(queue); err != nil {
		return usage(c, err.Error())
	}
	if c.Flags().Changed("bulk") {
		if err := bulkAlone(c, args[1:]); err != nil {
			return err
		}
		return a.enqueueBulk(c, queue, f.bulk)
	}
	if c.Flags().Changed("for") && !f.wait {
		return usage(c, "--for limits --wait, which is not given")
	}
	if err := validFor(c, f.longest); err != nil {
		return err
	}
	if err := f.guards.check(c); err != nil {
		return err
	}
	body, err := a.enqueueBody(c, args[1:], f)
	if err != nil {
		return err
	}
	y, err := a.dial(c.Context())
	if err != nil {
		return err
	}
	defer y.Close()
	answer, err := y.askWithin(c.Context(), y.timeout, cluster.SubjectEnqueue+"."+queue, json.RawMessage(body))
	if err != nil {
		return err
	}
	var accepted enqueueAnswer
	if err := json.Unmarshal(answer, &accepted); err != nil {
		return unreadable(err)
	}
	a.tellExisting(accepted, &f.guards)
	switch {
	case f.wait:
		return a.awaitAccepted(c.Context(), y, accepted, f.longest)
	case a.json:
		return a.printJSON(answer)
	}
	_, err = fmt.Fprintln(a.Out, accepted.ID)
	return err
}

// enqueueBody writes the request; it refuses whatever the yard would.
func (a *app) enqueueBody(c *cobra.Command, function []string, f *enqueueFlags) ([]byte, error) {
	spec, err := a.spec(c, f)
	if err != nil {
		return nil, err
	}
	if len(function) > 0 {
		spec.Function = function[0]
	}
	if len(f.id) > job.MaxKeyLen {
		return nil, usage(c, "--id: "+job.ErrKeyTooLong.Error())
	}
	if err := spec.Validate(); err != nil {
		return nil, usage(c, err.Error())
	}
	body, err := json.Marshal(struct {
		ID string `json:"id,omitempty"`
		*job.Spec
	}{f.id, spec})
	if err != nil {
		return nil, fmt.Errorf("write the job as JSON: %w", err)
	}
	if len(body) > maxRequest {
		return nil, &problem{
			what: fmt.Sprintf("the job has %d bytes; at most %d fit into a request", len(body), maxRequest),
			do:   "over HTTP a job may have 32 MiB: POST /v1/queues/<queue>/jobs at a node's http.listen; or store it elsewhere and enqueue where it is",
		}
	}
	return body, nil
}

func (a *app) spec(c *cobra.Command, f *enqueueFlags) (*job.Spec, error) {
	var (
		spec job.Spec
		err  error
	)
	given := c.Flags().Changed
	if given("params") && given("payload-file") {
		return nil, usage(c, "--params and --payload-file exclude each other")
	}
	if given("params") {
		if spec.Params, err = a.params(c, f.params); err != nil {
			return nil, err
		}
	}
	if given("payload-file") {
		if spec.Payload, err = a.readFile(f.payload); err != nil {
			return nil, err
		}
	}
	if err := f.deferral(&spec, c); err != nil {
		return nil, err
	}
	if spec.Trace, err = f.traceEntries(c); err != nil {
		return nil, err
	}
	f.guards.into(&spec, c)
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
	return &spec, nil
}

// deferral says when the job may start. "In" counts by the yard's clock, from
// when the job is stored.
func (f *enqueueFlags) deferral(spec *job.Spec, c *cobra.Command) error {
	in, at := c.Flags().Changed("in"), c.Flags().Changed("at")
	switch {
	case in && at:
		return usage(c, "--in and --at exclude each other")
	case in && (f.in < 0 || f.in > job.MaxDuration):
		return usage(c, fmt.Sprintf("--in is %s: must be 0 to %dh", f.in, int(job.MaxDuration.Hours())))
	case in:
		ms := f.in.Milliseconds()
		spec.DelayMS = &ms
	case at:
		t, err := time.Parse(time.RFC3339, f.at)
		if err != nil {
			return usage(c, fmt.Sprintf("--at is %q: must be a moment like %s", f.at, time.Now().UTC().Format(time.RFC3339)))
		}
		spec.RunAt = &t
	}
	return nil
}

func (f *enqueueFlags) traceEntries(c *cobra.Command) (map[string]string, error) {
	if len(f.trace) == 0 {
		return nil, nil
	}
	entries := make(map[string]string, len(f.trace))
	for _, text := range f.trace {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return nil, usage(c, fmt.Sprintf("--trace is %q: must be name=value", text))
		}
		entries[name] = value
	}
	return entries, nil
}

// params reads a JSON object as it stands: its numbers keep all their digits.
func (a *app) params(c *cobra.Command, given string) (json.RawMessage, error) {
	text := []byte(given)
	var err error
	if path, isFile := strings.CutPrefix(given, "@"); isFile {
		text, err = a.readFile(path)
	} else if given == "-" {
		text, err = a.readFile(given)
	}
	if err != nil {
		return nil, err
	}
	var v json.RawMessage
	if err := json.Unmarshal(text, &v); err != nil {
		return nil, usage(c, fmt.Sprintf("--params is not JSON (%v)", err))
	}
	if text = bytes.TrimSpace(text); text[0] != '{' {
		return nil, usage(c, "--params must be a JSON object; any other value goes as MessagePack by --payload-file")
	}
	return text, nil
}

func (a *app) readFile(path string) ([]byte, error) {
	if path == "-" {
		data, err := io.ReadAll(a.In)
		if err != nil {
			return nil, &problem{what: fmt.Sprintf("standard input cannot be read: %v", err), do: "name a file instead"}
		}
		return data, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, &problem{what: err.Error(), do: "name a file that can be read, or - for standard input"}
	}
	return data, nil
}
