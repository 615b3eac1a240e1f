package ledger

import (
	"crypto/sha256"
	"fmt"
	"io"

	"github.com/yardmaster-dev/yardmaster/job"
)

// formatVersion is the first number of an encoded ledger. It changes with every
// change of the encoding.
const formatVersion = 7

// Encode writes the whole state to w. Two ledgers that applied the same entries
// encode to the same bytes, also if they were restored from different
// snapshots.
func (l *Ledger) Encode(w io.Writer) error {
	c, format := newEncoder(w), uint64(formatVersion)
	c.uint(&format)
	c.ledger(l)
	return c.flush()
}

// Hash returns the SHA-256 of the encoded ledger. It is the same on every node
// whose ledger has the same index.
func (l *Ledger) Hash() ([sha256.Size]byte, error) {
	h := sha256.New()
	err := l.Encode(h)
	return [sha256.Size]byte(h.Sum(nil)), err
}

// Decode reads a ledger that [Ledger.Encode] wrote.
func Decode(r io.Reader) (*Ledger, error) {
	c, format := newDecoder(r), uint64(0)
	if c.uint(&format); c.err == nil && format != formatVersion {
		return nil, fmt.Errorf("ledger snapshot has format %d, this build reads %d: run the build that wrote it", format, formatVersion)
	}
	l := empty()
	if c.ledger(l); c.err != nil {
		return nil, fmt.Errorf("decode ledger: %w", c.err)
	}
	return l, nil
}

func (c *codec) ledger(l *Ledger) {
	a := &l.authority
	c.fields(&l.index, &l.term, &l.now, &a.owner, &a.leaseID, &a.leasedUntil, &a.until, &a.epoch, &a.term, &a.member, &l.secret)
	list(c, &l.lanes, func(ln *LaneCursor) { c.fields(&ln.Identity, &ln.Cursor, &ln.LastID) })
	c.fields(&l.streamsCreated)
	c.replay(&l.replay)
	c.fields(&l.lastIngested, &l.counts.Delivered, &l.counts.Failed, &l.stale)
	c.jobs(&l.dispatches)
	c.external(l)
	c.forgottenIDs(l.forgotten)
	c.outbox(&l.outbox)
	c.stalls(&l.stalls)
	c.guards(&l.dispatches)
	c.decisions(&l.decisions)
	c.crons(&l.crons)
	c.membership(&l.membership)
	c.backups(l)
}

// jobs encodes or decodes each queue with its jobs: waiting jobs in start
// order, active jobs by fence, then the others by time.
func (c *codec) jobs(d *dispatches) {
	active := make(map[string][]*storedJob) // by queue
	d.active.Scan(func(item orderItem) bool {
		name := item.r.queue.name
		active[name] = append(active[name], item.r)
		return true
	})
	each(c, d.queues.byName.Len(), d.queues.all, func(q *queue) {
		c.fields(&q.id, &q.name, &q.paused, &q.pausedAt, &q.config.Limit, &q.config.AllowOverrides)
		if c.decoding() {
			d.queues.byName.Set(q.name, q)
		}
		n := 0
		for _, count := range q.counts {
			n += count
		}
		stored := func(yield func(*storedJob) bool) { q.scan(active[q.name], yield) }
		each(c, n, stored, func(r *storedJob) {
			if c.record(r, &d.jobs); !c.decoding() {
				return
			}
			r.queue = q
			switch {
			case r.state == job.New || r.state > job.Failed || r.state == job.Active && r.run == nil:
				c.fail(errCorrupt)
				return
			case r.state == job.Waiting:
				d.counts.Pending++
			case r.state == job.Active:
				d.counts.Notified++
			}
			d.store(nil, r)
		})
	})
}

// all yields the queues in the order of their names.
func (q *queues) all(yield func(*queue) bool) {
	q.byName.Scan(func(_ string, q *queue) bool { return yield(q) })
}

// scan yields the queue's jobs; active are those that are active.
func (q *queue) scan(active []*storedJob, yield func(*storedJob) bool) {
	more := true
	q.waitlists.Scan(func(_ string, wl *waitlist) bool {
		wl.jobs.Scan(func(item orderItem) bool { more = yield(item.r); return more })
		return more
	})
	for i := 0; more && i < len(active); i++ {
		more = yield(active[i])
	}
	for _, list := range q.lists {
		if list != nil && more {
			list.Scan(func(item timeItem) bool { more = yield(item.r); return more })
		}
	}
}

