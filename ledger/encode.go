package ledger

import (
	"crypto/sha256"
	"fmt"
	"io"
	"iter"

	"github.com/yardmaster-dev/yardmaster/job"
)

// formatVersion is the first number of an encoded ledger. It changes with every
// change of the encoding.
const formatVersion = 18

// oldestFormat is the earliest format that can be decoded. It has no schemas and no limits.
const (
	oldestFormat  = 14
	schemasFormat = 15 // the first with schemas
	limitsFormat  = 16 // the first with limits
	levelFormat   = 17 // the first with a level and what belongs to it
	level8Format  = 18 // the first with what entries of level 8 keep
)

// Encode writes the whole state to w. Two ledgers that applied the same entries
// encode to the same bytes, also if they were restored from different
// snapshots.
func (l *Ledger) Encode(w io.Writer) error {
	c, format := newEncoder(w), uint64(formatVersion)
	c.uint(&format)
	c.ledger(l, format)
	return c.flush()
}

// Hash returns the SHA-256 of the encoded ledger. It is the same on every node
// whose ledger has the same index.
func (l *Ledger) Hash() ([sha256.Size]byte, error) {
	h := sha256.New()
	err := l.Encode(h)
	return [sha256.Size]byte(h.Sum(nil)), err
}

// Decode reads a ledger that [Ledger.Encode] wrote. It refuses a format
// before oldestFormat or after formatVersion, and an encoding that is truncated or corrupt.
func Decode(r io.Reader) (*Ledger, error) {
	c, format := newDecoder(r), uint64(0)
	c.uint(&format)
	if c.err == nil && (format < oldestFormat || format > formatVersion) {
		return nil, fmt.Errorf("ledger snapshot has format %d, this build reads %d to %d: run the build that wrote it", format, oldestFormat, formatVersion)
	}
	l := empty()
	c.ledger(l, format)
	if c.err != nil {
		return nil, fmt.Errorf("decode ledger: %w", c.err)
	}
	return l, nil
}

// ledger encodes or decodes every part of the state, in the order of the given format.
func (c *codec) ledger(l *Ledger, format uint64) {
	a := &l.authority
	c.fields(&l.index, &l.term, &l.now, &a.owner, &a.leaseID, &a.leasedUntil, &a.until, &a.epoch, &a.term, &a.member, &l.secret)
	list(c, &l.lanes, func(lane *LaneCursor) {
		c.fields(&lane.Identity, &lane.Cursor, &lane.Floor, &lane.LastID, &lane.IngestedUntil)
	})
	c.fields(&l.streams, &l.relocatedFloor, &l.revived, &l.released)
	c.replay(&l.replay)
	c.fields(&l.lastIngested, &l.counts.Delivered, &l.counts.Failed, &l.stale)
	c.retention(&l.retention.Declared)
	c.retention(&l.retention.Set)
	if format >= levelFormat {
		c.fields(&l.outbox.level)
	}
	if format >= level8Format {
		c.fields(&l.elapsed, &l.wall)
	} else if c.decoding() {
		l.elapsed, l.wall = l.now, l.now
	}
	if c.decoding() {
		l.finished.split = l.outbox.level > 0
		l.finished.setLimits(l.retention)
	}
	if l.jobs.limits.clocks = l.clocks; format >= limitsFormat {
		c.limits(&l.jobs.limits, format)
	}
	c.jobs(&l.dispatches, format)
	if format >= levelFormat && l.outbox.level > 0 { // after the jobs, which count as accepted when they are decoded
		c.fields(&l.jobs.accepted, &l.jobs.removed)
	}
	c.external(l)
	c.forgottenIDs(&l.jobs, format)
	c.outbox(&l.outbox, format)
	c.stalls(&l.stalls)
	c.guards(&l.dispatches)
	c.decisions(&l.decisions)
	if format >= level8Format {
		c.refusals(&l.refused)
	}
	c.crons(&l.crons)
	c.membership(&l.membership)
	c.backups(l)
	if format >= schemasFormat {
		c.schemas(&l.schemas)
	}
	if format >= levelFormat {
		c.operations(&l.operations)
	}
}

// jobs encodes or decodes each queue with its jobs: waiting jobs in start
// order, active jobs by fence, then the others by state and time.
func (c *codec) jobs(d *dispatches, format uint64) {
	active := make(map[string][]uint32) // numbers by queue name
	for item := range d.active.Scan {
		name := d.jobs.queueOf(item.number).name
		active[name] = append(active[name], item.number)
	}
	decoded := new(storedJob)
	each(c, d.queues.byName.Len(), values(&d.queues.byName), func(q *queue) {
		c.fields(&q.id, &q.name, &q.paused, &q.pausedAt, &q.config.Limit, &q.config.AllowOverrides, &q.config.RetryOnTimeout)
		c.retention(&q.config.Retention)
		if format >= limitsFormat {
			c.queueLimits(&q.config, format)
		}
		if format >= levelFormat {
			c.fields(&q.completed)
		}
		if c.decoding() {
			d.queues.set(q)
		}
		count := 0
		for _, inState := range q.counts {
			count += inState
		}
		stored := d.jobs.loaded(q.numbers(active[q.name], job.Delayed, job.Completed, job.Failed, job.Cancelled, job.Expired))
		space := func() *storedJob {
			*decoded = storedJob{}
			return decoded
		}
		eachIn(c, count, stored, space, func(stored *storedJob) {
			c.record(stored, q, &d.jobs, format)
			if c.decoding() {
				c.addJob(d, stored)
			}
		})
	})
}

