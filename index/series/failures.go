package series

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"
	"strings"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Bounds of what is kept by type of error.
const (
	maxFailures       = 256 // types of errors of queues
	keptFailures      = 192 // of them at the beginning of a minute
	maxMinuteFailures = 32  // of them in a minute that has ended
	maxErrorType      = 64  // bytes
)

// failures counts attempts that failed, by queue and type of error. If there are too many types,
// those that came first in a minute have a place. Between minutes, those that did not come for
// longest lose theirs; what was counted of them is then with the others.
type failures struct {
	byType map[failureType]*failureCount
	last   uint32 // number that was given last
	clock  uint64 // number of failures
	other  uint32 // in the minute that has not ended
}

type failureType struct {
	queue uint32 // number of a queue
	name  string
}

// failureCount is how often attempts failed with a type in the minute that has not ended.
type failureCount struct {
	failureType
	number uint32
	seen   uint64 // by failures.clock
	count  uint32
}

func newFailures() failures { return failures{byType: make(map[failureType]*failureCount)} }

// add counts a failure.
func (f *failures) add(queue uint32, name string) {
	f.clock++
	if len(name) > maxErrorType {
		name = job.CutText(name, maxErrorType)
	}
	key := failureType{queue, name}
	count := f.byType[key]
	if count == nil {
		if len(f.byType) >= maxFailures {
			f.other++
			return
		}
		f.last++
		key.name = strings.Clone(name)
		count = &failureCount{failureType: key, number: f.last}
		f.byType[key] = count
	}
	count.seen = f.clock
	count.count++
}

// all returns the types by number.
func (f *failures) all() []*failureCount {
	return slices.SortedFunc(maps.Values(f.byType), func(a, b *failureCount) int { return cmp.Compare(a.number, b.number) })
}

// append appends the counts of the minute: those of the most frequent types, and of all others.
func (f *failures) append(b []byte) []byte {
	used := f.all()
	used = slices.DeleteFunc(used, func(c *failureCount) bool { return c.count == 0 })
	slices.SortStableFunc(used, func(a, b *failureCount) int { return cmp.Compare(b.count, a.count) })
	other := uint64(f.other)
	for len(used) > maxMinuteFailures {
		other += uint64(used[len(used)-1].count)
		used = used[:len(used)-1]
	}
	b = binary.AppendUvarint(b, uint64(len(used)))
	for _, c := range used {
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(c.number)), uint64(c.count))
	}
	return binary.AppendUvarint(b, other)
}

// endMinute sets the counts to zero, and drops types.
func (f *failures) endMinute() {
	f.other = 0
	all := f.all()
	slices.SortFunc(all, func(a, b *failureCount) int { return cmp.Compare(b.seen, a.seen) })
	for i, c := range all {
		if c.count = 0; i >= keptFailures {
			delete(f.byType, c.failureType)
		}
	}
}
