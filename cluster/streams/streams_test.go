package streams

import (
	"testing"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
)

// TestLayout_FitsIntoStore checks that the bounds of all streams together fit into the
// store, also with lanes of a yard that an earlier release has created, which have seven
// twentieths of it.
func TestLayout_FitsIntoStore(t *testing.T) {
	const oldShare, newShare = 7, 5
	for _, store := range []int64{256 << 20, 10 << 30, 60 << 30, 1 << 40} {
		for _, share := range []int64{oldShare, newShare} {
			c := &embedded.Config{MaxStore: store}
			l := Layout{Identities: make([]string, 3)}.withDefaults(c)
			lanes := 3 * min(8<<30, store/20*share/3)
			l.limitRelocated(c, lanes)
			sum := lanes + l.MaxRelocated + l.MaxBlobBytes + l.ResultBytes + 2*l.HistoryBytes + l.LetterBytes + l.LogBytes
			for bucket := range boardSpecs {
				sum += boardConfig(bucket, l, store).MaxBytes
			}
			if sum > store {
				t.Errorf("of a store of %d bytes, lanes of %d bytes and other streams reserve %d", store, lanes, sum)
			}
			least := store / 20
			if share == newShare {
				least *= 3
			}
			if l.MaxRelocated < min(least, 8<<30) || l.MaxRelocated > 8<<30 {
				t.Errorf("of a store of %d bytes with lanes of %d bytes, relocated records get %d", store, lanes, l.MaxRelocated)
			}
		}
	}
}
