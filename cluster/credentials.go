package cluster

import (
	"fmt"

	"github.com/nats-io/nats.go"
)

// credentials are what a caller shows of itself, and whom it believes. One way
// to log in is taken, the first that is named, so that what was left over from
// elsewhere cannot overrule it; a token may come beside it.
func (o *DialOptions) credentials() ([]nats.Option, error) {
	var opts []nats.Option
	switch {
	case o.User != "":
		opts = append(opts, nats.UserInfo(o.User, o.Password))
	case o.Creds != "":
		opts = append(opts, nats.UserCredentials(o.Creds))
	case o.NKey != "":
		signed, err := nats.NkeyOptionFromSeed(o.NKey)
		if err != nil {
			return nil, fmt.Errorf("read the nkey's seed: %w", err)
		}
		opts = append(opts, signed)
	case o.JWT != "" && o.Seed != "":
		opts = append(opts, nats.UserJWTAndSeed(o.JWT, o.Seed))
	case o.JWT != "": // a bearer's: the server asks for no signature
		opts = append(opts, nats.UserJWT(func() (string, error) { return o.JWT, nil }, func([]byte) ([]byte, error) { return nil, nil }))
	}
	if o.Token != "" {
		opts = append(opts, nats.Token(o.Token))
	}
	if o.Cert != "" {
		opts = append(opts, nats.ClientCert(o.Cert, o.Key))
	}
	if o.CA != "" {
		opts = append(opts, nats.RootCAs(o.CA))
	}
	if o.TLSFirst {
		opts = append(opts, nats.TLSHandshakeFirst())
	}
	if o.InboxPrefix != "" {
		opts = append(opts, nats.CustomInboxPrefix(o.InboxPrefix))
	}
	return opts, nil
}
