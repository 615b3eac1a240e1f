package cluster

import (
	"fmt"
	"net/url"

	"github.com/nats-io/nats.go"
)

// LoginError means that what a caller wants to show for itself is nothing to be
// shown: a file that holds no key, or a text that is none. No server was asked.
type LoginError struct {
	What string // with its path, where it has one
	TLS  bool   // it is of the certificate, or of the authorities
	Err  error
}

func (e *LoginError) Error() string { return fmt.Sprintf("%s cannot be used: %v", e.What, e.Err) }
func (e *LoginError) Unwrap() error { return e.Err }

// credentials are what a caller shows of itself, and whom it believes. One way
// to log in is taken, the first that is named, so that what was left over from
// elsewhere cannot overrule it; a token may come beside it. A [*LoginError]
// names what can be no login.
func (o *DialOptions) credentials(address string) (opts []nats.Option, err error) {
	tried := nats.GetDefaultOptions()
	add := func(what string, tls bool, opt nats.Option) {
		if err == nil {
			if failed := try(&tried, opt); failed != nil {
				err = &LoginError{what, tls, failed}
			}
		}
		opts = append(opts, opt)
	}
	switch {
	case o.User != "":
		add("user", false, nats.UserInfo(o.User, o.Password))
	case o.Creds != "":
		add("creds "+o.Creds, false, nats.UserCredentials(o.Creds))
	case o.NKey != "":
		signed, err := nats.NkeyOptionFromSeed(o.NKey)
		if err != nil {
			return nil, &LoginError{"nkey " + o.NKey, false, err}
		}
		add("nkey "+o.NKey, false, signed)
	case o.JWT != "" && o.Seed != "":
		add("the user's JWT and seed", false, nats.UserJWTAndSeed(o.JWT, o.Seed))
	case o.JWT != "": // a bearer's: the server asks for no signature
		add("the user's JWT", false, nats.UserJWT(func() (string, error) { return o.JWT, nil }, func([]byte) ([]byte, error) { return nil, nil }))
	}
	if o.Token != "" {
		add("token", false, nats.Token(o.Token))
	}
	if o.Cert != "" {
		add("cert "+o.Cert+" with key "+o.Key, true, nats.ClientCert(o.Cert, o.Key))
	}
	if o.CA != "" {
		add("ca "+o.CA, true, nats.RootCAs(o.CA))
	}
	if o.TLSFirst {
		add("tls_first", true, nats.TLSHandshakeFirst())
	}
	if prefix := o.inbox(address, tried.Nkey); prefix != "" {
		add("inbox_prefix "+prefix, true, nats.CustomInboxPrefix(prefix))
	}
	return opts, err
}

// inbox is where answers are heard: where a yard lets this user hear them,
// unless the caller says otherwise.
func (o *DialOptions) inbox(address, nkey string) string {
	user := o.User
	if u, err := url.Parse(address); err == nil && user == "" && u.User != nil {
		if _, password := u.User.Password(); password { // without one it is a token
			user = u.User.Username()
		}
	}
	switch {
	case o.InboxPrefix != "":
		return o.InboxPrefix
	case userName.MatchString(user):
		return InboxOf(user)
	case nkey != "":
		return InboxOf(nkey)
	}
	return ""
}

// try uses an option as the connection would: that one could only say later
// that nothing was reached.
func try(o *nats.Options, opt nats.Option) error {
	o.UserJWT, o.SignatureCB = nil, nil
	if err := opt(o); err != nil {
		return err
	}
	if o.UserJWT == nil {
		return nil
	}
	if _, err := o.UserJWT(); err != nil {
		return err
	}
	_, err := o.SignatureCB([]byte("try"))
	return err
}
