package series

import (
	"encoding/binary"
	"math/bits"
	"time"
)

// The cells of a histogram are for microseconds: one for each value below 16, and 16 for each
// further power of two. The middle of a cell is at most 3.2 % away from the values in it.
const (
	cellBits = 4
	cells    = 640 // up to 52 days
	maxShift = 5   // at which a cell has two powers of two
)

// cellOf returns the cell of a duration in nanoseconds. Those that are out of range are in the first
// or the last cell.
func cellOf(nanos int64) int {
	v := uint64(max(nanos, 0)) / 1000
	if v < 1<<cellBits {
		return int(v)
	}
	exponent := bits.Len64(v) - cellBits - 1
	return min(exponent<<cellBits+int(v>>exponent), cells-1)
}

// middleOf returns the middle of the values in a cell.
func middleOf(cell int) time.Duration {
	if cell < 2<<cellBits {
		return time.Duration(cell)*time.Microsecond + 500
	}
	exponent := cell>>cellBits - 1
	low := (cell - exponent<<cellBits) << exponent
	return time.Duration(low)*time.Microsecond + time.Duration(500<<exponent)
}

// histogram counts durations. All counts are in the cells from low to before high.
type histogram struct {
	low, high int
	counts    [cells]uint32
}

// add counts a duration in nanoseconds.
func (h *histogram) add(nanos int64) { h.addTo(cellOf(nanos), 1) }

func (h *histogram) addTo(cell int, count uint32) {
	if h.high == 0 {
		h.low, h.high = cell, cell+1
	}
	h.low, h.high = min(h.low, cell), max(h.high, cell+1)
	h.counts[cell] += count
}

// addAll adds the counts of other.
func (h *histogram) addAll(other *histogram) {
	for cell := other.low; cell < other.high; cell++ {
		if count := other.counts[cell]; count > 0 {
			h.addTo(cell, count)
		}
	}
}

func (h *histogram) reset() {
	clear(h.counts[h.low:h.high])
	h.low, h.high = 0, 0
}

// append appends the histogram with 2^shift cells joined to one: the number of joined cells that
// have counts, and for each of them the distance from the one before and the count.
func (h *histogram) append(b []byte, shift int) []byte {
	var pairs [2 * cells]uint64
	n, last := 0, 0
	for cell := h.low; cell < h.high; {
		joined := cell >> shift
		count := uint64(0)
		for ; cell < h.high && cell>>shift == joined; cell++ {
			count += uint64(h.counts[cell])
		}
		if count > 0 {
			pairs[n], pairs[n+1] = uint64(joined-last), count
			n, last = n+2, joined
		}
	}
	b = binary.AppendUvarint(b, uint64(n/2))
	for _, v := range pairs[:n] {
		b = binary.AppendUvarint(b, v)
	}
	return b
}

// occupied returns how many cells have counts if 2^shift of them are joined.
func (h *histogram) occupied(shift int) (n int) {
	last := -1
	for cell := h.low; cell < h.high; cell++ {
		if h.counts[cell] > 0 && cell>>shift != last {
			n, last = n+1, cell>>shift
		}
	}
	return n
}

// readHistogram calls add with the cells and counts of an encoded histogram. A count of joined cells
// is divided among them.
func readHistogram(r *reader, shift int, add func(cell int, count uint64)) {
	joined := 0
	for n := r.count(cells); n > 0; n-- {
		joined += int(r.uvarint() & 0xffff)
		count := r.uvarint()
		first := joined << shift
		if r.failed || first >= cells {
			r.fail()
			return
		}
		width := min(1<<shift, cells-first)
		share, rest := count/uint64(width), count%uint64(width)
		for i := range width {
			if part := share + b2u(uint64(i) < rest); part > 0 {
				add(first+i, part)
			}
		}
	}
}

func b2u(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// sums is a histogram of a longer time.
type sums [cells]uint64

// Quantiles are of a number of durations; zero if there are none.
type Quantiles struct {
	Count    uint64
	P50, P99 time.Duration
}

// quantiles returns the quantiles by the nearest rank.
func (s *sums) quantiles() (q Quantiles) {
	for _, count := range s {
		q.Count += count
	}
	q.P50, q.P99 = s.atRank((q.Count+1)/2), s.atRank(q.Count-q.Count/100)
	return q
}

// atRank returns the middle of the cell that has the duration of a rank, from 1 on; 0 for rank 0.
func (s *sums) atRank(rank uint64) time.Duration {
	if rank == 0 {
		return 0
	}
	seen := uint64(0)
	for cell, count := range s {
		if seen += count; seen >= rank {
			return middleOf(cell)
		}
	}
	return 0
}
