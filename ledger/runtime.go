package ledger

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// Runtime is the state that the contract's eight commands can produce in a
// ledger without jobs. A program that stores this state in another form creates
// a ledger from it with [FromRuntime].
type Runtime struct {
	At time.Time // the ledger's current time

	Owner, LeaseID, LeasedUntil string    // of the lease; Owner "": no lease is held
	Expires                     time.Time // when the lease expires; zero: never

	Cursor            *string // of the last replay request
	Delivered, Failed uint64  // cumulative, including those in External
	External          []RuntimeDispatch
	Pending, Notified uint64 // number of further dispatches, which no command will name
}

// RuntimeDispatch is an external dispatch, with the fields that commands need.
type RuntimeDispatch struct {
	RequestID, Target string
	Metadata          json.RawMessage // on one line; nil: none
	State             string          // pending, notified, delivered or failed
}

// FromRuntime returns a ledger in the state r, with an empty outbox and epoch
// 0. To apply a single command, r need only contain the dispatch that the
// command names, and the number of the others. Ended dispatches count as ended
// at r.At. An unknown state and a duplicate request id are errors.
func FromRuntime(r Runtime) (*Ledger, error) {
	l := New()
	l.now = r.At.UnixNano()
	l.elapsed, l.wall = l.now, l.now
	l.authority = authority{owner: r.Owner, leaseID: r.LeaseID, leasedUntil: r.LeasedUntil}
	if !r.Expires.IsZero() {
		l.authority.until = r.Expires.UnixNano()
	}
	l.replay.cursor = r.Cursor
	l.counts = SnapshotBacklog{Pending: r.Pending, Notified: r.Notified, Delivered: r.Delivered, Failed: r.Failed}
	l.external.unfinished = int(r.Pending + r.Notified)
	for _, d := range r.External {
		state := slices.Index(externalStates[:], d.State)
		if state < 0 {
			return nil, fmt.Errorf("dispatch %s has the state %q; must be pending, notified, delivered or failed", d.RequestID, d.State)
		}
		dispatch := &externalDispatch{requestID: d.RequestID, target: d.Target, metadata: d.Metadata, state: uint8(state), queued: l.now}
		if state == externalDelivered || state == externalFailed {
			dispatch.ended = l.now
		}
		if replaced := l.addExternal(dispatch); replaced {
			return nil, fmt.Errorf("duplicate dispatch %s", d.RequestID)
		}
	}
	return l, nil
}
