package membership

import (
	"testing"
	"time"
)

// TestKeeper_CopiesOnTheirWay: a copy that is behind at one look and was current
// at another is current; one that never was, or was long ago, is behind.
func TestKeeper_CopiesOnTheirWay(t *testing.T) {
	_, k := newYard(t)
	at := time.Unix(1000, 0)
	for i, look := range []struct {
		after      time.Duration
		busy, lost bool // what the leader says of either copy
		want       [2]bool
	}{
		{0, true, false, [2]bool{true, false}},
		{time.Second, false, false, [2]bool{true, false}},
		{levelFor - 2*time.Second, false, false, [2]bool{true, false}},
		{time.Second, false, false, [2]bool{false, false}},
		{time.Second, true, true, [2]bool{true, true}},
	} {
		at = at.Add(look.after)
		streams := []StreamCopies{{Stream: "YARD_JOBS_0", Want: 2, Copies: []Copy{
			{ID: "n2-0000000a", Current: look.busy, Lag: 1}, {ID: "n3-0000000a", Current: look.lost, Lag: 700},
		}}}
		all := k.settle(streams, at)
		got := [2]bool{streams[0].Copies[0].Current, streams[0].Copies[1].Current}
		if got != look.want || all != (got == [2]bool{true, true}) {
			t.Errorf("look %d: %v, all %v, want %v", i, got, all, look.want)
		}
	}
}
