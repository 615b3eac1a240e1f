package overhop

import "sync"

// marshalers and unmarshalers hold those that are not in use, for their memory.
var (
	marshalers   = sync.Pool{New: func() any { return new(marshaler) }}
	unmarshalers = sync.Pool{New: func() any { return new(unmarshaler) }}
)

// maxKept is the largest value whose memory a marshaler keeps.
const maxKept = 64 << 10

// release makes m available for another value.
func (m *marshaler) release() {
	if cap(m.out) <= maxKept {
		m.valuePath, m.out, m.numberAt = m.valuePath[:0], m.out[:0], nil
		marshalers.Put(m)
	}
}

// release makes u available for another value.
func (u *unmarshaler) release() {
	u.valuePath = u.valuePath[:0]
	unmarshalers.Put(u)
}
