package roster

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// Log is what a door tells of this node's log, and what it asks of others'.
type Log struct {
	// Last is how far the log reaches now, for certain.
	Last func() uint64
	// Fresh says that the node has promised nothing when it started: its log may
	// be begun again.
	Fresh bool
	// Floor is how far the log of the member with a [Seat.ID] has reached at
	// least, 0 if nobody knows.
	Floor func(id string) uint64
	// Behind is called when a member says that it has seen more of this node's
	// log than there is.
	Behind func(error)
}

// Keep has the door refuse members whose logs have lost their ends, and tell
// the others where this node's is.
//
// A member's log loses its end when an older copy of its directory is put back.
// It would vote, and count, without what it has acknowledged; and its own files
// fit each other, so only others can tell. They look when they first meet a
// process of that member: what it acknowledges afterwards may be later than
// what it said of itself.
func (d *Door) Keep(log Log) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.logs, d.self.Fresh = log, log.Fresh
}

// AskBehind asks the other members, a second at most, whether they have seen
// more of this node's log than there is. Who does not answer is passed over.
func (d *Door) AskBehind() error {
	addrs := d.others()
	errs := make([]error, len(addrs))
	var asks sync.WaitGroup
	for i, addr := range addrs {
		asks.Go(func() {
			conn, answer, err := d.meet(addr, forRaft, time.Second)
			if err == nil {
				conn.Close()
			}
			if answer.Behind {
				errs[i] = &RefusedError{Peer: d.nameOf(addr), Reason: answer.Refused}
			}
		})
	}
	asks.Wait()
	return errors.Join(errs...)
}

// behind says that their log has lost its end, or "".
func (d *Door) behind(theirs *hello) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	seat := theirs.seat()
	if d.logs.Floor == nil || theirs.Log == nil || theirs.Life == "" || d.met[seat.ID()] == theirs.Life {
		return ""
	}
	if least := d.logs.Floor(seat.ID()); !theirs.Fresh && *theirs.Log < least {
		return fmt.Sprintf("has seen the log of %s at entry %d, and it came back with one that ends at %d: an older copy of its data directory was put there",
			seat.Node, least, *theirs.Log)
	}
	d.met[seat.ID()] = theirs.Life
	return ""
}

func (d *Door) tellBehind(err error) {
	d.mu.Lock()
	tell := d.logs.Behind
	d.mu.Unlock()
	if tell != nil {
		tell(err)
	}
}
