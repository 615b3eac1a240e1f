package series

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"
	"strings"
)

// Bounds of what is kept by queue.
const (
	maxQueues    = 200
	queueBytes   = 8 << 10 // of a minute
	idleMinutes  = 60      // after which a queue makes place for another one
	queueMinutes = minuteSlots
)

// queues has the slots of up to maxQueues queues, and of all others as one, which has the number 0.
type queues struct {
	byName map[string]*queueSlot
	rest   *queueSlot
	latest *queueSlot // that was looked up last
	last   uint32     // number that was given last
}

// queueSlot is a queue in the minute that has not ended.
type queueSlot struct {
	name   string
	number uint32
	seen   int64 // number of the minute in which anything happened
	slot   slot

	counted [kinds]uint32              // those of the slot when the last fine slot ended
	recent  [recentSlots][kinds]uint32 // of the last fine slots, by number
}

func newQueues() queues {
	rest := new(queueSlot)
	return queues{byName: make(map[string]*queueSlot), rest: rest, latest: rest}
}

// get returns the slot of a queue.
func (qs *queues) get(name string, minute int64) *queueSlot {
	q := qs.latest
	if q.name != name || q == qs.rest {
		if q = qs.byName[name]; q == nil {
			q = qs.add(name)
		}
		qs.latest = q
	}
	q.seen = minute
	return q
}

// add returns the slot of a queue that has none yet, or that of the rest if there are as many as may
// be.
func (qs *queues) add(name string) *queueSlot {
	if len(qs.byName) >= maxQueues {
		return qs.rest
	}
	qs.last++
	q := &queueSlot{name: strings.Clone(name), number: qs.last}
	qs.byName[q.name] = q
	return q
}

// all returns the queues by number, beginning with the rest.
func (qs *queues) all() []*queueSlot {
	all := append(slices.Collect(maps.Values(qs.byName)), qs.rest)
	slices.SortFunc(all, func(a, b *queueSlot) int { return cmp.Compare(a.number, b.number) })
	return all
}

// endFine ends the fine slot with a number; next is the one that begins.
func (qs *queues) endFine(number, next int64) {
	qs.rest.endFine(number, next)
	for _, q := range qs.byName {
		q.endFine(number, next)
	}
}

func (q *queueSlot) endFine(number, next int64) {
	for kind, count := range q.slot.counts {
		q.recent[number%recentSlots][kind] = count - q.counted[kind]
	}
	q.counted = q.slot.counts
	for empty := max(number+1, next-recentSlots); empty < next; empty++ {
		q.recent[empty%recentSlots] = [kinds]uint32{}
	}
}

// endMinute empties the slots, and drops queues of which nothing is kept any more. If there are as
// many as may be, and others want a place, it drops all that are idle: what was counted of them is
// then with the rest.
func (qs *queues) endMinute(minute int64) {
	keep := int64(queueMinutes)
	if len(qs.byName) >= maxQueues && !qs.rest.slot.empty() {
		keep = idleMinutes
	}
	qs.rest.endMinute()
	for name, q := range qs.byName {
		if q.endMinute(); q.seen < minute-keep {
			delete(qs.byName, name)
		}
	}
	if qs.byName[qs.latest.name] != qs.latest {
		qs.latest = qs.rest
	}
}

func (q *queueSlot) endMinute() {
	q.slot.reset()
	q.counted = [kinds]uint32{}
}

// append appends the slots of the queues in which anything happened, in about queueBytes: with
// coarser histograms, and at last without some.
func (qs *queues) append(b []byte) []byte {
	var used []*queueSlot
	for _, q := range qs.all() {
		if !q.slot.empty() {
			used = append(used, q)
		}
	}
	var encoded []byte
	for shift := 0; ; shift++ {
		encoded = binary.AppendUvarint(encoded[:0], uint64(len(used)))
		for _, q := range used {
			own := shift
			if shift > maxShift {
				if own = maxShift; len(encoded) > queueBytes/2 {
					own = noHistograms
				}
			}
			encoded = q.slot.append(binary.AppendUvarint(encoded, uint64(q.number)), own)
		}
		if len(encoded) <= queueBytes || shift > maxShift {
			return append(b, encoded...)
		}
	}
}
