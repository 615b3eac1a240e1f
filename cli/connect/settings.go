// Package connect connects the command line to a yard: it finds the server, the
// login and the certificates in the flags, in the NATS_… variables and in the
// contexts of the nats CLI.
package connect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/yardmaster-dev/yardmaster/cli/durationflag"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/internal/duration"

	"github.com/spf13/pflag"
)

// Defaults of the flags.
const (
	defaultServer  = "nats://127.0.0.1:4222"
	defaultTimeout = 5 * time.Second
)

// maxReason is the size of the longest --reason; the history keeps no more.
const maxReason = 256

// Settings are the connection settings of one command line, and its connection.
type Settings struct {
	Getenv  func(string) string
	Timeout time.Duration // --timeout, of one request
	// OnOutdated is called once for replies of a node that reaches no majority, with the time up to which it knows
	// the yard; nil: it is not.
	OnOutdated func(asOf time.Time)

	flags    source
	context  string // --context
	reason   string // --reason
	target   *target
	client   *cluster.Client
	outdated sync.Once
}

// AddFlags adds the flags of the connection to flags. s.Getenv must be set, because
// NATS_TIMEOUT is the default of --timeout.
func (s *Settings) AddFlags(flags *pflag.FlagSet) {
	s.flags.name = flagSource
	flags.StringVarP(&s.flags.url, "server", "s", "", "`url` of a node, or several separated by commas (NATS_URL; default "+defaultServer+")")
	flags.StringVar(&s.flags.login.User, "user", "", "user `name`, with --password or NATS_PASSWORD (NATS_USER)")
	flags.StringVar(&s.flags.login.Password, "password", "", "`password` of the user (NATS_PASSWORD)")
	flags.StringVar(&s.flags.login.NKey, "nkey", "", "`file` with the user's NKey seed (NATS_NKEY)")
	flags.StringVar(&s.context, "context", "", "`name` or file of a nats CLI context (NATS_CONTEXT; default the selected context)")
	flags.StringVar(&s.flags.tls.CA, "tlsca", "", "`file` with the trusted CA certificates (NATS_CA)")
	flags.StringVar(&s.flags.tls.Cert, "tlscert", "", "`file` with the client certificate (NATS_CERT)")
	flags.StringVar(&s.flags.tls.Key, "tlskey", "", "`file` with its private key (NATS_KEY)")
	timeout, err := duration.Parse(s.Getenv("NATS_TIMEOUT"))
	if err != nil || timeout <= 0 { // an invalid value must not make every verb fail
		timeout = defaultTimeout
	}
	flags.StringVar(&s.reason, "reason", "", "why a change is made: `text` for the history")
	durationflag.Var(flags, &s.Timeout, "timeout", timeout, "longest `time` to wait for a reply (NATS_TIMEOUT)")
}

// Dial connects to the node that the flags, the environment or a context names, and
// returns the connection; later calls return the same one. [Settings.Close] closes
// it. Dial must not be called concurrently until a call has succeeded.
func (s *Settings) Dial(ctx context.Context) (*cluster.Client, error) {
	if s.client != nil {
		return s.client, nil
	}
	t, err := s.destination()
	if err != nil {
		return nil, err
	}
	if s.Timeout < time.Millisecond {
		return nil, usererror.Invalid(fmt.Sprintf("--timeout is %v: must be at least 1ms", duration.Format(s.Timeout)), "give a duration such as 5s")
	}
	if strings.ContainsFunc(s.reason, unicode.IsControl) || len(s.reason) > maxReason {
		return nil, usererror.Invalid(fmt.Sprintf("--reason must be one line of at most %d bytes", maxReason), "shorten it")
	}
	s.target = t
	t.opts.Program, t.opts.Reason = "cli", s.reason
	if s.client, err = cluster.Dial(ctx, t.url, t.opts); err != nil {
		return nil, t.unreachable(err)
	}
	if s.OnOutdated != nil {
		s.client.OnOutdated = func(asOf time.Time) { s.outdated.Do(func() { s.OnOutdated(asOf) }) }
	}
	return s.client, nil
}

// NamesServer reports whether a flag, a variable or a context names the server. If not,
// Dial connects to a node on this host.
func (s *Settings) NamesServer() (bool, error) {
	t, err := s.destination()
	return err == nil && !t.isDefault, err
}

