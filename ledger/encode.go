package ledger

import (
	"crypto/sha256"
	"fmt"
	"io"
	"time"

	"github.com/tidwall/btree"

	"github.com/yardmaster-dev/yardmaster/job"
)

// formatVersion is the first number of an encoded ledger. It changes with every
// change of the encoding.
const formatVersion = 7

// Encode writes the whole state to w. Two ledgers that applied the same entries
// encode to the same bytes, also if they were restored from different
// snapshots.
func (l *Ledger) Encode(w io.Writer) error {
	e := newEncoder(w)
	e.uint(formatVersion)
	e.uint(l.index)
	e.uint(l.term)
	e.int(l.now)
	e.authority(&l.authority)
	e.bytes(l.secret)
	e.uint(uint64(len(l.lanes)))
	for _, ln := range l.lanes {
		e.text(ln.Identity)
		e.uint(ln.Cursor)
		e.id(ln.LastID)
	}
	e.bool(l.streamsCreated)
	e.replay(&l.replay)
	e.id(l.lastIngested)
	e.uint(l.counts.Delivered)
	e.uint(l.counts.Failed)
	e.uint(l.stale)
	e.queues(&l.queues, &l.jobs)
	e.external(&l.external)
	e.forgottenIDs(l.jobs.forgotten)
	e.outbox(&l.outbox)
	e.stalls(&l.stalls)
	e.guards(l)
	e.crons(&l.crons)
	e.membership(&l.membership)
	e.backups(l)
	if e.err != nil {
		return e.err
	}
	return e.w.Flush()
}

// Hash returns the SHA-256 of the encoded ledger. It is the same on every node
// whose ledger has the same index.
func (l *Ledger) Hash() ([sha256.Size]byte, error) {
	h := sha256.New()
	err := l.Encode(h)
	return [sha256.Size]byte(h.Sum(nil)), err
}

func (e *encoder) authority(a *authority) {
	e.text(a.owner)
	e.text(a.leaseID)
	e.text(a.leasedUntil)
	e.int(a.until)
	e.uint(a.epoch)
	e.uint(a.term)
	e.bool(a.member)
}

// queues writes each queue with its jobs: waiting jobs in start order, active
// jobs by fence, then the others by time.
func (e *encoder) queues(qs *queues, j *jobs) {
	active := make(map[string][]*storedJob) // by queue
	j.active.Scan(func(item orderItem) bool {
		name := item.r.queue.name
		active[name] = append(active[name], item.r)
		return true
	})
	e.uint(uint64(qs.byName.Len()))
	qs.byName.Scan(func(_ string, q *queue) bool {
		e.id(q.id)
		e.text(q.name)
		e.bool(q.paused)
		e.int(q.pausedAt)
		e.uint(uint64(q.config.Limit))
		e.bool(q.config.AllowOverrides)
		n := 0
		for _, count := range q.counts {
			n += count
		}
		e.uint(uint64(n))
		q.waitlists.Scan(func(_ string, wl *waitlist) bool {
			wl.jobs.Scan(func(item orderItem) bool { e.record(item.r); return e.err == nil })
			return e.err == nil
		})
		for _, r := range active[q.name] {
			e.record(r)
		}
		for _, list := range q.lists {
			if list != nil {
				list.Scan(func(item timeItem) bool { e.record(item.r); return e.err == nil })
			}
		}
		return e.err == nil
	})
}

func (e *encoder) record(r *storedJob) {
	e.id(r.id)
	e.name(r.function)
	e.int(r.accepted)
	e.int(r.due)
	e.uint(uint64(r.lane))
	e.uint(r.seq)
	e.uint(uint64(r.n))
	e.uint(uint64(r.attempt))
	e.uint(uint64(r.priority))
	e.uint(uint64(r.state))
	e.uint(uint64(r.losses))
	e.uint(uint64(r.flags))
	if e.optional(r.options != nil) {
		e.int(r.options.runAt)
		e.uint(uint64(r.options.maxAttempts))
		e.int(int64(r.options.timeout))
		e.int(int64(r.options.retryInterval))
		e.int(int64(r.options.resultTTL))
	}
	if e.optional(r.run != nil) {
		e.name(r.run.node)
		e.name(r.run.channel)
		e.uint(r.run.incarnation)
		e.uint(r.run.fence)
		e.uint(r.run.epoch)
		e.int(r.run.started)
		e.uint(r.run.result)
		if e.optional(r.run.failure != nil) {
			e.text(r.run.failure.reason)
			e.name(r.run.failure.kind)
		}
	}
}

func (e *encoder) external(o *external) {
	e.uint(uint64(o.byID.Len()))
	o.byID.Scan(func(_ string, r *externalDispatch) bool {
		e.text(r.requestID)
		e.text(r.target)
		e.bytes(r.metadata)
		e.uint(uint64(r.state))
		e.text(r.reason)
		e.int(r.queued)
		e.int(r.ended)
		return e.err == nil
	})
}

