package cluster

import (
	"fmt"
	"net/url"

	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
)

// LoginError means that credentials are unusable before any server was asked: a
// file that holds no key, or malformed text.
type LoginError struct {
	What string // which credential, with its path if it has one
	TLS  bool   // the certificate or the authorities are unusable
	Err  error
}

func (e *LoginError) Error() string { return fmt.Sprintf("%s cannot be used: %v", e.What, e.Err) }
func (e *LoginError) Unwrap() error { return e.Err }

// credentials returns the connection options for the login and TLS. It uses one
// way to log in, the first that is set, so that a leftover setting cannot override
// it; a token may be used in addition. It returns a [*LoginError] that names the
// first unusable credential.
func (o *DialOptions) credentials(address string) (opts []nats.Option, err error) {
	tried := nats.GetDefaultOptions()
	add := func(what string, tls bool, opt nats.Option) {
		if err == nil {
			if failed := tryOption(&tried, opt); failed != nil {
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
	case o.JWT != "": // a bearer token: the server asks for no signature
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
	if prefix := o.replyPrefix(address, tried.Nkey); prefix != "" {
		add("inbox_prefix "+prefix, true, nats.CustomInboxPrefix(prefix))
	}
	return opts, err
}

// replyPrefix returns the prefix of reply subjects: InboxPrefix if it is set,
// otherwise the prefix that a yard permits this user. "" is the library's default.
func (o *DialOptions) replyPrefix(address, nkey string) string {
	user := o.User
	if u, err := url.Parse(address); err == nil && user == "" && u.User != nil {
		if _, password := u.User.Password(); password { // without a password it is a token
			user = u.User.Username()
		}
	}
	switch {
	case o.InboxPrefix != "":
		return o.InboxPrefix
	case embedded.UserName.MatchString(user):
		return embedded.InboxPrefix(user)
	case nkey != "":
		return embedded.InboxPrefix(nkey)
	}
	return ""
}

// tryOption applies an option the way the connection would. The connection itself
// would only report that no server was reachable.
func tryOption(o *nats.Options, opt nats.Option) error {
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