// retention encodes or decodes retention settings.
func (c *codec) retention(r *job.Retention) {
	list(c, (*[]job.RetentionSetting)(r), func(s *job.RetentionSetting) {
		c.fields((*uint8)(&s.Key.Kept), (*uint8)(&s.Key.Bound), &s.Value)
	})
}

// queueLimits encodes or decodes the settings of a queue that decide when and in which order its
// jobs start.
func (c *codec) queueLimits(q *job.QueueConfig, format uint64) {
	list(c, &q.Limits, func(limit *string) { c.fields(limit) })
	c.fields(&q.KeyPath, &q.KeyOptional, &q.Fair, &q.Age, &q.MaxAttempts, &q.Timeout)
	list(c, &q.Weights, func(w *job.KeyWeight) { c.fields(&w.Key, &w.Weight) })
	if optional(c, &q.Priority) {
		c.fields(q.Priority)
	}
	list(c, &q.Retries, func(r *job.RetryRule) {
		c.fields(&r.Function, &r.MaxAttempts, &r.Backoff, &r.MaxBackoff)
		if optional(c, &r.Jitter) {
			c.fields(r.Jitter)
		}
		list(c, &r.RetryOn, func(name *string) { c.fields(name) })
		list(c, &r.DiscardOn, func(name *string) { c.fields(name) })
	})
	if format >= levelFormat {
		list(c, &q.Index, func(path *string) { c.fields(path) })
	}
}

// addJob adds a decoded job to the ledger, and counts its dispatch. A job in a
// state that no stored job has fails with errCorrupt.
func (c *codec) addJob(d *dispatches, decoded *storedJob) {
	switch state := decoded.state; {
	case state == job.New, int(state) >= job.States, state == job.Active && decoded.run == run{}:
		c.fail(errCorrupt)
		return
	case state == job.Waiting:
		d.counts.Pending++
	case state == job.Active:
		d.counts.Notified++
	}
	if _, known := d.jobs.byID.find(&d.jobs, &decoded.id); known {
		c.fail(errCorrupt) // the index would find one of the two
		return
	}
	d.store(nil, decoded)
}

// numbers returns an iterator over the numbers of the queue's waiting jobs by class in start
// order, then the active jobs that the caller passes, then those in the other
// states by time of acceptance.
func (q *queue) numbers(active []uint32, states ...job.State) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for _, wl := range q.waitlists.Scan {
			for item := range wl.jobs.Scan {
				if !yield(item.number) {
					return
				}
			}
		}
		for _, number := range active {
			if !yield(number) {
				return
			}
		}
		for _, state := range states {
			if q.lists[state] == nil {
				continue
			}
			for item := range q.lists[state].Scan {
				if !yield(item.number) {
					return
				}
			}
		}
	}
}

// record encodes or decodes a job of a queue. A decoded job shares names with the others.
func (c *codec) record(stored *storedJob, q *queue, shared *jobs, format uint64) {
	var key groupKey
	if !c.decoding() {
		key = stored.groupKey
	}
	if format >= limitsFormat {
		c.fields((*name)(&key.key), (*name)(&key.limits))
	}
	c.fields(&stored.id, (*name)(&stored.function), &stored.accepted, &stored.due, &stored.lane, &stored.seq, &stored.index, &stored.n, &stored.attempt,
		&stored.priority, (*uint8)(&stored.state), &stored.losses, (*uint8)(&stored.flags))
	if c.decoding() {
		stored.traits = shared.traits.of(traitsID{q, Class(stored.function), key})
	}
	hasOptions := stored.options != options{}
	if c.bool(&hasOptions); hasOptions {
		o := &stored.options
		c.fields(&o.runAt, &o.maxAttempts, &o.timeout, &o.retryInterval, &o.resultTTL, &o.blobOwner)
		retry := o.retryOnTimeout.value()
		if optional(c, &retry) {
			c.fields(retry)
		}
		o.retryOnTimeout = choiceOf(retry)
		if format >= limitsFormat {
			c.fields(&o.expires)
		}
		if format >= level8Format {
			c.fields(&o.dueShift, &o.dueWall, &o.expiryShift, &o.expiryWall)
		}
	}
	run := &stored.run
	hasRun := stored.runNumber != 0
	if c.bool(&hasRun); !hasRun {
		return
	}
	c.fields((*name)(&run.node), (*name)(&run.channel), &run.incarnation, &run.fence, &run.epoch, &run.started, &run.result, &run.resultSize)
	if optional(c, &run.cancellation) {
		c.fields((*name)(&run.cancellation.by.Name), (*string)(&run.cancellation.by.Door), &run.cancellation.by.Reason, &run.cancellation.at)
	}
	if optional(c, &run.failure) {
		f := run.failure
		c.fields(&f.reason, (*name)(&f.kind), (*name)(&f.code), &f.details, &f.deadLetter)
		if c.decoding() {
			f.kind, f.code = shared.intern(f.kind), shared.intern(f.code)
		}
	}
}

