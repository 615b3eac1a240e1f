package series

import (
	"encoding/binary"
	"errors"
	"time"
)

// ErrMalformed is returned for bytes that are not an encoded series.
var ErrMalformed = errors.New("malformed series")

// format is the first byte of an encoded series.
const format = 1

// reader reads numbers and texts. Once failed is set, it returns zeros.
type reader struct {
	data   []byte
	at     int // what was read is before it
	failed bool
}

// fork returns a reader of what r has not read.
func (r *reader) fork() *reader { return &reader{data: r.data, at: r.at} }

// done reports whether all was read, without a failure.
func (r *reader) done() bool { return !r.failed && r.at == len(r.data) }

func (r *reader) fail() { r.failed, r.at = true, len(r.data) }

func (r *reader) byte() byte {
	if r.at >= len(r.data) {
		r.fail()
		return 0
	}
	r.at++
	return r.data[r.at-1]
}

func (r *reader) uvarint() uint64 {
	if r.at < len(r.data) && r.data[r.at] < 0x80 {
		r.at++
		return uint64(r.data[r.at-1])
	}
	v, n := binary.Uvarint(r.data[r.at:])
	if n <= 0 {
		r.fail()
		return 0
	}
	r.at += n
	return v
}

// count reads a number of items, of which there are at most limit.
func (r *reader) count(limit int) int {
	n := r.uvarint()
	if n > uint64(limit) {
		r.fail()
		return 0
	}
	return int(n)
}

func (r *reader) bytes(limit int) []byte {
	n := r.count(limit)
	if n > len(r.data)-r.at {
		r.fail()
		return nil
	}
	r.at += n
	return r.data[r.at-n : r.at]
}

func (r *reader) time() int64 { return int64(r.uvarint()) }

func appendBytes[T string | []byte](b []byte, v T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}

// Encode returns the series as bytes.
func (s *Series) Encode() []byte {
	b := append(make([]byte, 0, s.size()), format)
	for _, v := range [...]int64{int64(s.index), s.now, s.since} {
		b = binary.AppendUvarint(b, uint64(v))
	}
	b = s.minutes.encode(s.fine.encode(b))
	b = s.minute.append(s.open.append(b, 0), 0)
	b = s.queues.encode(b)
	b = s.errors.encode(b)
	b = binary.AppendUvarint(b, uint64(len(s.happenings)))
	for i := range s.happenings {
		h := &s.happenings[i]
		b = binary.AppendUvarint(b, uint64(h.At.UnixNano()))
		for _, text := range h.texts() {
			b = appendBytes(b, *text)
		}
	}
	return b
}

// size returns about how many bytes the encoded series has.
func (s *Series) size() int {
	n := 64 << 10
	for _, r := range [...]*ring{&s.fine, &s.minutes} {
		for _, encoded := range r.slots {
			n += len(encoded) + 2
		}
	}
	return n
}

// Decode returns the series that was encoded. The error is [ErrMalformed].
func Decode(b []byte) (*Series, error) {
	r, s := &reader{data: b}, New()
	if r.byte() != format {
		return nil, ErrMalformed
	}
	s.index, s.now, s.since = r.uvarint(), r.time(), r.time()
	s.fine.decode(r, s.now/fineStep, func(r *reader) { new(period).read(r) })
	s.minutes.decode(r, s.now/minuteStep, func(r *reader) { readMinute(r, nil) })
	s.open.read(r)
	s.minute.read(r)
	s.queues.decode(r)
	s.errors.decode(r)
	for range r.count(maxHappenings) {
		h := Happening{At: time.Unix(0, r.time()).UTC()}
		for _, text := range h.texts() {
			*text = string(r.bytes(maxHappeningText))
		}
		s.happenings = append(s.happenings, h)
	}
	if !r.done() || s.now < 0 {
		return nil, ErrMalformed
	}
	return s, nil
}

// encode appends the slots, and for each that is empty how many are.
func (r *ring) encode(b []byte) []byte {
	n := int64(len(r.slots))
	for i := r.open - n; i < r.open; i++ {
		slot := r.at(max(i, 0))
		b = appendBytes(b, slot)
		if len(slot) > 0 {
			continue
		}
		run := int64(1)
		for ; i+run < r.open && len(r.at(max(i+run, 0))) == 0; run++ {
		}
		b = binary.AppendUvarint(b, uint64(run))
		i += run - 1
	}
	return b
}

// decode reads slots, which check reads, too, so that they can be read later.
func (r *ring) decode(from *reader, open int64, check func(*reader)) {
	r.open = open
	n := int64(len(r.slots))
	if open < n {
		from.fail()
		return
	}
	for i := open - n; i < open && !from.failed; i++ {
		slot := from.bytes(maxSlotBytes)
		if len(slot) == 0 {
			i += int64(max(from.count(int(open-i)), 1)) - 1
			continue
		}
		checked := &reader{data: slot}
		if check(checked); !checked.done() {
			from.fail()
		}
		r.slots[i%n] = append([]byte(nil), slot...)
	}
}

// maxSlotBytes bounds an encoded slot that is read.
const maxSlotBytes = 64 << 10

func (qs *queues) encode(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(qs.last))
	all := qs.all()
	b = binary.AppendUvarint(b, uint64(len(all)))
	for _, q := range all {
		b = appendBytes(b, q.name)
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(q.number)), uint64(q.seen))
		b = q.slot.append(b, 0)
		for kind := range kinds {
			b = binary.AppendUvarint(b, uint64(q.counted[kind]))
			for i := range q.recent {
				b = binary.AppendUvarint(b, uint64(q.recent[i][kind]))
			}
		}
	}
	return b
}

func (qs *queues) decode(r *reader) {
	qs.last = uint32(r.uvarint())
	for range r.count(maxQueues + 1) {
		q := &queueSlot{name: string(r.bytes(1 << 10)), number: uint32(r.uvarint()), seen: r.time()}
		q.slot.read(r)
		for kind := range kinds {
			q.counted[kind] = uint32(r.uvarint())
			for i := range q.recent {
				q.recent[i][kind] = uint32(r.uvarint())
			}
		}
		if q.number == 0 {
			qs.rest, qs.latest = q, q
		} else {
			qs.byName[q.name] = q
		}
	}
}

func (f *failures) encode(b []byte) []byte {
	for _, v := range [...]uint64{uint64(f.last), f.clock, uint64(f.other), uint64(len(f.byType))} {
		b = binary.AppendUvarint(b, v)
	}
	for _, c := range f.all() {
		b = appendBytes(b, c.name)
		for _, v := range [...]uint64{uint64(c.queue), uint64(c.number), c.seen, uint64(c.count)} {
			b = binary.AppendUvarint(b, v)
		}
	}
	return b
}

func (f *failures) decode(r *reader) {
	f.last, f.clock, f.other = uint32(r.uvarint()), r.uvarint(), uint32(r.uvarint())
	for range r.count(maxFailures) {
		c := &failureCount{failureType: failureType{name: string(r.bytes(maxErrorType))}}
		c.queue, c.number, c.seen, c.count = uint32(r.uvarint()), uint32(r.uvarint()), r.uvarint(), uint32(r.uvarint())
		f.byType[c.failureType] = c
	}
}
