package bench

import (
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// overhopConn is a connection for any number of concurrent ENQUEUEs. Answers arrive
// in the order of the requests.
type overhopConn struct {
	*wire // out is guarded by mu

	running sync.WaitGroup
	wake    chan struct{} // capacity 1: out is not empty, or err is set

	mu      sync.Mutex
	waiting []func(error) // oldest first
	err     error         // why the connection has ended
}

// overhopConns is a set of connections, spread over nodes.
type overhopConns []*overhopConn

func openOverhopConns(t *task, nodes []*procs.Node, n int) overhopConns {
	all := make(overhopConns, n)
	for i := range all {
		all[i] = newOverhopConn(must.Get(dialWorker(t, nodes[i%len(nodes)].Edge)))
		t.cleanup(all[i].close)
	}
	return all
}

func newOverhopConn(w *wire) *overhopConn {
	d := &overhopConn{wire: w, wake: make(chan struct{}, 1)}
	d.running.Go(d.read)
	d.running.Go(d.write)
	return d
}

func (d *overhopConn) close() {
	d.nc.Close()
	d.running.Wait()
}

// entries returns the connections as transports.
func (all overhopConns) entries() (entries []transport) {
	for _, d := range all {
		entries = append(entries, d)
	}
	return entries
}

// submit enqueues job i. If the load has keys, it repeats the request when the node is
// temporarily unavailable.
func (d *overhopConn) submit(l *load, i int, due time.Duration, done func(error)) {
	d.enqueue(l, i, due, func(err error) {
		if l.key != "" && overhop.ErrorCode(err) == overhop.CodeUnavailable {
			l.repeated.Add(1)
			time.AfterFunc(leaderless, func() { d.submit(l, i, due, done) })
			return
		}
		done(err)
	})
}

// repeat does nothing: every ENQUEUE is answered.
func (d *overhopConn) repeat(time.Duration) int { return 0 }

// enqueue sends one ENQUEUE.
func (d *overhopConn) enqueue(l *load, i int, due time.Duration, done func(error)) {
	d.mu.Lock()
	if err := d.err; err != nil {
		d.mu.Unlock()
		done(err)
		return
	}
	d.out = appendEnqueue(d.out, l.subject, l.key, i, int64(due))
	d.waiting = append(d.waiting, done)
	d.mu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// appendEnqueue appends the ENQUEUE of job i, with a body of the same size as in the
// floors.
func appendEnqueue(b []byte, queue, key string, i int, due int64) []byte {
	fields := 2
	if key != "" {
		fields++
	}
	b, mark := overhop.Begin(b)
	b = overhop.AppendStr(overhop.AppendMap(b, fields), "job_payload")
	body := len(b)
	b = overhop.AppendInt(overhop.AppendStr(overhop.AppendMap(b, 2), "due"), due)
	b = overhop.AppendStr(b, "pad")
	const head = 2 // length of the header of a long string
	b = overhop.AppendStr(b, padding[:bodySize-head-(len(b)-body)])
	if key != "" {
		b = overhop.AppendStr(overhop.AppendStr(b, "key"), key+strconv.Itoa(i))
	}
	b = overhop.AppendStr(overhop.AppendStr(b, "q"), queue)
	b, _ = overhop.End(b, mark, overhop.TEnqueue, "e")
	return b
}

var padding = func() (x [bodySize]byte) {
	for i := range x {
		x[i] = 'x'
	}
	return x
}()

// read reads answers and calls the callbacks until the connection ends.
func (d *overhopConn) read() {
	for {
		e, err := d.next()
		if err == nil && e.RID == overhop.PushRID {
			if e.T != overhop.TErr {
				continue
			}
			err = remoteError(e.P)
		}
		if err != nil {
			d.fail(err)
			return
		}
		var refusal error
		if e.T != overhop.TOK {
			refusal = remoteError(e.P)
		}
		d.mu.Lock()
		done := d.waiting[0]
		d.waiting = d.waiting[1:]
		d.mu.Unlock()
		done(refusal)
	}
}

// write writes all buffered requests at once, while new ones are buffered.
func (d *overhopConn) write() {
	var batch []byte
	for range d.wake {
		d.mu.Lock()
		batch, d.out = d.out, batch[:0]
		gone := d.err != nil
		d.mu.Unlock()
		if gone {
			return
		}
		if _, err := d.nc.Write(batch); err != nil {
			d.nc.Close() // ends read
			return
		}
	}
}

// fail ends all waiting calls with an error.
func (d *overhopConn) fail(err error) {
	d.mu.Lock()
	d.err = fmt.Errorf("connection for ENQUEUEs: %w", err)
	waiting := d.waiting
	d.waiting = nil
	d.mu.Unlock()
	for _, done := range waiting {
		done(d.err)
	}
	select {
	case d.wake <- struct{}{}: // let write see err
	default:
	}
}
