package ledger

import (
	"errors"
	"strconv"
	"strings"
	"time"
)

// authority is the lease on the right to decide. There is one per cluster.
type authority struct {
	owner, leaseID, leasedUntil string

	until  int64  // unix nanoseconds; 0: never expires
	epoch  uint64 // increases with every acquisition
	term   uint64 // Raft term of the entry that acquired it
	member bool   // acquired by a member with Lead; else by a caller with AcquireAuthority
}

// Authority is the state of the lease at the ledger's current time.
type Authority struct {
	Owner   string // "" before the first acquisition
	LeaseID string
	Epoch   uint64
	Until   time.Time // zero: never expires
	Expired bool
}

// Authority returns the state of the lease at the ledger's current time.
func (l *Ledger) Authority() Authority {
	a := &l.authority
	view := Authority{Owner: a.owner, LeaseID: a.leaseID, Epoch: a.epoch, Expired: a.expired(l.now)}
	if a.until > 0 {
		view.Until = time.Unix(0, a.until).UTC()
	}
	return view
}

// heldError returns the error for an acquisition while another owner holds the
// lease.
func (a *authority) heldError() error {
	return errors.New("authority error: lease already held by " + a.owner)
}

func (a *authority) expired(now int64) bool { return a.owner != "" && a.until > 0 && now >= a.until }

// apply acquires the lease for the Raft leader. A lease that a node acquired in
// an earlier term is void, because that node can no longer commit anything.
func (c *Lead) apply(l *Ledger) Result {
	a := &l.authority
	if a.owner != "" && a.owner != c.Owner && l.term <= a.term && !a.expired(l.now) {
		return Result{Err: a.heldError()}
	}
	epoch := max(l.index, a.epoch+1)
	l.raiseLevel(c.Level)
	*a = authority{
		owner: c.Owner, leaseID: strconv.FormatUint(epoch, 10) + "-" + c.Owner,
		leasedUntil: FormatTime(c.Until), until: c.Until.UnixNano(),
		epoch: epoch, term: l.term, member: true,
	}
	return l.respond(a.event(AuthorityAcquired))
}

func (c *Renew) apply(l *Ledger) Result {
	a := &l.authority
	a.until, a.leasedUntil = c.Until.UnixNano(), FormatTime(c.Until)
	return l.respond(a.event(AuthorityRenewed))
}

// apply acquires the lease for a caller of the runtime contract. While a member of
// the cluster holds the lease, the command only names it, if its owner is that member.
func (c *AcquireAuthority) apply(l *Ledger) Result {
	a := &l.authority
	if a.member && a.owner == c.Owner && !a.expired(l.now) {
		return l.nameLease(c.LeaseID, AuthorityAcquired)
	}
	heldByOther := a.owner != c.Owner && !a.expired(l.now)
	if a.owner != "" && (a.member || heldByOther) {
		return Result{Err: a.heldError()}
	}
	*a = authority{
		owner: c.Owner, leaseID: c.LeaseID, leasedUntil: c.LeasedUntil,
		until: parseExpiry(c.LeasedUntil, l.now), epoch: max(l.index, a.epoch+1), term: l.term,
	}
	return l.respond(a.event(AuthorityAcquired))
}

// apply renews the lease of a caller. The lease of a member, which the member renews
// itself, is only named.
func (c *RenewAuthority) apply(l *Ledger) Result {
	a := &l.authority
	switch {
	case a.owner == "" || a.member && a.expired(l.now):
		return Result{Err: errors.New("authority error: no lease currently held")}
	case a.owner != c.Owner:
		return Result{Err: errors.New("authority error: owner mismatch: lease held by " + a.owner)}
	case a.member:
		return l.nameLease(c.LeaseID, AuthorityRenewed)
	}
	a.leaseID, a.leasedUntil, a.until = c.LeaseID, c.LeasedUntil, parseExpiry(c.LeasedUntil, l.now)
	return l.respond(a.event(AuthorityRenewed))
}

// nameLease answers a caller's command about a member's lease with an event of the
// given kind. It gives the lease the caller's id, unless that is "". The lease's end
// stays as it is, because a member may not hold the lease for longer than the other
// nodes rely on. If the lease has the id already, the event is not added.
func (l *Ledger) nameLease(id string, kind EventKind) Result {
	a := &l.authority
	if id == "" || id == a.leaseID {
		return Result{Event: new(a.event(kind))}
	}
	a.leaseID = strings.Clone(id)
	return l.respond(a.event(kind))
}

// parseExpiry parses a caller's leased_until. It returns 0, a lease that never
// expires, for a text that is not a time and for a time that had passed
// already.
func parseExpiry(until string, now int64) int64 {
	t, err := time.Parse(time.RFC3339, until)
	if err != nil || t.UnixNano() <= now {
		return 0
	}
	return t.UnixNano()
}

// event returns an event of kind k with the lease.
func (a *authority) event(k EventKind) Event {
	return Event{Kind: k, A: a.owner, B: a.leaseID, Extra: &Extra{C: a.leasedUntil}}
}

// FormatTime formats t as in the events that the system emits.
func FormatTime(t time.Time) string { return t.UTC().Format(timeFormat) }

const timeFormat = "2006-01-02T15:04:05.000Z"

// apply emits the contract's run events. Other events are ignored: they have
// commands of their own.
func (c *Observe) apply(l *Ledger) Result {
	for _, o := range c.Observations {
		if o.Event >= RunHeartbeat && o.Event <= RunBlockedOnSystem {
			l.emit(Event{Kind: o.Event, A: strings.Clone(o.Subject), B: strings.Clone(o.Detail)})
		}
	}
	return Result{}
}
