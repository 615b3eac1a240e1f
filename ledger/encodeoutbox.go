package ledger

import (
	"encoding/json"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// outbox writes the outbox. It is part of the replicated state, so that
// everything committed is published also under a later authority.
func (e *encoder) outbox(o *outbox) {
	e.uint(o.next)
	e.uint(o.published)
	e.uint(o.nextResult)
	e.uint(o.nextDeadLetter)
	e.uint(uint64(o.bytes))
	e.uint(uint64(len(o.entries)))
	for i := range o.entries {
		entry := &o.entries[i]
		e.uint(entry.first)
		e.uint(entry.index)
		e.int(entry.at)
		e.uint(uint64(entry.bytes))
		e.uint(uint64(len(entry.events)))
		for k := range entry.events {
			e.event(&entry.events[k])
		}
	}
	e.uint(uint64(len(o.results)))
	for i := range o.results {
		r := &o.results[i]
		e.uint(r.Number)
		e.id(r.Job)
		e.uint(uint64(r.N))
		e.name(r.Queue)
		e.bool(r.Value.Msgpack)
		e.bytes(r.Value.Data)
		e.blob(r.Blob)
	}
	e.uint(uint64(len(o.messages)))
	for _, m := range o.messages {
		e.uint(m.First)
		e.uint(m.Seq)
	}
	e.uint(uint64(len(o.deadLetters)))
	for i := range o.deadLetters {
		e.deadLetter(&o.deadLetters[i])
	}
}

func (e *encoder) event(v *Event) {
	e.uint(uint64(v.Kind))
	e.uint(uint64(v.N))
	e.id(v.Job)
	e.text(v.A)
	e.text(v.B)
	if e.optional(v.Extra != nil) {
		e.text(v.Extra.Request)
		e.text(v.Extra.C)
		e.bytes(v.Extra.Metadata)
		if e.optional(v.Extra.Cursor != nil) {
			e.text(*v.Extra.Cursor)
		}
	}
}

func (e *encoder) blob(b *job.Blob) {
	if e.optional(b != nil) {
		e.text(b.Name)
		e.uint(uint64(b.Chunks))
		e.int(b.Size)
		e.text(b.SHA256)
	}
}

func (e *encoder) deadLetter(v *DeadLetter) {
	e.uint(v.Number)
	e.id(v.Job)
	e.uint(uint64(v.N))
	e.name(v.Queue)
	e.name(v.Function)
	e.uint(uint64(v.Position.Lane))
	e.uint(v.Position.Seq)
	e.uint(uint64(v.Attempts))
	e.int(v.Accepted.UnixNano())
	e.int(v.At.UnixNano())
	e.text(v.Reason)
	if e.optional(v.Fault != nil) {
		e.text(v.Fault.Message)
		e.text(v.Fault.Type)
		e.text(v.Fault.Code)
		e.bytes(v.Fault.Details)
	}
}

func (d *decoder) outbox(o *outbox) {
	o.next, o.published, o.nextResult, o.nextDeadLetter = d.uint(), d.uint(), d.uint(), d.uint()
	o.bytes = int(d.uint())
	d.repeat(func() {
		entry := eventEntry{first: d.uint(), index: d.uint(), at: d.int(), bytes: int(d.uint())}
		d.repeat(func() { entry.events = append(entry.events, d.event()) })
		o.entries = append(o.entries, entry)
	})
	d.repeat(func() {
		o.results = append(o.results, ResultItem{
			Number: d.uint(), Job: d.id(), N: uint32(d.uint()), Queue: d.name(),
			Value: job.Value{Msgpack: d.bool(), Data: d.bytes()}, Blob: d.blob(),
		})
	})
	d.repeat(func() { o.messages = append(o.messages, ResultMessage{First: d.uint(), Seq: d.uint()}) })
	d.repeat(func() { o.deadLetters = append(o.deadLetters, d.deadLetter()) })
}

func (d *decoder) event() Event {
	v := Event{Kind: EventKind(d.uint()), N: uint32(d.uint()), Job: d.id(), A: d.text(), B: d.text()}
	if v.Kind == 0 || v.Kind > WorkerRecovered {
		d.fail(errCorrupt)
	}
	if d.bool() {
		v.Extra = &Extra{Request: d.text(), C: d.text(), Metadata: d.bytes()}
		if d.bool() {
			cursor := d.text()
			v.Extra.Cursor = &cursor
		}
	}
	return v
}

func (d *decoder) blob() *job.Blob {
	if !d.bool() {
		return nil
	}
	return &job.Blob{Name: d.text(), Chunks: int(d.uint()), Size: d.int(), SHA256: d.text()}
}

func (d *decoder) deadLetter() DeadLetter {
	v := DeadLetter{
		Number: d.uint(), Job: d.id(), N: uint32(d.uint()), Queue: d.name(), Function: d.name(),
		Position: job.Position{Lane: uint8(d.uint()), Seq: d.uint()}, Attempts: uint32(d.uint()),
		Accepted: time.Unix(0, d.int()).UTC(), At: time.Unix(0, d.int()).UTC(), Reason: d.text(),
	}
	if d.bool() {
		v.Fault = &job.Fault{Message: d.text(), Type: d.text(), Code: d.text(), Details: json.RawMessage(d.bytes())}
	}
	return v
}
