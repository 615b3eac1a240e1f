package overhop

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

// maxUnsent is the unsent output, in bytes, above which Call waits.
const maxUnsent = 1 << 20

// pipeline holds the requests of a connection that wait to be written and those
// that wait for their answer.
type pipeline struct {
	maxFrame int           // set before the first request
	wake     chan struct{} // capacity 1: out is not empty
	closed   chan struct{} // closed by fail

	mu           sync.Mutex
	out          []byte                      // frames that wait to be written
	writable     chan struct{}               // closed when out is below maxUnsent again; nil: no call is waiting
	lastRID      uint64                      // rid of the last request
	pending      map[uint64]func(Raw, error) // by rid
	lastActivity time.Time                   // when output of the node was last read, or when pending last became non-empty
	err          error                       // why the connection has ended
}

// lockWritable waits until less than maxUnsent bytes of output are unsent, or the
// connection has ended, and then returns nil with mu held. If ctx ends first, it
// returns the error of ctx, and mu is not held.
func (pl *pipeline) lockWritable(ctx context.Context) error {
	for {
		pl.mu.Lock()
		if len(pl.out) < maxUnsent || pl.err != nil {
			return nil
		}
		if pl.writable == nil {
			pl.writable = make(chan struct{})
		}
		writable := pl.writable
		pl.mu.Unlock()
		select {
		case <-writable:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// signalWritable wakes the calls that wait in lockWritable. mu is held.
func (pl *pipeline) signalWritable() {
	if pl.writable != nil {
		close(pl.writable)
		pl.writable = nil
	}
}

// addLocked adds a request of message type t to the output. payload appends the
// payload map to its argument, and done, if it is not nil, receives the answer
// or the error that ends the connection. If addLocked returns an error, the
// request is not sent and done is not called: the connection has ended, or the
// request is too large or not encoded properly. mu is held.
func (pl *pipeline) addLocked(t int64, payload func([]byte) []byte, done func(Raw, error)) error {
	if pl.err != nil {
		return pl.err
	}

	var digits [20]byte
	rid := pl.lastRID + 1
	out, mark := Begin(pl.out)
	out, size := End(payload(out), mark, t, strconv.AppendUint(digits[:0], rid, 10))
	pl.out = out[:mark] // keeps the memory, but not yet the request
	if size > pl.maxFrame {
		return &frame.TooLargeError{Size: size, Limit: pl.maxFrame}
	}
	// The node would close the connection and so fail all other requests.
	if err := Check(out[mark+frame.HeaderLen:]); err != nil {
		return fmt.Errorf("%w: %v", ErrNotSendable, err)
	}

	pl.out = out
	pl.lastRID = rid
	if len(pl.pending) == 0 {
		pl.lastActivity = time.Now()
	}
	pl.pending[rid] = done
	select {
	case pl.wake <- struct{}{}:
	default:
	}
	return nil
}

// take returns the output that waits to be written. Later output goes to the
// memory of written, which take's last result was.
func (pl *pipeline) take(written []byte) []byte {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	batch := pl.out
	pl.out = written[:0]
	pl.signalWritable()
	return batch
}

// received records that the node has sent something.
func (pl *pipeline) received() {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	pl.lastActivity = time.Now()
}

// answer passes an answer of message type t to the pending request rid. An
// answer to no request, and one of another type than OK, ERR and PONG, is an
// error, which ends the connection.
func (pl *pipeline) answer(t int64, rid []byte, payload Raw) error {
	number, isNumber := parseRID(rid)
	isAnswer := isNumber && (t == TOK || t == TErr || t == TPong)
	pl.mu.Lock()
	done, isPending := pl.pending[number]
	if isPending && isAnswer {
		delete(pl.pending, number)
	}
	pl.mu.Unlock()
	switch {
	case !isPending || !isAnswer:
		return fmt.Errorf("node sent t=%d to request %q, which is not an answer to it", t, rid)
	case done == nil:
	case t == TErr:
		done(nil, parseErr(payload))
	default:
		done(payload, nil)
	}
	return nil
}

// parseRID returns the number of a request by its rid. ok is false if rid is not as
// addLocked writes it.
func parseRID(rid []byte) (number uint64, ok bool) {
	if len(rid) == 0 || len(rid) > len("9999999999999999999") || rid[0] == '0' {
		return 0, false
	}
	for _, digit := range rid {
		if digit < '0' || digit > '9' {
			return 0, false
		}
		number = 10*number + uint64(digit-'0')
	}
	return number, true
}

// fail ends all pending requests with err, and makes later requests fail with
// the first such error.
func (pl *pipeline) fail(err error) {
	pl.mu.Lock()
	if pl.err == nil {
		pl.err = err
		close(pl.closed)
	}
	pending := pl.pending
	pl.pending = nil
	pl.signalWritable()
	pl.mu.Unlock()
	for _, done := range pending {
		if done != nil {
			done(nil, err)
		}
	}
}

// unansweredSince returns when the node last sent something or, if later, when
// the oldest pending request was sent. waiting is false if no request is
// pending.
func (pl *pipeline) unansweredSince() (since time.Time, waiting bool) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	return pl.lastActivity, len(pl.pending) > 0
}
