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

// apply acquires the lease for a caller of the runtime contract. It changes
// nothing while a member of the cluster holds the lease: the answer is the
// current lease if the command names that member, and an error if not.
func (c *AcquireAuthority) apply(l *Ledger) Result {
	a := &l.authority
	if a.member && a.owner == c.Owner && !a.expired(l.now) {
		return Result{Event: new(a.event(AuthorityAcquired))}
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

// apply refuses to renew the lease of a member.
func (c *RenewAuthority) apply(l *Ledger) Result {
	a := &l.authority
	switch {
	case a.owner == "":
		return Result{Err: errors.New("authority error: no lease currently held")}
	case a.member || a.owner != c.Owner:
		return Result{Err: errors.New("authority error: owner mismatch: lease held by " + a.owner)}
	}
	a.leaseID, a.leasedUntil, a.until = c.LeaseID, c.LeasedUntil, parseExpiry(c.LeasedUntil, l.now)
	return l.respond(a.event(AuthorityRenewed))
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
