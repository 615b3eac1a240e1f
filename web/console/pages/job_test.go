package pages

import "testing"

// Steps before the last dispatch are folded if there are many.
func TestJobData_Fold(t *testing.T) {
	for dispatches, earlier := range map[int]int{0: 0, 1: 0, 3: 0, 4: 3, 40: 39} {
		d := &jobData{}
		for n := range dispatches {
			for _, kind := range []string{"queued", "notified", "assigned", "failed"} {
				d.Steps = append(d.Steps, step{Kind: kind, Dispatch: uint32(n + 1)})
			}
			d.Steps = append(d.Steps, step{Kind: "acted"}) // is of no dispatch
		}
		all := len(d.Steps)
		d.fold()
		if got := d.EarlierDispatches(); got != earlier || len(d.Earlier)+len(d.Steps) != all {
			t.Errorf("of %d dispatches, %d are folded, and %d of %d steps are shown; want %d folded", dispatches, got, len(d.Earlier)+len(d.Steps), all, earlier)
		}
		if earlier > 0 && (d.Steps[0].Dispatch != uint32(dispatches) || d.Steps[0].Kind != "queued") {
			t.Errorf("of %d dispatches, the first step that is not folded is %+v", dispatches, d.Steps[0])
		}
	}
}
