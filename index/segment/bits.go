package segment

import (
	"encoding/binary"
	"iter"
	"math/bits"
)

// MaxDocuments is the largest number of documents of a segment.
const MaxDocuments = 1 << 16

// bitmap is a set of documents of a segment.
type bitmap [MaxDocuments / 64]uint64

func (b *bitmap) add(n uint16)           { b[n/64] |= 1 << (n % 64) }
func (b *bitmap) contains(n uint16) bool { return b[n/64]&(1<<(n%64)) != 0 }

// addRange adds the documents from from to before to.
func (b *bitmap) addRange(from, to int) {
	for from < to && from%64 != 0 {
		b.add(uint16(from))
		from++
	}
	for ; from+64 <= to; from += 64 {
		b[from/64] = ^uint64(0)
	}
	for ; from < to; from++ {
		b.add(uint16(from))
	}
}

func (b *bitmap) and(o *bitmap) {
	for i := range b {
		b[i] &= o[i]
	}
}

func (b *bitmap) or(o *bitmap) {
	for i := range b {
		b[i] |= o[i]
	}
}

func (b *bitmap) andNot(o *bitmap) {
	for i := range b {
		b[i] &^= o[i]
	}
}

func (b *bitmap) not() {
	for i := range b {
		b[i] = ^b[i]
	}
}

func (b *bitmap) empty() bool {
	for _, w := range b {
		if w != 0 {
			return false
		}
	}
	return true
}

func (b *bitmap) count() int { return countWords(b[:]) }

func countWords(words []uint64) int {
	n := 0
	for _, w := range words {
		n += bits.OnesCount64(w)
	}
	return n
}

// all yields the documents in their order, or backwards.
func (b *bitmap) all(backwards bool) iter.Seq[uint16] {
	return func(yield func(uint16) bool) {
		for i := range b {
			if backwards {
				i = len(b) - 1 - i
			}
			for w := b[i]; w != 0; {
				n := bits.TrailingZeros64(w)
				if backwards {
					n = 63 - bits.LeadingZeros64(w)
				}
				w &^= 1 << n
				if !yield(uint16(i*64 + n)) {
					return
				}
			}
		}
	}
}

const (
	bitmapSize = MaxDocuments / 8 // bytes
	maxListed  = bitmapSize / 2   // documents of a posting that is not a bitmap; the differences have 1 or 2 bytes
)

// appendPosting appends a sorted list of documents: the differences of those that follow each
// other, or a bitmap if that is hardly larger.
func appendPosting(b []byte, docs []uint16) []byte {
	if len(docs) > maxListed {
		var set bitmap
		for _, n := range docs {
			set.add(n)
		}
		for _, w := range set {
			b = binary.LittleEndian.AppendUint64(b, w)
		}
		return b
	}
	last := uint16(0)
	for _, n := range docs {
		b = binary.AppendUvarint(b, uint64(n-last))
		last = n
	}
	return b
}

// addPosting adds count documents that [appendPosting] appended to a set.
func (d *decoder) addPosting(set *bitmap, count int) {
	if count > maxListed {
		words := d.bytes(bitmapSize)
		for i := range set {
			if d.err == nil {
				set[i] |= binary.LittleEndian.Uint64(words[i*8:])
			}
		}
		return
	}
	last := uint16(0)
	for range count {
		last += uint16(d.uvarint())
		if d.err != nil {
			return
		}
		set.add(last)
	}
}
