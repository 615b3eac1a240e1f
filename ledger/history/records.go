package history

import "github.com/yardmaster-dev/yardmaster/job"

// records predicts where the next record is from those before it in a message.
type records struct {
	last job.Position
	seqs map[uint8]uint64 // sequence of the last record, by lane
}

// nextMessage returns the place of the first record of the next message of the lane.
func (r *records) nextMessage() job.Position {
	return job.Position{Lane: r.last.Lane, Seq: r.last.Seq + 1}
}

// nextInMessage returns the place of the next record of the message.
func (r *records) nextInMessage() job.Position {
	return job.Position{Lane: r.last.Lane, Seq: r.last.Seq, Index: r.last.Index + 1}
}

// add adds a record.
func (r *records) add(p job.Position) {
	if r.seqs == nil {
		r.seqs = make(map[uint8]uint64)
	}
	r.last, r.seqs[p.Lane] = p, p.Seq
}
