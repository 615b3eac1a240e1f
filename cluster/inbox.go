package cluster

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// inbox hears all answers of one connection on one subscription and hands each
// to the one who waits for it. Requests cost neither a subscription nor a
// goroutine.
type inbox struct {
	nc     *nats.Conn
	prefix string
	ended  chan struct{} // closed when the last answer has been handed on

	mu   sync.Mutex
	next uint64
	open map[uint64]waiting
}

type waiting struct {
	who    listener
	due    time.Time // when to stop waiting; zero: never
	stream bool      // more than one answer comes: who says when it is the last
}

// listener hears answers, on the connection's goroutine: it must not block.
type listener interface {
	// heard gets an answer, or nil when time is up or the connection is gone.
	// It returns true if no more answers are to come.
	heard(m *nats.Msg) bool
}

func newInbox(nc *nats.Conn) (*inbox, error) {
	b := &inbox{nc: nc, prefix: nats.NewInbox() + ".", open: map[uint64]waiting{}, ended: make(chan struct{})}
	sub, err := nc.Subscribe(b.prefix+"*", b.receive)
	if err != nil {
		return nil, err
	}
	sub.SetClosedHandler(func(string) { close(b.ended) })
	return b, sub.SetPendingLimits(-1, 256<<20)
}

// expect opens a place for an answer and names the subject it must go to.
func (b *inbox) expect(who listener, due time.Time, stream bool) (reply string, token uint64) {
	b.mu.Lock()
	b.next++
	token = b.next
	b.open[token] = waiting{who, due, stream}
	b.mu.Unlock()
	return b.prefix + strconv.FormatUint(token, 36), token
}

// forget gives a place up. It is false if its listener has already been told:
// then it is not the caller's to tell again.
func (b *inbox) forget(token uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, open := b.open[token]
	delete(b.open, token)
	return open
}

func (b *inbox) receive(m *nats.Msg) {
	token, err := strconv.ParseUint(strings.TrimPrefix(m.Subject, b.prefix), 36, 64)
	if err != nil {
		return
	}
	b.mu.Lock()
	w, ok := b.open[token]
	if ok && !w.stream {
		delete(b.open, token)
	}
	b.mu.Unlock()
	if ok && w.who.heard(m) && w.stream {
		b.forget(token)
	}
}

// expire tells everybody whose time is up.
func (b *inbox) expire(now time.Time) {
	b.drop(func(w waiting) bool { return !w.due.IsZero() && now.After(w.due) })
}

// close tells everybody. The connection is closed already.
func (b *inbox) close() {
	<-b.ended
	b.drop(func(waiting) bool { return true })
}

func (b *inbox) drop(which func(waiting) bool) {
	var late []listener
	b.mu.Lock()
	for token, w := range b.open {
		if which(w) {
			delete(b.open, token)
			late = append(late, w.who)
		}
	}
	b.mu.Unlock()
	for _, who := range late {
		who.heard(nil)
	}
}

// collector waits for one answer in the caller's own goroutine.
type collector chan *nats.Msg

func (c collector) heard(m *nats.Msg) bool {
	if m != nil {
		c <- m
	}
	return true
}

var errNoAnswer = errors.New("no answer in time")

// errNoResponders: nobody listens on the subject.
var errNoResponders = nats.ErrNoResponders

// ask sends one request and waits for its one answer, at most wait.
func (b *inbox) ask(ctx context.Context, m *nats.Msg, wait time.Duration) (*nats.Msg, error) {
	answer := make(collector, 1)
	reply, token := b.expect(answer, time.Time{}, false)
	defer b.forget(token)
	m.Reply = reply
	if err := b.nc.PublishMsg(m); err != nil {
		return nil, err
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case m := <-answer:
		if isNoResponders(m) {
			return nil, errNoResponders
		}
		return m, nil
	case <-timer.C:
		return nil, errNoAnswer
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func isNoResponders(m *nats.Msg) bool { return len(m.Data) == 0 && status(m) == "503" }

// status is the status of an answer that carries no message: "" for one that
// does.
func status(m *nats.Msg) string {
	if m.Header == nil {
		return ""
	}
	return m.Header.Get(headerStatus)
}