// external encodes or decodes the external dispatches.
func (c *codec) external(l *Ledger) {
	each(c, l.external.byID.Len(), values(l.external.byID), func(d *externalDispatch) {
		c.fields(&d.requestID, &d.target, (*[]byte)(&d.metadata), &d.state, &d.reason, &d.queued, &d.ended)
		switch {
		case int(d.state) >= len(externalStates):
			c.fail(errCorrupt)
		case c.decoding():
			l.addExternal(d)
		}
	})
}

// outbox encodes or decodes the outbox. It is part of the replicated state, so
// that everything committed is published also under a later authority.
func (c *codec) outbox(o *outbox, format uint64) {
	c.fields(&o.next, &o.published, &o.nextResult, &o.nextDeadLetter, &o.bytes)
	list(c, &o.entries, func(entry *eventEntry) {
		c.fields(&entry.first, &entry.index, &entry.at, &entry.bytes)
		list(c, &entry.events, func(e *Event) { c.event(e, format) })
	})
	list(c, &o.results, func(result *ResultItem) {
		c.fields(&result.Number, &result.Job, &result.N, (*name)(&result.Queue), &result.Value.Msgpack, &result.Value.Data)
		if optional(c, &result.Blob) {
			c.fields(&result.Blob.Name, &result.Blob.Chunks, &result.Blob.Size, &result.Blob.SHA256)
		}
		if optional(c, &result.Dropped) {
			c.fields(&result.Dropped.Size, &result.Dropped.Reason)
		}
	})
	list(c, &o.messages, func(m *ResultMessage) { c.fields(&m.First, &m.Seq) })
	list(c, &o.deadLetters, func(letter *DeadLetter) {
		c.fields(&letter.Number, &letter.Job, &letter.N, (*name)(&letter.Queue), (*name)(&letter.Function),
			&letter.Position.Lane, &letter.Position.Seq, &letter.Position.Index, &letter.Attempts,
			(*unixTime)(&letter.Accepted), (*unixTime)(&letter.At), &letter.Reason, &letter.BlobOwner)
		if optional(c, &letter.Fault) {
			c.fields(&letter.Fault.Message, &letter.Fault.Type, &letter.Fault.Code, (*[]byte)(&letter.Fault.Details))
		}
	})
}

// event encodes or decodes an event. An unknown kind fails with errCorrupt.
func (c *codec) event(e *Event, format uint64) {
	c.fields((*uint8)(&e.Kind), &e.N, &e.Job, &e.A, &e.B)
	if format >= levelFormat {
		c.fields((*uint8)(&e.From), (*uint8)(&e.To))
	}
	if e.Kind == 0 || e.Kind > lastKind || e.From > OutGone || e.To > OutGone {
		c.fail(errCorrupt)
	}
	if !optional(c, &e.Extra) {
		if e.Kind == OperatorActed || e.Kind == JobsForgotten || e.Kind == JobDetails {
			c.fail(errCorrupt)
		}
		return
	}
	c.fields(&e.Extra.Request, &e.Extra.C, (*[]byte)(&e.Extra.Metadata))
	if optional(c, &e.Extra.Cursor) {
		c.fields(e.Extra.Cursor)
	}
	if optional(c, &e.Extra.By) {
		c.fields(&e.Extra.By.Name, (*string)(&e.Extra.By.Door), &e.Extra.By.Reason)
	}
	if (e.Kind == OperatorActed) != (e.Extra.By != nil) {
		c.fail(errCorrupt)
	}
	if format < levelFormat {
		return
	}
	c.fields(&e.Extra.Due, &e.Extra.Accepted, &e.Extra.Priority, &e.Extra.Record.Lane, &e.Extra.Record.Seq, &e.Extra.Record.Index, &e.Extra.Result)
	if optional(c, &e.Extra.Run) {
		run := e.Extra.Run
		c.fields((*name)(&run.Node), (*name)(&run.Function), &run.Attempt, (*name)(&run.Key), (*name)(&run.Limits))
	}
}
