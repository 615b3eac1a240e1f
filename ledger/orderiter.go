package ledger

// orderIter iterates over the jobs of one priority in a waitlist. It finds each
// next job by its predecessor, so it keeps no lock on the tree.
type orderIter struct {
	waitlist *waitlist
	end      uint64 // first key of the next priority
	r        *storedJob
}

// newOrderIter returns an iterator at the first job with a key from begin to
// before end, or nil.
func newOrderIter(wl *waitlist, begin, end uint64) *orderIter {
	it := &orderIter{waitlist: wl, end: end}
	if !it.seek(orderItem{key: begin, r: new(storedJob)}, false) {
		return nil
	}
	return it
}

// next moves to the next job and reports whether there is one.
func (it *orderIter) next() bool { return it.seek(it.r.order(), true) }

func (it *orderIter) seek(from orderItem, skipEqual bool) bool {
	found := false
	it.waitlist.jobs.Ascend(from, func(item orderItem) bool {
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