func (c *codec) record(r *storedJob, j *jobs) {
	c.fields(&r.id, (*name)(&r.function), &r.accepted, &r.due, &r.lane, &r.seq, &r.n, &r.attempt,
		&r.priority, (*uint8)(&r.state), &r.losses, (*uint8)(&r.flags))
	if c.decoding() {
		r.function = j.intern(r.function)
	}
	if optional(c, &r.options) {
		o := r.options
		c.fields(&o.runAt, &o.maxAttempts, &o.timeout, &o.retryInterval, &o.resultTTL)
	}
	if !optional(c, &r.run) {
		return
	}
	x := r.run.executor
	if c.decoding() {
		x = &c.executor
	}
	c.fields((*name)(&x.node), (*name)(&x.channel), &x.incarnation, &r.run.fence, &r.run.epoch, &r.run.started, &r.run.result)
	if c.decoding() {
		r.run.executor = j.internExecutor(*x)
	}
	if f := &r.run.failure; optional(c, f) {
		c.fields(&(*f).reason, (*name)(&(*f).kind))
		if c.decoding() {
			(*f).kind = j.intern((*f).kind)
		}
	}
}

func (c *codec) external(l *Ledger) {
	stored := func(yield func(*externalDispatch) bool) {
		l.external.byID.Scan(func(_ string, r *externalDispatch) bool { return yield(r) })
	}
	each(c, l.external.byID.Len(), stored, func(r *externalDispatch) {
		c.fields(&r.requestID, &r.target, (*[]byte)(&r.metadata), &r.state, &r.reason, &r.queued, &r.ended)
		if !c.decoding() {
			return
		}
		l.external.byID.Set(r.requestID, r)
		switch r.state {
		case externalPending:
			l.counts.Pending++
			l.external.unfinished++
		case externalNotified:
			l.counts.Notified++
			l.external.unfinished++
		case externalDelivered, externalFailed:
			l.external.finished.Set(externalFinish{r.ended, r.requestID})
		default:
			c.fail(errCorrupt)
		}
	})
}

func (c *codec) forgottenIDs(g *idRing) {
	list(c, &g.slabs, func(slab *idSlab) {
		c.fields(&slab.at)
		list(c, &slab.ids, func(id *job.ID) {
			if c.fields(id); c.decoding() {
				g.known[*id] = struct{}{}
				g.size++
			}
		})
		if len(slab.ids) == 0 || len(slab.ids) > slabSize {
			c.fail(errCorrupt)
		}
	})
}

// outbox encodes or decodes the outbox. It is part of the replicated state, so
// that everything committed is published also under a later authority.
func (c *codec) outbox(o *outbox) {
	c.fields(&o.next, &o.published, &o.nextResult, &o.nextDeadLetter, &o.bytes)
	list(c, &o.entries, func(entry *eventEntry) {
		c.fields(&entry.first, &entry.index, &entry.at, &entry.bytes)
		list(c, &entry.events, c.event)
	})
	list(c, &o.results, func(r *ResultItem) {
		c.fields(&r.Number, &r.Job, &r.N, (*name)(&r.Queue), &r.Value.Msgpack, &r.Value.Data)
		if b := &r.Blob; optional(c, b) {
			c.fields(&(*b).Name, &(*b).Chunks, &(*b).Size, &(*b).SHA256)
		}
	})
	list(c, &o.messages, func(m *ResultMessage) { c.fields(&m.First, &m.Seq) })
	list(c, &o.deadLetters, func(v *DeadLetter) {
		c.fields(&v.Number, &v.Job, &v.N, (*name)(&v.Queue), (*name)(&v.Function), &v.Position.Lane, &v.Position.Seq,
			&v.Attempts, (*unixTime)(&v.Accepted), (*unixTime)(&v.At), &v.Reason)
		if f := &v.Fault; optional(c, f) {
			c.fields(&(*f).Message, &(*f).Type, &(*f).Code, (*[]byte)(&(*f).Details))
		}
	})
}

func (c *codec) event(v *Event) {
	c.fields((*uint8)(&v.Kind), &v.N, &v.Job, &v.A, &v.B)
	if v.Kind == 0 || v.Kind > WorkerRecovered {
		c.fail(errCorrupt)
	}
	if x := &v.Extra; optional(c, x) {
		c.fields(&(*x).Request, &(*x).C, (*[]byte)(&(*x).Metadata))
		if optional(c, &(*x).Cursor) {
			c.fields((*x).Cursor)
		}
	}
}
