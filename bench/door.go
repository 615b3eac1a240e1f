package bench

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"yardmaster/drill/yard"
	"yardmaster/edge/overhop"
)

// door is a connection through which jobs come in as ENQUEUEs, any number
// under way. Answers come in the order of the requests.
type door struct {
	*wire // out is guarded by mu here

	running sync.WaitGroup
	wake    chan struct{} // capacity 1: out has something

	mu      sync.Mutex
	waiting []func(error) // oldest first
	err     error         // why the connection is gone
}

// doors are some of them, spread over nodes in turn.
type doors []*door

func openDoors(ctx context.Context, nodes []*yard.Node, n int) (doors, error) {
	var all doors
	for i := range n {
		w, err := dialWorker(ctx, nodes[i%len(nodes)].Edge)
		if err != nil {
			all.close()
			return nil, err
		}
		all = append(all, newDoor(w))
	}
	return all, nil
}

func newDoor(w *wire) *door {
	d := &door{wire: w, wake: make(chan struct{}, 1)}
	d.running.Go(d.read)
	d.running.Go(d.write)
	return d
}

func (all doors) close() {
	for _, d := range all {
		d.nc.Close()
	}
	for _, d := range all {
		d.running.Wait()
	}
}

func (all doors) entries() (entries []entry) {
	for _, d := range all {
		entries = append(entries, d)
	}
	return entries
}

// handIn makes the call, again if its load has keys and the yard says that it
// cannot take the job now.
func (d *door) handIn(l *load, i int, due time.Duration, done func(error)) {
	d.enqueue(l, i, due, func(err error) {
		if l.key != "" && overhop.ErrorCode(err) == overhop.CodeUnavailable {
			l.repeated.Add(1)
			time.AfterFunc(leaderless, func() { d.handIn(l, i, due, done) })
			return
		}
		done(err)
	})
}

// repeat has nothing to do: every ENQUEUE is answered.
func (d *door) repeat(time.Duration) int { return 0 }

func (d *door) enqueue(l *load, i int, due time.Duration, done func(error)) {
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

// appendEnqueue appends the ENQUEUE of job i, with as large a body as jobs have
// in the floors.
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
	const head = 2 // of a text that long
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

func (d *door) read() {
	for {
		e, err := d.next()
		if err == nil && e.RID == overhop.PushRID {
			if e.T != overhop.TErr {
				continue
			}
			err = remoteError(e.P)
		}
		if err != nil {
			d.abandon(err)
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

// write gives the socket all that waits in one write, and so gathers what
// comes while it writes.
func (d *door) write() {
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
			d.nc.Close() // read ends with it
			return
		}
	}
}

func (d *door) abandon(err error) {
	d.mu.Lock()
	d.err = fmt.Errorf("connection for ENQUEUEs: %w", err)
	waiting := d.waiting
	d.waiting = nil
	d.mu.Unlock()
	for _, done := range waiting {
		done(d.err)
	}
	select {
	case d.wake <- struct{}{}: // write looks at err
	default:
	}
}
