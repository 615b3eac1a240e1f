package ledger

// orderIter walks one priority of a line. It looks up each next record by the
// one before, so it holds no lock on the tree.
type orderIter struct {
	line *line
	end  uint64 // first key of the next priority
	r    *record
}

// newOrderIter stands at the first record with a key from begin on; nil if
// there is none before end.
func newOrderIter(ln *line, begin, end uint64) *orderIter {
	it := &orderIter{line: ln, end: end}
	if !it.seek(orderItem{key: begin, r: new(record)}, false) {
		return nil
	}
	return it
}

func (it *orderIter) next() bool { return it.seek(it.r.order(), true) }

func (it *orderIter) seek(from orderItem, skipEqual bool) bool {
	found := false
	it.line.jobs.Ascend(from, func(item orderItem) bool {
		if skipEqual && item.r == from.r {
			return true
		}
		if item.key < it.end {
			it.r, found = item.r, true
		}
		return false
	})
	return found
}
