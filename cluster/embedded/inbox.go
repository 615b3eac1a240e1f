package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Inbox receives all replies of one connection on a single subscription and passes
// each to its handler. So a request needs neither its own subscription nor a
// goroutine.
type Inbox struct {
	Conn   *nats.Conn
	prefix string
	closed chan struct{} // closed when the last reply has been handled

	mu      crash.Mutex
	next    uint64
	pending map[uint64]pendingReply
}

// pendingReply is a reply that has not arrived yet.
type pendingReply struct {
	handler  ReplyHandler
	deadline time.Time // zero: none
	multi    bool      // more than one reply; handler.Receive reports the last one
}

// ReplyHandler handles replies on the connection's goroutine; it must not block.
type ReplyHandler interface {
	// Receive gets a reply, or nil after the deadline or when the connection is
	// closed. It returns true if no more replies are expected.
	Receive(m *nats.Msg) bool
}

// newInbox returns an inbox for the replies to requests that are sent over nc.
func newInbox(nc *nats.Conn) (*Inbox, error) {
	b := &Inbox{Conn: nc, prefix: nats.NewInbox() + ".", pending: map[uint64]pendingReply{}, closed: make(chan struct{})}
	sub, err := nc.Subscribe(b.prefix+"*", b.receive)
	if err != nil {
		return nil, err
	}
	sub.SetClosedHandler(func(string) { close(b.closed) })
	return b, sub.SetPendingLimits(-1, 256<<20)
}

// Expect registers a handler for the reply to a request, or with multi for several
// replies. It returns the reply subject to send with the request, and a token for
// [Inbox.Cancel]. The zero deadline means none.
func (b *Inbox) Expect(handler ReplyHandler, deadline time.Time, multi bool) (reply string, token uint64) {
	b.mu.Lock()
	b.next++
	token = b.next
	b.pending[token] = pendingReply{handler, deadline, multi}
	b.mu.Unlock()
	return b.prefix + strconv.FormatUint(token, 36), token
}

// Cancel removes a handler. It returns false if the handler was already called or
// is about to be; the caller then must not report an error itself.
func (b *Inbox) Cancel(token uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, open := b.pending[token]
	delete(b.pending, token)
	return open
}

// receive passes a reply to its handler. It drops a reply that no handler expects any
// more.
func (b *Inbox) receive(m *nats.Msg) {
	token, err := strconv.ParseUint(strings.TrimPrefix(m.Subject, b.prefix), 36, 64)
	if err != nil {
		return
	}
	b.mu.Lock()
	expected, ok := b.pending[token]
	if ok && !expected.multi {
		delete(b.pending, token)
	}
	b.mu.Unlock()
	if ok && expected.handler.Receive(m) && expected.multi {
		b.Cancel(token)
	}
}

// Expire calls the handlers whose deadline has passed with nil.
func (b *Inbox) Expire(now time.Time) {
	b.fail(func(p pendingReply) bool { return !p.deadline.IsZero() && now.After(p.deadline) })
}

// close calls all remaining handlers with nil. The connection must be closed
// already.
func (b *Inbox) close() {
	<-b.closed
	b.fail(func(pendingReply) bool { return true })
}

// fail removes the handlers of all pending replies that match, and calls them with
// nil. It does not hold the lock meanwhile: a handler may send another request.
func (b *Inbox) fail(match func(pendingReply) bool) {
	var removed []ReplyHandler
	b.mu.Lock()
	for token, p := range b.pending {
		if match(p) {
			delete(b.pending, token)
			removed = append(removed, p.handler)
		}
	}
	b.mu.Unlock()
	for _, handler := range removed {
		handler.Receive(nil)
	}
}

// replyChan passes a single reply to the goroutine that waits for it.
type replyChan chan *nats.Msg

func (c replyChan) Receive(m *nats.Msg) bool {
	if m != nil {
		c <- m
	}
	return true
}

// ErrNoAnswer means that a request had no reply in time.
var ErrNoAnswer = errors.New("no reply in time")

// Request sends a request and waits at most the duration wait for its reply. The
// error may be ErrNoAnswer or nats.ErrNoResponders.
func (b *Inbox) Request(ctx context.Context, m *nats.Msg, wait time.Duration) (*nats.Msg, error) {
	replies, err := b.Requests(ctx, []*nats.Msg{m}, wait)
	if err != nil {
		return nil, err
	}
	return replies[0], nil
}

// Requests sends requests in their order without waiting in between, and waits at most
// the duration wait for each further reply. The result has the replies in the order of
// the requests, as many as came before an error like those of [Inbox.Request].
func (b *Inbox) Requests(ctx context.Context, requests []*nats.Msg, wait time.Duration) (replies []*nats.Msg, err error) {
	pending := make([]replyChan, len(requests))
	for i, m := range requests {
		pending[i] = make(replyChan, 1)
		reply, token := b.Expect(pending[i], time.Time{}, false)
		defer b.Cancel(token)
		m.Reply = reply
		if err := b.Conn.PublishMsg(m); err != nil {
			return nil, err
		}
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for _, replied := range pending {
		select {
		case m := <-replied:
			if IsNoResponders(m) {
				return replies, nats.ErrNoResponders
			}
			replies = append(replies, m)
			timer.Reset(wait)
		case <-timer.C:
			return replies, ErrNoAnswer
		case <-ctx.Done():
			return replies, ctx.Err()
		}
	}
	return replies, nil
}

// RequestAPI sends a request to the JetStream API, waits at most the duration wait, and
// decodes the JSON of the answer into reply, a pointer to a struct that embeds
// [APIReply]. An error that JetStream answered with is returned as an [*APIError];
// other errors are those of [Inbox.Request].
func (b *Inbox) RequestAPI(ctx context.Context, subject string, body []byte, wait time.Duration, reply interface{ apiError() *APIError }) error {
	m, err := b.Request(ctx, &nats.Msg{Subject: subject, Data: body}, wait)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(m.Data, reply); err != nil {
		return fmt.Errorf("malformed reply to %s: %w", subject, err)
	}
	if apiErr := reply.apiError(); apiErr != nil {
		return apiErr
	}
	return nil
}

// IsNoResponders reports whether m is the server's reply to a request that has no
// subscriber.
func IsNoResponders(m *nats.Msg) bool { return len(m.Data) == 0 && Status(m) == "503" }

// Status returns the status code of a reply without a payload, "" for a normal
// message.
func Status(m *nats.Msg) string { return m.Header.Get(subjects.HeaderStatus) }

// PublishError converts an error of publishing on one of the node's own connections to
// the error that callers get: [job.ErrTooLarge] or a [*job.UnavailableError].
func PublishError(err error) error {
	if errors.Is(err, nats.ErrMaxPayload) {
		return fmt.Errorf("job does not fit one record: %w", job.ErrTooLarge)
	}
	return &job.UnavailableError{Reason: "the node's NATS server does not accept messages: " + err.Error()}
}

// EndSubscriptions calls end, such as Unsubscribe or Drain, for each subscription and
// blocks until its last callback has returned. A subscription that has ended with its
// connection is skipped.
func EndSubscriptions(end func(*nats.Subscription) error, subs ...*nats.Subscription) error {
	for _, sub := range subs {
		ended := make(chan struct{})
		sub.SetClosedHandler(func(string) { close(ended) })
		err := end(sub)
		if errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, nats.ErrBadSubscription) {
			continue
		}
		if err != nil {
			return err
		}
		<-ended
	}
	return nil
}