// TLSFlags returns the files that --tlsca, --tlscert and --tlskey name, "" for each that is not given.
func (s *Settings) TLSFlags() (ca, cert, key string) {
	return s.flags.tls.CA, s.flags.tls.Cert, s.flags.tls.Key
}

// Close closes the connection, if there is one.
func (s *Settings) Close() {
	if s.client != nil {
		s.client.Close()
	}
}

// Target returns the address of the connection, or "the yard" before the first
// Dial.
func (s *Settings) Target() string {
	if s.target == nil {
		return "the yard"
	}
	return s.target.String()
}

// target is the server to connect to, and how to log in.
type target struct {
	url  string
	opts cluster.DialOptions
	// Names of the sources of url and login, for error messages. Empty for the
	// flag --server and for the default.
	urlFrom, loginFrom string
	isDefault          bool // no source names the server
}

// source is one source of connection settings: the flags, the environment
// or a context.
type source struct {
	name string
	url  string
	login,
	tls cluster.DialOptions
}

// destination returns the target of the connection. The sources, in order, are
// the flags, the context that --context names, the NATS_* variables, the context
// that NATS_CONTEXT names or that is selected, and a node on this host. Each of
// address, login, client certificate and CA comes as a whole from the first
// source that has it. The selected context is ignored if a flag or a variable
// names the server, because its credentials belong to its own server.
func (s *Settings) destination() (*target, error) {
	flags := s.flags
	var err error
	if flags.login, err = s.loginFlags(); err != nil {
		return nil, err
	}
	variables := s.natsVariables()
	sources := []source{flags, variables}
	contextName := cmp.Or(s.context, s.Getenv("NATS_CONTEXT"))
	if contextName == "" && flags.url == "" && variables.url == "" {
		contextName = s.selectedContext()
	}
	if contextName != "" {
		fromContext, err := s.readContext(contextName)
		if err != nil {
			return nil, err
		}
		sources = []source{flags, variables, fromContext}
		if s.context != "" {
			sources = []source{flags, fromContext, variables}
		}
	}

	t := &target{}
	for _, from := range append(sources, source{url: defaultServer}) {
		if t.url == "" && from.url != "" {
			t.url = from.url
			switch from.name {
			case envSource:
				t.urlFrom = "NATS_URL"
			case flagSource:
				t.urlFrom = "" // the user has just typed it
			case "":
				t.isDefault = true
			default:
				t.urlFrom = from.name
			}
		}
		if t.opts == (cluster.DialOptions{}) && from.login != (cluster.DialOptions{}) {
			t.opts, t.loginFrom = from.login, from.name
		}
	}
	if err := t.applyTLS(sources); err != nil {
		return nil, err
	}
	t.opts.Name, t.opts.Timeout = "yardmaster cli", s.Timeout
	return t, nil
}

// loginFlags returns the login that the flags name, or a usage error if they
// contradict each other. The password of --user may come from NATS_PASSWORD, so that
// it does not show up in a list of processes.
func (s *Settings) loginFlags() (cluster.DialOptions, error) {
	login := s.flags.login
	if login.User != "" {
		login.Password = cmp.Or(login.Password, s.Getenv("NATS_PASSWORD"))
	}
	switch {
	case login.User != "" && login.NKey != "":
		return login, usererror.Invalid("--user and --nkey are two ways to log in", "give one of them")
	case login.User != "" && login.Password == "":
		return login, usererror.Invalid("user "+login.User+" has no password", "set NATS_PASSWORD, or give --password")
	case login.User == "" && login.Password != "":
		return login, usererror.Invalid("--password goes with --user", "name the user")
	}
	return login, nil
}

// applyTLS sets the TLS options of t: the client certificate and the CA each come from
// the first of sources that has one, which need not be the source of the login. It
// returns an error if a file that the connection will use, including a file of the
// login, cannot be read.
func (t *target) applyTLS(sources []source) error {
	for _, s := range sources {
		used := source{name: s.name} // the files of s that the connection needs
		if s.name == t.loginFrom {
			used.login = s.login
		}
		if t.opts.Cert == "" && t.opts.Key == "" {
			t.opts.Cert, t.opts.Key = s.tls.Cert, s.tls.Key
			used.tls.Cert, used.tls.Key = s.tls.Cert, s.tls.Key
		}
		if t.opts.CA == "" {
			t.opts.CA, used.tls.CA = s.tls.CA, s.tls.CA
		}
		t.opts.TLSFirst = t.opts.TLSFirst || s.tls.TLSFirst
		t.opts.InboxPrefix = cmp.Or(t.opts.InboxPrefix, s.tls.InboxPrefix)
		if err := used.checkFiles(); err != nil {
			return err
		}
	}
	return nil
}

