package ledger

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// Runtime is what the contract's eight commands can have made of a ledger: the
// whole state of one that knows no jobs. Whoever keeps it in a form of its own
// gets a ledger back with [Restore].
type Runtime struct {
	At time.Time // the ledger's time from here on

	Owner, LeaseID, LeasedUntil string    // of the lease; Owner "": nobody holds it
	Expires                     time.Time // of the lease; zero: never

	Cursor            *string // of the last replay request
	Delivered, Failed uint64  // cumulative, with those in Own
	Own               []OwnDispatch
	Pending, Notified uint64 // further dispatches, of which no command will speak
}

// OwnDispatch is a caller's own dispatch as far as commands ask for it.
type OwnDispatch struct {
	Request, Target string
	Metadata        json.RawMessage // on one line; nil: none
	State           string          // pending, notified, delivered or failed
}

// Restore makes the ledger that stands as r says, with nothing to tell and the
// epoch 0. It may be given a single command and the dispatch that this is
// about, and count the others. Ended dispatches count as ended at r.At. An unknown state and a
// request id that stands there twice are errors.
func Restore(r Runtime) (*Ledger, error) {
	l := New()
	l.now = r.At.UnixNano()
	l.authority = authority{owner: r.Owner, leaseID: r.LeaseID, leasedUntil: r.LeasedUntil}
	if !r.Expires.IsZero() {
		l.authority.until = r.Expires.UnixNano()
	}
	l.replay.cursor = r.Cursor
	l.counts = Counts{Pending: r.Pending, Notified: r.Notified, Delivered: r.Delivered, Failed: r.Failed}
	l.own.unfinished = int(r.Pending + r.Notified)
	for _, d := range r.Own {
		state := slices.Index(ownStates[:], d.State)
		if state < 0 {
			return nil, fmt.Errorf("dispatch %s has the state %q; must be pending, notified, delivered or failed", d.Request, d.State)
		}
		own := &ownRecord{request: d.Request, target: d.Target, metadata: d.Metadata, state: uint8(state), queued: l.now}
		switch state {
		case ownPending:
			l.counts.Pending++
		case ownNotified:
			l.counts.Notified++
		default:
			own.ended = l.now
			l.own.finished.Set(ownFinish{l.now, d.Request})
			l.own.unfinished--
		}
		l.own.unfinished++
		if _, twice := l.own.byID.Set(d.Request, own); twice {
			return nil, fmt.Errorf("dispatch %s is there twice", d.Request)
		}
	}
	return l, nil
}
