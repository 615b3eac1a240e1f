package bench

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// caller makes requests over one NATS connection, many at a time and each for
// the price of a map entry: the load must not cost more than what it loads.
type caller struct {
	nc     *nats.Conn
	prefix string

	mu      sync.Mutex
	last    uint64
	waiting map[string]*call
}

// call is one that is under way.
type call struct {
	message *nats.Msg
	sent    time.Time // last
	done    func(*nats.Msg, error)
}

func dialCaller(url string) (*caller, error) {
	nc, err := nats.Connect(url, nats.Name("yardmaster bench"), nats.Timeout(5*time.Second), nats.NoReconnect(),
		nats.UseOldRequestStyle())
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", url, err)
	}
	c := &caller{nc: nc, prefix: nats.NewInbox() + ".", waiting: make(map[string]*call)}
	if _, err := nc.Subscribe(c.prefix+"*", c.answered); err != nil {
		nc.Close()
		return nil, fmt.Errorf("listen for answers: %w", err)
	}
	return c, nil
}

// dialCallers connects to each address once.
func dialCallers(urls []string) ([]*caller, error) {
	var callers []*caller
	for _, url := range urls {
		c, err := dialCaller(url)
		if err != nil {
			closeCallers(callers)
			return nil, err
		}
		callers = append(callers, c)
	}
	return callers, nil
}

func closeCallers(callers []*caller) {
	for _, c := range callers {
		c.nc.Close()
	}
}

// throughCallers are the entries of a load.
func throughCallers(callers []*caller) (entries []entry) {
	for _, c := range callers {
		entries = append(entries, c)
	}
	return entries
}

func (c *caller) handIn(l *load, i int, due time.Duration, done func(error)) {
	c.call(l.message(i, due), func(_ *nats.Msg, err error) { done(err) })
}

// call sends m; done is called once, from the connection's own goroutine, and
// must not block.
func (c *caller) call(m *nats.Msg, done func(*nats.Msg, error)) {
	c.mu.Lock()
	c.last++
	token := strconv.FormatUint(c.last, 36)
	m.Reply = c.prefix + token
	c.waiting[token] = &call{m, time.Now(), done}
	c.mu.Unlock()
	if err := c.nc.PublishMsg(m); err != nil && c.take(token) != nil {
		done(nil, err)
	}
}

func (c *caller) take(token string) func(*nats.Msg, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.waiting[token]
	if k == nil {
		return nil
	}
	delete(c.waiting, token)
	return k.done
}

// repeat sends again what has had no answer for a time, and counts it: a
// publish that reaches a stream while its leader changes is dropped without a
// word, and its publisher is to repeat it under the same key.
func (c *caller) repeat(after time.Duration) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.waiting {
		if time.Since(k.sent) < after {
			continue
		}
		k.sent = time.Now()
		_ = c.nc.PublishMsg(k.message) // else with the next turn
		n++
	}
	return n
}

func (c *caller) answered(m *nats.Msg) {
	token := m.Subject[len(c.prefix):]
	err := refusal(m)
	if errors.Is(err, nats.ErrNoResponders) && c.later(token) {
		return
	}
	if done := c.take(token); done != nil {
		done(m, err)
	}
}

// leaderless is when what met a lane without a leader is sent again: the node
// leads its clients elsewhere meanwhile.
const leaderless = 250 * time.Millisecond

// later leaves a publish that nobody took, and that has a key, to repeat.
func (c *caller) later(token string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.waiting[token]
	if k == nil || k.message.Header == nil {
		return false
	}
	k.sent = time.Now().Add(leaderless - repeatAfter)
	return true
}

// refusal reads an answer's error: of a lane, of a node, or of the server.
func refusal(m *nats.Msg) error {
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		return nats.ErrNoResponders
	}
	if text := m.Header.Get("Nats-Service-Error"); text != "" {
		return errors.New(text)
	}
	// A publish is refused with {"error":{…}} and acknowledged with
	// {"stream":…}; a node's answer begins with {"id":….
	if len(m.Data) > 9 && string(m.Data[:9]) == `{"error":` {
		return errors.New(string(m.Data))
	}
	return nil
}
