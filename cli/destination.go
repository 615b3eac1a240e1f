package cli

import (
	"cmp"
	"fmt"
	"os"
	"strings"

	"yardmaster/cluster"
)

// destination is where the yard is, and how to come in there.
type destination struct {
	url  string
	opts cluster.DialOptions
	// Who said so, for people: "" is the flag, or nobody.
	urlFrom, loginFrom string
}

// source is somebody who may say where the yard is and how to come in.
type source struct {
	name string
	url  string
	login,
	tls cluster.DialOptions
}

// destination asks the sources in order: the flag --server, the context that
// --context names, the variables of NATS' own tools, the context that
// NATS_CONTEXT names or that is selected, and last a node on this host. Each
// of the address, the login, the certificate and the authorities comes as a
// whole from the first who names it. A context that is merely selected has no
// say if a flag or a variable names the server: its credentials belong to its
// own server.
func (a *app) destination() (*destination, error) {
	flags, err := a.loginFlags()
	if err != nil {
		return nil, err
	}
	sources := []source{{name: flagsName, url: a.server, login: flags, tls: a.tls.tls}, a.natsVariables()}
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
		s := source{name: origin, url: c.URL, login: c.login()}
		s.tls = cluster.DialOptions{Cert: c.Cert, Key: c.Key, CA: c.CA, TLSFirst: c.TLSFirst, InboxPrefix: c.InboxPrefix}
		if byFlag {
			sources = []source{sources[0], s, sources[1]}
		} else {
			sources = append(sources, s)
		}
	}
	d := &destination{}
	for _, s := range append(sources, source{url: defaultServer}) {
		if d.url == "" && s.url != "" {
			d.url, d.urlFrom = s.url, s.name
			switch s.name {
			case variables:
				d.urlFrom = "NATS_URL"
			case flagsName:
				d.urlFrom = "" // whoever wrote it knows
			}
		}
		if d.opts == (cluster.DialOptions{}) && s.login != (cluster.DialOptions{}) {
			d.opts, d.loginFrom = s.login, s.name
		}
	}
	if err := d.takeTLS(sources); err != nil {
		return nil, err
	}
	d.opts.Name, d.opts.Timeout = "yardmaster cli", a.timeout
	return d, nil
}

// login is who the flags say that the caller is.
type login struct{ user, password, nkey string }

// loginFlags are the flags' login. A password may stay out of sight of who lists
// processes.
func (a *app) loginFlags() (o cluster.DialOptions, err error) {
	l := a.login
	if l.user != "" {
		l.password = cmp.Or(l.password, a.getenv("NATS_PASSWORD"))
	}
	switch {
	case l.user != "" && l.nkey != "":
		err = &problem{what: "--user and --nkey are two ways to log in", do: "give one of them", usage: true}
	case l.user != "" && l.password == "":
		err = &problem{what: "user " + l.user + " has no password", do: "set NATS_PASSWORD, or give --password", usage: true}
	case l.user == "" && l.password != "":
		err = &problem{what: "--password goes with --user", do: "name the user", usage: true}
	}
	return cluster.DialOptions{User: l.user, Password: l.password, NKey: l.nkey}, err
}

// takeTLS takes what goes beside any login. Its error is of a file that cannot
// be read, the login's among them.
func (d *destination) takeTLS(sources []source) error {
	for _, s := range sources {
		taken := source{name: s.name}
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
		if err := taken.readable(); err != nil {
			return err
		}
	}
	return nil
}

// flagsName is how the command line is called as a source.
const flagsName = "a flag"

// variables is how the environment is called as a source.
const variables = "the variables NATS_*"

// natsVariables are those that NATS' own command line reads, as it reads them: a
// user without a password is a token.
func (a *app) natsVariables() source {
	s := source{name: variables, url: a.getenv("NATS_URL")}
	s.login = cluster.DialOptions{
		User: a.getenv("NATS_USER"), Password: a.getenv("NATS_PASSWORD"), Token: a.getenv("NATS_TOKEN"),
		Creds: a.getenv("NATS_CREDS"), NKey: a.getenv("NATS_NKEY"), JWT: a.getenv("NATS_JWT"), Seed: a.getenv("NATS_SEED"),
	}
	if s.login.Password == "" && s.login.User != "" {
		s.login.User, s.login.Token = "", cmp.Or(s.login.Token, s.login.User)
	}
	if s.login.User == "" {
		s.login.Password = "" // it belongs to nobody
	}
	s.tls = cluster.DialOptions{Cert: a.getenv("NATS_CERT"), Key: a.getenv("NATS_KEY"), CA: a.getenv("NATS_CA")}
	return s
}

// readable tells a file that cannot be read by who named it: the connection's
// own error would only say that there is none. What a source says and nobody
// takes from it need not be there.
func (s *source) readable() error {
	if (s.tls.Cert == "") != (s.tls.Key == "") {
		return &problem{what: fmt.Sprintf("%s: a certificate and its key go together, and one of them is missing", s.name), do: "name both, or neither"}
	}
	for _, f := range []struct{ key, path string }{
		{"creds", s.login.Creds}, {"nkey", s.login.NKey}, {"cert", s.tls.Cert}, {"key", s.tls.Key}, {"ca", s.tls.CA},
	} {
		if f.path == "" {
			continue
		}
		file, err := os.Open(f.path)
		if err != nil {
			return &problem{what: fmt.Sprintf("%s cannot be read, which %s names: %v", f.key, s.name, err), do: "correct the path"}
		}
		_ = file.Close() // it was only read
	}
	return nil
}

// String is the address as it may be shown, and who gave it.
func (d *destination) String() string {
	parts := strings.Split(d.url, ",")
	for i, part := range parts {
		if at := strings.LastIndexByte(part, '@'); at >= 0 { // behind a password, or a token
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
