package cluster

import (
	"cmp"
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
	add := func(what string, isTLS bool, opt nats.Option) {
		optErr := tryOption(&tried, opt)
		if err == nil && optErr != nil {
			err = &LoginError{what, isTLS, optErr}
		}
		opts = append(opts, opt)
	}
	addLogin := func(what string, opt nats.Option) { add(what, false, opt) }
	addTLS := func(what string, opt nats.Option) { add(what, true, opt) }

	switch { // the login
	case o.User != "":
		addLogin("user", nats.UserInfo(o.User, o.Password))
	case o.Creds != "":
		addLogin("creds "+o.Creds, nats.UserCredentials(o.Creds))
	case o.NKey != "":
		signature, err := nats.NkeyOptionFromSeed(o.NKey)
		if err != nil {
			return nil, &LoginError{"nkey " + o.NKey, false, err}
		}
		addLogin("nkey "+o.NKey, signature)
	case o.JWT != "" && o.Seed != "":
		addLogin("the user's JWT and seed", nats.UserJWTAndSeed(o.JWT, o.Seed))
	case o.JWT != "": // a bearer token: the server asks for no signature
		addLogin("the user's JWT", nats.UserJWT(func() (string, error) { return o.JWT, nil }, func([]byte) ([]byte, error) { return nil, nil }))
	}
	if o.Token != "" {
		addLogin("token", nats.Token(o.Token))
	}
	if o.Cert != "" {
		addTLS("cert "+o.Cert+" with key "+o.Key, nats.ClientCert(o.Cert, o.Key))
	}
	if o.CA != "" {
		addTLS("ca "+o.CA, nats.RootCAs(o.CA))
	}
	if o.TLSFirst {
		addTLS("tls_first", nats.TLSHandshakeFirst())
	}
	if prefix := o.replyPrefix(address, tried.Nkey); prefix != "" {
		addTLS("inbox_prefix "+prefix, nats.CustomInboxPrefix(prefix))
	}
	return opts, err
}

// replyPrefix returns the prefix of reply subjects: InboxPrefix if it is set,
// otherwise the prefix that a yard permits this user. "" is the library's default.
// address may name the user; nkey is the public key of the user, "" if it has none.
func (o *DialOptions) replyPrefix(address, nkey string) string {
	user := cmp.Or(o.User, userInURL(address))
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

// userInURL returns the user name in the URL of a server, "" if it has none. A name
// without a password is a token.
func userInURL(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.User == nil {
		return ""
	}
	if _, hasPassword := u.User.Password(); !hasPassword {
		return ""
	}
	return u.User.Username()
}

// tryOption applies opt to options as the connection would, and calls the functions for
// the JWT and the signature that opt sets. It returns the first error, nil if opt can be
// used. The connection itself would only report that no server was reachable.
func tryOption(options *nats.Options, opt nats.Option) error {
	options.UserJWT, options.SignatureCB = nil, nil
	if err := opt(options); err != nil {
		return err
	}
	if options.UserJWT == nil {
		return nil
	}
	if _, err := options.UserJWT(); err != nil {
		return err
	}
	_, err := options.SignatureCB([]byte("any text"))
	return err
}
