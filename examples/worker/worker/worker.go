package worker

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"yardmaster/edge/overhop"
)

// Options say where to work and how.
type Options struct {
	Nodes    []string      // edges, host:port; the worker changes over when one is gone; none: 127.0.0.1:9876
	Queues   []string      // at least one; one that does not exist yet is added
	Credits  uint          // jobs in hand at once, per queue
	Delay    time.Duration // spent in every handler before it begins
	FailRate float64       // share of attempts that fail by dice, 0 to 1
	Witness  string        // file that gets a line for every attempt; "": none
	Name     string        // shown to the yard's people

	Token   string // what the edges ask of their clients; "": nothing
	Secret  string // file that holds Token; "": none
	TLS     bool   // speak TLS; any of the files below says so too
	TLSCA   string // PEM file of the authorities whose edges are trusted; "": the system's
	TLSCert string // PEM file to show to edges that want a client certificate
	TLSKey  string // its private key
}

// Flags declares o's fields as flags.
func (o *Options) Flags(f *flag.FlagSet) {
	f.Var((*list)(&o.Nodes), "addr", "edge to connect to, `host:port`; repeat it to name others to change over to (default 127.0.0.1:9876)")
	f.Var((*list)(&o.Queues), "queue", "`queue` to serve; may be repeated")
	f.UintVar(&o.Credits, "credits", 1, "jobs in hand at once, per queue")
	f.DurationVar(&o.Delay, "handler-delay", 0, "`time` to spend in every handler before it begins")
	f.Float64Var(&o.FailRate, "fail-rate", 0, "`share` of attempts that fail by dice, 0 to 1")
	f.StringVar(&o.Witness, "witness", "", "`file` to append \"<jid> <attempt> <fence>\" to, on disk before the job's end is told")
	f.StringVar(&o.Token, "token", "", "`token` that the edges ask of their clients: server.token of their configuration")
	f.StringVar(&o.Secret, "token-file", "", "`file` that holds the token, where others can see what a program is started with")
	f.BoolVar(&o.TLS, "tls", false, "speak TLS, and trust the authorities that this machine trusts")
	f.StringVar(&o.TLSCA, "tls-ca", "", "speak TLS, and trust the authorities in this PEM `file`")
	f.StringVar(&o.TLSCert, "tls-cert", "", "speak TLS, and show the certificate in this PEM `file`")
	f.StringVar(&o.TLSKey, "tls-key", "", "PEM `file` of the private key of --tls-cert")
	f.StringVar(&o.Name, "name", "", "`name` of this worker, for people")
}

// OptionError refuses an option; Flag names it.
type OptionError struct{ Flag, Reason string }

func (e *OptionError) Error() string { return "--" + e.Flag + " " + e.Reason }

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
	seen := map[string]bool{}
	for _, queue := range o.Queues {
		if seen[queue] {
			return &OptionError{"queue", fmt.Sprintf("names %q twice", queue)}
		}
		seen[queue] = true
	}
	return nil
}

// Run works until ctx ends and what was in hand is finished. An error is an
// [*OptionError], or says why this worker cannot work as it is set up.
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
		handler = witnessed(witness, handler)
	}
	w := overhop.Worker{Nodes: o.Nodes, Create: true, Name: o.Name, Token: token, TLS: secret, Log: log}
	for _, queue := range o.Queues {
		w.Handle(queue, uint32(o.Credits), handler)
	}
	return w.Run(ctx)
}

// witnessed writes down an attempt before its end is told, whatever the end.
func witnessed(w *Witness, next overhop.Handler) overhop.Handler {
	return func(ctx context.Context, q *overhop.Quest) (overhop.Raw, error) {
		result, err := next(ctx, q)
		if werr := w.Note(fmt.Sprintf("%s %d %d", q.JID, q.Attempt, q.Fence)); werr != nil {
			return nil, werr
		}
		return result, err
	}
}

// list is a flag that may be repeated, or hold several values between commas.
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
