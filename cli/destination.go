package cli

import (
	"cmp"
	"fmt"
	"os"
	"strings"

	"github.com/yardmaster-dev/yardmaster/cluster"
)

// connTarget is the server to connect to, and how to log in.
type connTarget struct {
	url  string
	opts cluster.DialOptions
	// Names of the sources of url and login, for error messages. Empty for the
	// flag --server and for the default.
	urlFrom, loginFrom string
}

// connSource is one source of connection settings: the flags, the environment
// or a context.
type connSource struct {
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
func (a *app) destination() (*connTarget, error) {
	flags, err := a.loginFlags()
	if err != nil {
		return nil, err
	}
	sources := []connSource{{name: flagSource, url: a.server, login: flags, tls: a.tls.tls}, a.natsVariables()}
	named, byFlag := a.context, a.context != ""
	if !byFlag {
		named = a.getenv("NATS_CONTEXT")
	}
	if named == "" && a.server == "" && sources[1].url == "" {
		named = a.selectedContext()
	}
	if named != "" {
		c, origin, err := a.readContext(named)
		if err != nil {
			return nil, err
		}
		s := connSource{name: origin, url: c.URL, login: c.login()}
		s.tls = cluster.DialOptions{Cert: c.Cert, Key: c.Key, CA: c.CA, TLSFirst: c.TLSFirst, InboxPrefix: c.InboxPrefix}
		if byFlag {
			sources = []connSource{sources[0], s, sources[1]}
		} else {
			sources = append(sources, s)
		}
	}
	d := &connTarget{}
	for _, s := range append(sources, connSource{url: defaultServer}) {
		if d.url == "" && s.url != "" {
			d.url, d.urlFrom = s.url, s.name
			switch s.name {
			case envSource:
				d.urlFrom = "NATS_URL"
			case flagSource:
				d.urlFrom = "" // needs no mention
			}
		}
		if d.opts == (cluster.DialOptions{}) && s.login != (cluster.DialOptions{}) {
			d.opts, d.loginFrom = s.login, s.name
		}
	}
	if err := d.applyTLS(sources); err != nil {
		return nil, err
	}
	d.opts.Name, d.opts.Timeout = "yardmaster cli", a.timeout
	return d, nil
}

// userFlags are the values of --user, --password and --nkey.
type userFlags struct{ user, password, nkey string }

// loginFlags returns the login that the flags name. The password of --user may
// come from NATS_PASSWORD, so that it does not show up in a list of processes.
func (a *app) loginFlags() (o cluster.DialOptions, err error) {
	l := a.login
	if l.user != "" {
		l.password = cmp.Or(l.password, a.getenv("NATS_PASSWORD"))
	}
	switch {
	case l.user != "" && l.nkey != "":
		err = &userError{msg: "--user and --nkey are two ways to log in", remedy: "give one of them", usage: true}
	case l.user != "" && l.password == "":
		err = &userError{msg: "user " + l.user + " has no password", remedy: "set NATS_PASSWORD, or give --password", usage: true}
	case l.user == "" && l.password != "":
		err = &userError{msg: "--password goes with --user", remedy: "name the user", usage: true}
	}
	return cluster.DialOptions{User: l.user, Password: l.password, NKey: l.nkey}, err
}

// applyTLS sets the TLS options of d, which are independent of the login. It
// returns an error if a file that d uses, including the login's, cannot be read.
func (d *connTarget) applyTLS(sources []connSource) error {
	for _, s := range sources {
		taken := connSource{name: s.name}
		if s.name == d.loginFrom {
			taken.login = s.login
		}
		if d.opts.Cert == "" && d.opts.Key == "" {
			d.opts.Cert, d.opts.Key = s.tls.Cert, s.tls.Key
			taken.tls.Cert, taken.tls.Key = s.tls.Cert, s.tls.Key
		}
		if d.opts.CA == "" {
			d.opts.CA, taken.tls.CA = s.tls.CA, s.tls.CA
		}
		d.opts.TLSFirst = d.opts.TLSFirst || s.tls.TLSFirst
		d.opts.InboxPrefix = cmp.Or(d.opts.InboxPrefix, s.tls.InboxPrefix)
		if err := taken.checkFiles(); err != nil {
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
func (a *app) natsVariables() connSource {
	s := connSource{name: envSource, url: a.getenv("NATS_URL")}
	s.login = cluster.DialOptions{
		User: a.getenv("NATS_USER"), Password: a.getenv("NATS_PASSWORD"), Token: a.getenv("NATS_TOKEN"),
		Creds: a.getenv("NATS_CREDS"), NKey: a.getenv("NATS_NKEY"), JWT: a.getenv("NATS_JWT"), Seed: a.getenv("NATS_SEED"),
	}
	if s.login.Password == "" && s.login.User != "" {
		s.login.User, s.login.Token = "", cmp.Or(s.login.Token, s.login.User)
	}
	if s.login.User == "" {
		s.login.Password = "" // ignored without a user
	}
	s.tls = cluster.DialOptions{Cert: a.getenv("NATS_CERT"), Key: a.getenv("NATS_KEY"), CA: a.getenv("NATS_CA")}
	return s
}

// checkFiles returns an error if a file of s cannot be read. The error names the
// source, which the error of the connection would not. The caller passes only
// the settings that are used.
func (s *connSource) checkFiles() error {
	if (s.tls.Cert == "") != (s.tls.Key == "") {
		return &userError{msg: fmt.Sprintf("%s: a client certificate requires its key, and one of them is missing", s.name), remedy: "name both, or neither"}
	}
	for _, f := range []struct{ key, path string }{
		{"creds", s.login.Creds}, {"nkey", s.login.NKey}, {"cert", s.tls.Cert}, {"key", s.tls.Key}, {"ca", s.tls.CA},
	} {
		if f.path == "" {
			continue
		}
		file, err := os.Open(f.path)
		if err != nil {
			return &userError{msg: fmt.Sprintf("the %s file of %s cannot be read: %v", f.key, s.name, err), remedy: "correct the path"}
		}
		_ = file.Close() // opened for reading only
	}
	return nil
}

// String returns the address without user, password or token, and its source.
func (d *connTarget) String() string {
	parts := strings.Split(d.url, ",")
	for i, part := range parts {
		if at := strings.LastIndexByte(part, '@'); at >= 0 { // hides a password or token
			scheme := ""
			if named, _, ok := strings.Cut(part[:at], "://"); ok {
				scheme = named + "://"
			}
			parts[i] = scheme + "…" + part[at:]
		}
	}
	shown := strings.Join(parts, ",")
	if d.urlFrom != "" {
		shown += " (from " + d.urlFrom + ")"
	}
	return shown
}
