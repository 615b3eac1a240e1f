package bench

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// natsConn sends many concurrent requests over one NATS connection, each at the cost
// of a map entry, so that the load generator uses little of the machine.
type natsConn struct {
	nc     *nats.Conn
	prefix string // of the reply subjects

	mu      sync.Mutex
	last    uint64           // number of calls
	waiting map[string]*call // by the rest of the reply subject
}

// call is a request without an answer.
type call struct {
	message *nats.Msg
	sent    time.Time // the last time
	done    func(*nats.Msg, error)
}

func dialNATS(url string) (*natsConn, error) {
	nc, err := nats.Connect(url, nats.Name("yardmaster bench"), nats.Timeout(5*time.Second), nats.NoReconnect(),
		nats.UseOldRequestStyle())
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", url, err)
	}
	c := &natsConn{nc: nc, prefix: nats.NewInbox() + ".", waiting: make(map[string]*call)}
	if _, err := nc.Subscribe(c.prefix+"*", c.answered); err != nil {
		nc.Close()
		return nil, fmt.Errorf("listen for answers: %w", err)
	}
	return c, nil
}

// dialAllNATS opens one connection to each address.
func dialAllNATS(urls []string) ([]*natsConn, error) {
	var callers []*natsConn
	for _, url := range urls {
		c, err := dialNATS(url)
		if err != nil {
			closeAllNATS(callers)
			return nil, err
		}
		callers = append(callers, c)
	}
	return callers, nil
}

func closeAllNATS(callers []*natsConn) {
	for _, c := range callers {
		c.nc.Close()
	}
}

// natsTransports returns the connections as transports.
func natsTransports(callers []*natsConn) (entries []transport) {
	for _, c := range callers {
		entries = append(entries, c)
	}
	return entries
}

func (c *natsConn) submit(l *load, i int, due time.Duration, done func(error)) {
	c.call(l.message(i, due), func(_ *nats.Msg, err error) { done(err) })
}

// call sends m. done is called once, from the goroutine of the connection, and must
// not block.
func (c *natsConn) call(m *nats.Msg, done func(*nats.Msg, error)) {
	c.mu.Lock()
	c.last++
	token := strconv.FormatUint(c.last, 36)
	m.Reply = c.prefix + token
	c.waiting[token] = &call{m, time.Now(), done}
	c.mu.Unlock()
	if err := c.nc.PublishMsg(m); err != nil && c.takePending(token) != nil {
		done(nil, err)
	}
}

// takePending removes a waiting call and returns its callback, or nil if the call is unknown.
func (c *natsConn) takePending(token string) func(*nats.Msg, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.waiting[token]
	if k == nil {
		return nil
	}
	delete(c.waiting, token)
	return k.done
}

// repeat sends calls again that were not answered within after, and returns their
// number. A publish that reaches a stream during an election is dropped without an
// answer, and the publisher must repeat it under the same key.
func (c *natsConn) repeat(after time.Duration) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.waiting {
		if time.Since(k.sent) < after {
			continue
		}
		k.sent = time.Now()
		_ = c.nc.PublishMsg(k.message) // on failure, repeated next time
		n++
	}
	return n
}

// answered handles an answer.
func (c *natsConn) answered(m *nats.Msg) {
	token := m.Subject[len(c.prefix):]
	err := refusal(m)
	if errors.Is(err, nats.ErrNoResponders) && c.retryLater(token) {
		return
	}
	if done := c.takePending(token); done != nil {
		done(m, err)
	}
}

// leaderless is the pause before a publish to a lane without a leader is repeated.
// Meanwhile the node redirects its clients to another lane.
const leaderless = 250 * time.Millisecond

// retryLater reports whether a call without responders has a key, and if so leaves it
// to repeat.
func (c *natsConn) retryLater(token string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.waiting[token]
	if k == nil || k.message.Header == nil {
		return false
	}
	k.sent = time.Now().Add(leaderless - repeatAfter)
	return true
}

// refusal returns the error in an answer of a stream, a node or the NATS server.
func refusal(m *nats.Msg) error {
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		return nats.ErrNoResponders
	}
	if text := m.Header.Get("Nats-Service-Error"); text != "" {
		return errors.New(text)
	}
	// A stream refuses a publish with {"error":{…}} and acknowledges it with
	// {"stream":…}; the answer of a node begins with {"id":….
	if len(m.Data) > 9 && string(m.Data[:9]) == `{"error":` {
		return errors.New(string(m.Data))
	}
	return nil
}