// Names of sources in error messages.
const (
	flagSource = "a flag"
	envSource  = "the variables NATS_*"
)

// natsVariables returns the settings in the variables that the nats CLI reads,
// interpreted as it does: a user without a password is a token.
func (s *Settings) natsVariables() source {
	get := s.Getenv
	login := cluster.DialOptions{
		User: get("NATS_USER"), Password: get("NATS_PASSWORD"), Token: get("NATS_TOKEN"),
		Creds: get("NATS_CREDS"), NKey: get("NATS_NKEY"), JWT: get("NATS_JWT"), Seed: get("NATS_SEED"),
	}
	if login.Password == "" && login.User != "" {
		login.User, login.Token = "", cmp.Or(login.Token, login.User)
	}
	if login.User == "" {
		login.Password = "" // ignored without a user
	}
	return source{
		name: envSource, url: get("NATS_URL"), login: login,
		tls: cluster.DialOptions{Cert: get("NATS_CERT"), Key: get("NATS_KEY"), CA: get("NATS_CA")},
	}
}

// checkFiles returns an error if a file that s names cannot be read, or if s has a
// client certificate without its key. The error names the source, which a later error
// of the connection would not.
func (s *source) checkFiles() error {
	if (s.tls.Cert == "") != (s.tls.Key == "") {
		return usererror.New(fmt.Sprintf("%s: a client certificate requires its key, and one of them is missing", s.name), "name both, or neither")
	}
	for _, f := range []struct{ key, path string }{
		{"creds", s.login.Creds}, {"nkey", s.login.NKey}, {"cert", s.tls.Cert}, {"key", s.tls.Key}, {"ca", s.tls.CA},
	} {
		if f.path == "" {
			continue
		}
		file, err := os.Open(f.path)
		if err != nil {
			return usererror.New(fmt.Sprintf("the %s file of %s cannot be read: %v", f.key, s.name, err), "correct the path")
		}
		_ = file.Close() // opened for reading only
	}
	return nil
}

// String returns the address without user, password or token, and its source.
func (t *target) String() string {
	shown := secret.ReplaceAllString(t.url, "$1…@")
	if t.urlFrom != "" {
		shown += " (from " + t.urlFrom + ")"
	}
	return shown
}

// secret matches the user, password or token in each of several addresses.
var secret = regexp.MustCompile(`((?:^|,)(?:[^,]*?://)?)[^,]*@`)

// unreachable returns the user error for a connection to t that failed with err. The
// NATS client reports most causes as text only, so the text selects the remedy.
func (t *target) unreachable(err error) error {
	if login, ok := errors.AsType[*cluster.LoginError](err); ok {
		text := strings.ReplaceAll(login.Error(), "nats: ", "")
		if !login.TLS && t.loginFrom != "" {
			text = t.loginFrom + ": " + text
		}
		return usererror.New(text, "no connection was made; correct it, or omit it")
	}
	cause := err // the innermost error
	for next := errors.Unwrap(cause); next != nil; next = errors.Unwrap(cause) {
		cause = next
	}
	text := strings.TrimPrefix(cause.Error(), "nats: ")
	loginRefused := strings.Contains(strings.ToLower(text), "authorization") || strings.Contains(text, "nkeys not supported")
	switch {
	case strings.Contains(text, "tls"):
		return usererror.NotReady(fmt.Sprintf("no TLS connection to %s: %s", t, strings.TrimPrefix(text, "tls error: ")),
			"give the CA with --tlsca and, if the node requires it, a client certificate with --tlscert and --tlskey; 'yardmaster cert show' shows certificates")
	case loginRefused && t.loginFrom == "":
		return usererror.New(fmt.Sprintf("the server at %s requires credentials, and none are given", t),
			"name a context with --context, or set NATS_USER and NATS_PASSWORD, NATS_TOKEN, NATS_CREDS or NATS_NKEY")
	case loginRefused:
		return usererror.New(fmt.Sprintf("the server at %s refuses the credentials of %s: %s", t, t.loginFrom, text),
			"correct them, or name another server with --server")
	}
	return usererror.NotReady(fmt.Sprintf("no yard can be reached at %s: %s", t, text), "start one with 'yardmaster node', or name another with --server")
}
