package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"

	"github.com/nats-io/nats.go"
)

// ErrNoNodes means that a NATS server answered, but that no node of a yard is
// connected to it.
var ErrNoNodes = errors.New("no yardmaster node answers there")

// DialOptions configures a connection and its login.
type DialOptions struct {
	Name     string // shown by the server; "" is "yardmaster"
	User     string
	Password string
	Token    string
	Creds    string // path of a credentials file
	NKey     string // path of a file with an nkey seed
	JWT      string // a user's JWT itself, with its Seed unless it is a bearer token
	Seed     string
	// Cert and Key are the paths of the client's certificate and key. CA is the path
	// of the authorities that are trusted instead of the system's.
	Cert, Key, CA string
	TLSFirst      bool   // TLS handshake before the server's INFO
	InboxPrefix   string // prefix of reply subjects; "" is _INBOX
	// Program and Reason are what the client says about itself and its changes, for
	// the history; see api.HeaderClient and api.HeaderReason.
	Program, Reason string
	// Timeout limits connecting, and requests whose context has no deadline; 0 is
	// 5 s.
	Timeout time.Duration
}

// Client is the connection of a program such as the command line to a yard.
type Client struct {
	// OnOutdated is called for a reply of a node that reaches no majority of the members, with the
	// time up to which the node knows the yard, see [api.HeaderAsOf]; nil: it is not. It is set
	// before the first request.
	OnOutdated func(asOf time.Time)

	nc          *nats.Conn
	timeout     time.Duration
	header      nats.Header // of every request
	permissions *permissionWatch
}

// Dial connects to the first server that answers; url may list several, separated
// by commas.
func Dial(ctx context.Context, url string, o DialOptions) (*Client, error) {
	o.Name = cmp.Or(o.Name, "yardmaster")
	o.Timeout = cmp.Or(o.Timeout, 5*time.Second)
	wait := o.Timeout
	if deadline, limited := ctx.Deadline(); limited {
		wait = min(wait, time.Until(deadline))
	}
	permissions := &permissionWatch{requests: map[*watchedRequest]struct{}{}}
	opts, err := o.credentials(url)
	if err != nil {
		return nil, err
	}
	opts = append(opts, nats.Name(o.Name), nats.Timeout(wait), nats.MaxReconnects(-1), nats.ReconnectWait(250*time.Millisecond),
		nats.ErrorHandler(permissions.onError))
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", url, err)
	}
	c := &Client{nc: nc, timeout: o.Timeout, header: nats.Header{}, permissions: permissions}
	for name, value := range map[string]string{api.HeaderClient: o.Program, api.HeaderReason: o.Reason} {
		if value != "" {
			c.header.Set(name, value)
		}
	}
	return c, nil
}

// Close closes the connection.
func (c *Client) Close() { c.nc.Close() }

// Request sends a request to a node and returns its reply. An error that the node
// answered with is an [*api.Error]; a missing permission is a [*ForbiddenError].
func (c *Client) Request(ctx context.Context, subject string, body []byte) ([]byte, error) {
	data, _, err := c.RequestWithIndex(ctx, subject, body)
	return data, err
}

// RequestWithIndex is like [Client.Request] and also returns the index of the
// ledger that the reply shows, 0 if it names none.
func (c *Client) RequestWithIndex(ctx context.Context, subject string, body []byte) (data []byte, index uint64, err error) {
	m, err := c.request(ctx, &nats.Msg{Subject: subject, Header: c.header, Data: body})
	if err != nil {
		return nil, 0, err
	}
	if apiErr := parseErrorReply(m); apiErr != nil {
		return nil, 0, apiErr
	}
	if asOf, err := time.Parse(time.RFC3339, m.Header.Get(api.HeaderAsOf)); err == nil && c.OnOutdated != nil {
		c.OnOutdated(asOf)
	}
	index, _ = strconv.ParseUint(m.Header.Get(api.HeaderIndex), 10, 64) // 0 if absent
	return m.Data, index, nil
}

// request sends m and waits for one reply, for at most the client's timeout if ctx has
// no deadline. The error is [ErrNoNodes] if nothing subscribes to the subject of m.
func (c *Client) request(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.timeout)
		defer cancel()
	}
	ctx, done := c.permissions.watch(ctx, m.Subject)
	answer, err := c.nc.RequestMsgWithContext(ctx, m)
	err = done(err)
	if errors.Is(err, nats.ErrNoResponders) {
		return nil, fmt.Errorf("%s: %w", m.Subject, ErrNoNodes)
	}
	if err != nil {
		return nil, fmt.Errorf("request %s: %w", m.Subject, err)
	}
	return answer, nil
}
