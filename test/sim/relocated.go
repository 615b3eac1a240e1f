package sim

import (
	"context"
	"fmt"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Relocate implements scheduler.Lanes.
func (v lanesView) Relocate(ctx context.Context, number uint8, _, space uint64, needed []ledger.NeededRecord) (seqs []uint64, size uint64, err error) {
	for _, n := range needed {
		if size+recordBytes > space {
			break
		}
		from := n.Position(number)
		r, err := v.sim.lanes.load(ctx, v.process, from, n.Job, false)
		if err != nil {
			return seqs, size, err
		}
		key := fmt.Sprintf("relocate %s %d@%d.%d", v.id, from.Lane, from.Seq, from.Index)
		to, err := askLane(ctx, v.process, job.RelocatedLane, key, func(*lane) (uint64, error) {
			to := v.sim.lanes.storeRelocated(r, n.Job)
			v.sim.trace("%s relocates %d@%d.%d to %d", v.id, from.Lane, from.Seq, from.Index, to)
			if v.sim.minorFaultsActive() && v.sim.chance("unanswered "+key, 100) {
				return 0, errNoAnswer
			}
			return to, nil
		})
		if err != nil {
			return seqs, size, err
		}
		seqs, size = append(seqs, to), size+recordBytes
	}
	return seqs, size, nil
}

// storeRelocated appends a copy of a record to the stream of relocated records.
func (s *lanes) storeRelocated(r job.Record, owner job.ID) (seq uint64) {
	seq = uint64(len(s.relocated.messages)) + 1
	r.Position, r.Owner = job.Position{Lane: job.RelocatedLane, Seq: seq}, owner
	s.relocated.messages = append(s.relocated.messages, []job.Record{r})
	s.sim.report.Relocated++
	return seq
}
