package cluster

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"yardmaster/job"

	"github.com/nats-io/nats.go"
)

// ErrNobodyAnswers: the server is there, but no node of a yard behind it.
var ErrNobodyAnswers = errors.New("no node of a yard answers there")

// DialOptions name who calls and with what.
type DialOptions struct {
	Name     string // shown by the server; "" is "yardmaster"
	User     string
	Password string
	Token    string
	Creds    string // path of a credentials file
	NKey     string // path of an nkey's seed
	JWT      string // of a user, itself; with its Seed, or without if the server does not ask for it
	Seed     string
	// Cert and Key are paths of what this program shows for itself, CA of whom
	// it believes instead of the system's authorities.
	Cert, Key, CA string
	TLSFirst      bool   // the handshake comes before the server's first word
	InboxPrefix   string // of subjects that answers go to; "" is _INBOX
	// Timeout is for the connection and for requests whose context has no
	// deadline; 0: 5 s.
	Timeout time.Duration
}

// Client is a program's connection to a yard: the command line's.
type Client struct {
	nc        *nats.Conn
	timeout   time.Duration
	forbidden *forbidden
}

// Dial connects to one server, or to the first of several that answers, their
// addresses separated by commas.
func Dial(ctx context.Context, url string, o DialOptions) (*Client, error) {
	if o.Name == "" {
		o.Name = "yardmaster"
	}
	if o.Timeout == 0 {
		o.Timeout = 5 * time.Second
	}
	wait := o.Timeout
	if due, limited := ctx.Deadline(); limited {
		wait = min(wait, time.Until(due))
	}
	refusals := &forbidden{}
	opts := []nats.Option{nats.Name(o.Name), nats.Timeout(wait), nats.MaxReconnects(-1), nats.ReconnectWait(250 * time.Millisecond),
		nats.ErrorHandler(refusals.hear)}
	credentials, err := o.credentials(url)
	if err != nil {
		return nil, err
	}
	opts = append(opts, credentials...)
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", url, err)
	}
	return &Client{nc: nc, timeout: o.Timeout, forbidden: refusals}, nil
}

// Close ends the connection.
func (c *Client) Close() { c.nc.Close() }

// Request asks a node. A refusal is an [*APIError], the server's a [*ForbiddenError].
func (c *Client) Request(ctx context.Context, subject string, body []byte) ([]byte, error) {
	data, _, err := c.RequestShown(ctx, subject, body)
	return data, err
}

// RequestShown is [Client.Request], with the index of the ledger that the
// answer shows; 0 if it names none.
func (c *Client) RequestShown(ctx context.Context, subject string, body []byte) (data []byte, index uint64, err error) {
	m, err := c.request(ctx, &nats.Msg{Subject: subject, Data: body})
	if err != nil {
		return nil, 0, err
	}
	if refusal := errorOf(m); refusal != nil {
		return nil, 0, refusal
	}
	index, _ = strconv.ParseUint(m.Header.Get(HeaderIndex), 10, 64) // absent: none
	return m.Data, index, nil
}

func (c *Client) request(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.timeout)
		defer cancel()
	}
	ctx, done := c.forbidden.watch(ctx, m.Subject)
	answer, err := c.nc.RequestMsgWithContext(ctx, m)
	err = done(err)
	if errors.Is(err, nats.ErrNoResponders) {
		return nil, fmt.Errorf("%s: %w", m.Subject, ErrNobodyAnswers)
	}
	if err != nil {
		return nil, fmt.Errorf("request %s: %w", m.Subject, err)
	}
	return answer, nil
}

// PublishJob puts a job straight into a lane, as any NATS program can: no node
// looks at it before it is accepted. It returns at the lane's word.
func (c *Client) PublishJob(ctx context.Context, queue, key string, body []byte) (duplicate bool, err error) {
	m := &nats.Msg{Subject: JobsSubject(queue), Data: body, Header: nats.Header{}}
	if key != "" {
		m.Header.Set(HeaderMsgID, key)
	}
	answer, err := c.request(ctx, m)
	if err != nil {
		return false, err
	}
	ack, err := parsePubAck(answer.Data)
	var refusal *apiError
	if errors.As(err, &refusal) && refusal.kind() == refusalLater {
		return false, &job.UnavailableError{Reason: refusal.Description, RetryAfter: refusal.delay()}
	}
	return ack.duplicate, err
}

// Subscribe calls fn for each message until ctx ends, in order.
func (c *Client) Subscribe(ctx context.Context, subject string, fn func(subject string, data []byte)) error {
	ctx, done := c.forbidden.watch(ctx, subject)
	sub, err := c.nc.Subscribe(subject, func(m *nats.Msg) { fn(m.Subject, m.Data) })
	if err != nil {
		return done(fmt.Errorf("listen to %s: %w", subject, err))
	}
	<-ctx.Done()
	return done(settle(sub))
}
