package worker

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
)

// Options configures the worker.
type Options struct {
	Nodes    []string      // nodes to connect to, host:port, tried in turn; none: 127.0.0.1:9876
	Queues   []string      // at least one; missing queues are created
	Credits  uint          // jobs that run at once, per queue
	Delay    time.Duration // time each handler waits before it begins
	FailRate float64       // share of attempts that fail at random, 0 to 1
	Witness  string        // file that gets a line for every attempt; "": none
	Name     string        // name of the worker, for display

	Token     string // token that the nodes require; "": none
	TokenFile string // file that contains Token; "": none
	TLS       bool   // use TLS; implied by any of the files below
	TLSCA     string // PEM file of the trusted authorities; "": the system's
	TLSCert   string // PEM file of the client certificate
	TLSKey    string // its private key
}

// Flags defines a flag for each field of o.
func (o *Options) Flags(f *flag.FlagSet) {
	f.Var((*list)(&o.Nodes), "addr", "node to connect to, `host:port`; may be repeated to add further nodes (default 127.0.0.1:9876)")
	f.Var((*list)(&o.Queues), "queue", "`queue` to serve; may be repeated")
	f.UintVar(&o.Credits, "credits", 1, "jobs to run at once, per queue")
	f.DurationVar(&o.Delay, "handler-delay", 0, "`time` each handler waits before it begins")
	f.Float64Var(&o.FailRate, "fail-rate", 0, "`share` of attempts that fail at random, 0 to 1")
	f.StringVar(&o.Witness, "witness", "", "`file` to append \"<jid> <attempt> <fence>\" to, on disk before the job's end is reported")
	f.StringVar(&o.Token, "token", "", "`token` that the nodes require: server.token in their configuration")
	f.StringVar(&o.TokenFile, "token-file", "", "`file` that contains the token; unlike --token it is not visible in the process list")
	f.BoolVar(&o.TLS, "tls", false, "use TLS, and trust the system's authorities")
	f.StringVar(&o.TLSCA, "tls-ca", "", "use TLS, and trust the authorities in this PEM `file`")
	f.StringVar(&o.TLSCert, "tls-cert", "", "use TLS, and present the certificate in this PEM `file`")
	f.StringVar(&o.TLSKey, "tls-key", "", "PEM `file` of the private key of --tls-cert")
	f.StringVar(&o.Name, "name", "", "`name` of this worker, for display")
}

// OptionError reports an invalid option; Flag is its flag.
type OptionError struct{ Flag, Reason string }

func (e *OptionError) Error() string { return "--" + e.Flag + " " + e.Reason }

// validate returns an [*OptionError] for the first invalid option, or nil.
func (o *Options) validate() error {
	switch {
	case len(o.Queues) == 0:
		return &OptionError{"queue", "is not given: name at least one queue to serve"}
	case o.Credits < 1 || o.Credits > 1<<20:
		return &OptionError{"credits", fmt.Sprintf("is %d: must be 1 to %d", o.Credits, 1<<20)}
	case o.Delay < 0:
		return &OptionError{"handler-delay", "is negative"}
	case o.FailRate < 0 || o.FailRate > 1:
		return &OptionError{"fail-rate", fmt.Sprintf("is %g: must be 0 to 1", o.FailRate)}
	}
	for _, node := range o.Nodes {
		_, port, err := net.SplitHostPort(node)
		if number, portErr := strconv.ParseUint(port, 10, 16); err != nil || portErr != nil || number == 0 {
			return &OptionError{"addr", fmt.Sprintf("is %q: must be host:port, such as 127.0.0.1:9876", node)}
		}
	}
	seen := map[string]bool{}
	for _, queue := range o.Queues {
		if seen[queue] {
			return &OptionError{"queue", fmt.Sprintf("names %q twice", queue)}
		}
		seen[queue] = true
	}
	return nil
}

// Run runs the worker until ctx has ended and running jobs have finished. The
// error is an [*OptionError], or describes why the worker cannot work as
// configured.
func Run(ctx context.Context, o Options, log *slog.Logger) (err error) {
	if len(o.Nodes) == 0 {
		o.Nodes = []string{"127.0.0.1:9876"}
	}
	if err := o.validate(); err != nil {
		return err
	}
	secret, err := o.tlsConfig()
	if err != nil {
		return err
	}
	token, err := o.token()
	if err != nil {
		return err
	}
	handler := o.handler()
	if o.Witness != "" {
		witness, openErr := OpenWitness(o.Witness)
		if openErr != nil {
			return openErr
		}
		defer func() { err = errors.Join(err, witness.Close()) }()
		handler = withWitness(witness, handler)
	}
	w := overhop.Worker{Nodes: o.Nodes, CreateQueues: true, Name: o.Name, Token: token, TLS: secret, Log: log}
	for _, queue := range o.Queues {
		w.Handle(queue, uint32(o.Credits), handler)
	}
	return w.Run(ctx)
}

// withWitness records every attempt before its end is reported.
func withWitness(w *Witness, next overhop.Handler) overhop.Handler {
	return func(ctx context.Context, q *overhop.Quest) (overhop.Raw, error) {
		result, err := next(ctx, q)
		if werr := w.Append(fmt.Sprintf("%s %d %d", q.JID, q.Attempt, q.Fence)); werr != nil {
			return nil, werr
		}
		return result, err
	}
}

// list is a flag that may be repeated, or contain several values separated by
// commas.
type list []string

func (l *list) String() string { return strings.Join(*l, ",") }

func (l *list) Set(s string) error {
	for value := range strings.SplitSeq(s, ",") {
		if value = strings.TrimSpace(value); value == "" {
			return errors.New("must not be empty")
		}
		*l = append(*l, value)
	}
	return nil
}
