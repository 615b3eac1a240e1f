package segment

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// prefixSize is the size of the beginning of an encoded document: its id and the time of
// its creation, which a segment has in columns.
const prefixSize = 16 + 8

// Flags of an encoded document.
const (
	hasStarted = 1 << iota
	hasEnded
	hasFault
	hasCancellation
	hasRunAt
)

// AppendDocument appends the encoding of a document, which is at most a little larger than its
// texts.
func AppendDocument(b []byte, d *job.Document) []byte {
	b = append(b, d.ID[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(d.Created.UnixNano()))
	return appendBody(b, d)
}

// appendBody appends what follows the prefix.
func appendBody(b []byte, d *job.Document) []byte {
	flags := byte(0)
	if !d.Started.IsZero() {
		flags |= hasStarted
	}
	if !d.Ended.IsZero() {
		flags |= hasEnded
	}
	if d.Fault != nil {
		flags |= hasFault
	}
	if d.Cancellation != nil {
		flags |= hasCancellation
	}
	if !d.RunAt.IsZero() {
		flags |= hasRunAt
	}
	b = append(b, flags, byte(d.State), d.Priority)
	b = binary.AppendUvarint(b, uint64(d.Attempts))
	b = binary.AppendUvarint(b, uint64(d.Dispatches))
	b = binary.AppendUvarint(b, d.DeadLetter)
	for _, n := range []uint64{uint64(d.MaxAttempts), d.Result, uint64(d.ResultTTL), d.Position.Seq} {
		b = binary.AppendUvarint(b, n)
	}
	b = append(b, d.Position.Lane, d.Position.Index)
	if !d.RunAt.IsZero() {
		b = binary.AppendVarint(b, d.RunAt.UnixNano()-d.Created.UnixNano())
	}
	last := d.Created
	for _, t := range []time.Time{d.Started, d.Ended} {
		if !t.IsZero() {
			b = binary.AppendVarint(b, t.UnixNano()-last.UnixNano())
			last = t
		}
	}
	for _, text := range []string{d.Queue, d.Function, d.Node, d.Worker, d.Key, d.LimitKey} {
		b = appendText(b, text)
	}
	b = binary.AppendUvarint(b, uint64(len(d.Tags)))
	for _, tag := range d.Tags {
		b = appendText(b, tag)
	}
	for _, labels := range [][]job.Label{d.Meta, d.Params} {
		b = binary.AppendUvarint(b, uint64(len(labels)))
		for _, l := range labels {
			b = appendText(appendText(b, l.Name), l.Value)
		}
	}
	if f := d.Fault; f != nil {
		b = appendText(appendText(appendText(appendText(b, f.Message), f.Type), f.Code), string(f.Details))
	}
	if c := d.Cancellation; c != nil {
		b = appendText(appendText(appendText(b, c.Actor), c.Door), c.Reason)
		b = binary.AppendVarint(b, c.At.UnixNano())
	}
	return b
}

// ParseDocument returns the document that [AppendDocument] appended. Its times are in UTC. The
// error is [ErrDamaged].
func ParseDocument(b []byte) (*job.Document, error) {
	if len(b) < prefixSize {
		return nil, ErrDamaged
	}
	return parseBody(job.ID(b[:16]), int64(binary.BigEndian.Uint64(b[16:prefixSize])), b[prefixSize:])
}

func parseBody(id job.ID, created int64, body []byte) (*job.Document, error) {
	r := &decoder{data: body}
	head := r.bytes(3)
	if r.err != nil || int(head[1]) >= job.States {
		return nil, ErrDamaged
	}
	flags := head[0]
	d := &job.Document{ID: id, Created: unix(created), State: job.State(head[1]), Priority: head[2]}
	d.Attempts, d.Dispatches, d.DeadLetter = r.uint32(), r.uint32(), r.uvarint()
	d.MaxAttempts, d.Result, d.ResultTTL, d.Position.Seq = r.uint32(), r.uvarint(), time.Duration(r.uvarint()), r.uvarint()
	if place := r.bytes(2); r.err == nil {
		d.Position.Lane, d.Position.Index = place[0], place[1]
	}
	if flags&hasRunAt != 0 {
		d.RunAt = unix(created + r.varint())
	}
	last := created
	if flags&hasStarted != 0 {
		last += r.varint()
		d.Started = unix(last)
	}
	if flags&hasEnded != 0 {
		d.Ended = unix(last + r.varint())
	}
	for _, text := range []*string{&d.Queue, &d.Function, &d.Node, &d.Worker, &d.Key, &d.LimitKey} {
		*text = r.text()
	}
	for range r.count() {
		d.Tags = append(d.Tags, r.text())
	}
	for _, labels := range []*[]job.Label{&d.Meta, &d.Params} {
		for range r.count() {
			*labels = append(*labels, job.Label{Name: r.text(), Value: r.text()})
		}
	}
	if flags&hasFault != 0 {
		d.Fault = &job.Fault{Message: r.text(), Type: r.text(), Code: r.text()}
		if details := r.text(); details != "" {
			d.Fault.Details = json.RawMessage(details)
		}
	}
	if flags&hasCancellation != 0 {
		d.Cancellation = &job.Cancellation{Actor: r.text(), Door: r.text(), Reason: r.text(), At: unix(r.varint())}
	}
	if r.err != nil || len(r.data) > 0 {
		return nil, ErrDamaged
	}
	return d, nil
}

func unix(ns int64) time.Time { return time.Unix(0, ns).UTC() }

func (d *decoder) uint32() uint32 {
	n := d.uvarint()
	if n > math.MaxUint32 {
		d.fail()
	}
	return uint32(n)
}

// count returns the number of values that follow, each of which has at least a byte.
func (d *decoder) count() int {
	n := d.uvarint()
	if n > uint64(len(d.data)) {
		d.fail()
		return 0
	}
	return int(n)
}