func (e *encoder) forgottenIDs(g *idRing) {
	e.uint(uint64(len(g.slabs)))
	for _, slab := range g.slabs {
		e.int(slab.at)
		e.uint(uint64(len(slab.ids)))
		for _, id := range slab.ids {
			e.id(id)
		}
	}
}

// Decode reads a ledger that [Ledger.Encode] wrote.
func Decode(r io.Reader) (*Ledger, error) {
	d := newDecoder(r)
	format := d.uint()
	if d.err == nil && format != formatVersion {
		return nil, fmt.Errorf("ledger snapshot has format %d, this build reads %d: run the build that wrote it", format, formatVersion)
	}
	l := empty()
	l.index, l.term, l.now = d.uint(), d.uint(), d.int()
	l.authority = authority{
		owner: d.text(), leaseID: d.text(), leasedUntil: d.text(),
		until: d.int(), epoch: d.uint(), term: d.uint(), member: d.bool(),
	}
	l.secret = d.bytes()
	d.repeat(func() { l.lanes = append(l.lanes, LaneCursor{Identity: d.text(), Cursor: d.uint(), LastID: d.id()}) })
	l.streamsCreated = d.bool()
	d.replay(&l.replay)
	l.lastIngested = d.id()
	delivered, failed := d.uint(), d.uint()
	l.stale = d.uint()
	d.queues(l)
	d.external(l)
	d.forgottenIDs(l.jobs.forgotten)
	d.outbox(&l.outbox)
	d.stalls(&l.stalls)
	d.guards(l)
	d.crons(&l.crons)
	d.membership(&l.membership)
	d.backups(l)
	l.counts.Delivered, l.counts.Failed = delivered, failed
	if d.err != nil {
		return nil, fmt.Errorf("decode ledger: %w", d.err)
	}
	return l, nil
}

func (d *decoder) queues(l *Ledger) {
	d.repeat(func() {
		q := &queue{id: d.id(), name: d.text(), paused: d.bool(), pausedAt: d.int()}
		q.config = job.QueueConfig{Limit: uint32(d.uint()), AllowOverrides: d.bool()}
		l.queues.byName.Set(q.name, q)
		d.repeat(func() {
			r := d.record(l)
			r.queue = q
			switch {
			case r.state == job.New || r.state > job.Failed || r.state == job.Active && r.run == nil:
				d.fail(errCorrupt)
			default:
				l.store(nil, r)
			}
			switch r.state {
			case job.Waiting:
				l.counts.Pending++
			case job.Active:
				l.counts.Notified++
			}
		})
	})
}

func (d *decoder) record(l *Ledger) *storedJob {
	r := &storedJob{
		id: d.id(), function: l.jobs.intern(d.name()), accepted: d.int(), due: d.int(),
		lane: uint8(d.uint()), seq: d.uint(), n: uint32(d.uint()), attempt: uint32(d.uint()),
		priority: uint8(d.uint()), state: job.State(d.uint()), losses: uint8(d.uint()), flags: flags(d.uint()),
	}
	if d.bool() {
		r.options = &options{
			runAt: d.int(), maxAttempts: uint32(d.uint()),
			timeout: time.Duration(d.int()), retryInterval: time.Duration(d.int()), resultTTL: time.Duration(d.int()),
		}
	}
	if d.bool() {
		r.run = &run{
			executor: l.jobs.internExecutor(executor{node: d.name(), channel: d.name(), incarnation: d.uint()}),
			fence:    d.uint(), epoch: d.uint(), started: d.int(), result: d.uint(),
		}
		if d.bool() {
			r.run.failure = &failure{reason: d.text(), kind: l.jobs.intern(d.name())}
		}
	}
	return r
}

func (d *decoder) external(l *Ledger) {
	l.external.byID = new(btree.Map[string, *externalDispatch])
	d.repeat(func() {
		r := &externalDispatch{
			requestID: d.text(), target: d.text(), metadata: d.bytes(),
			state: uint8(d.uint()), reason: d.text(), queued: d.int(), ended: d.int(),
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
			d.fail(errCorrupt)
		}
	})
}

func (d *decoder) forgottenIDs(g *idRing) {
	d.repeat(func() {
		slab := idSlab{at: d.int()}
		n := d.uint()
		if n == 0 || n > slabSize {
			d.fail(errCorrupt)
		}
		for ; n > 0 && d.err == nil; n-- {
			id := d.id()
			slab.ids = append(slab.ids, id)
			g.known[id] = struct{}{}
			g.size++
		}
		g.slabs = append(g.slabs, slab)
	})
}
