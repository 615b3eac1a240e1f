package ledger

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// authority is the lease: who decides, and under which epoch.
type authority struct {
	owner, leaseID, leasedUntil string

	until  int64  // unix nanoseconds; 0: never expires
	epoch  uint64 // grows with every acquisition
	term   uint64 // of the entry that acquired it
	member bool   // acquired by a Lead, not by a caller's command
}

// Authority is the lease as it stands at a time.
type Authority struct {
	Owner   string // "" before the first acquisition
	LeaseID string
	Epoch   uint64
	Until   time.Time // zero: never expires
	Expired bool
}

// LeaseHeldError refuses an acquisition while another holds the lease.
type LeaseHeldError struct{ Owner string }

func (e *LeaseHeldError) Error() string {
	return "authority error: lease already held by " + e.Owner
}

// OwnerMismatchError refuses a renewal by anyone but the owner.
type OwnerMismatchError struct{ Owner string }

func (e *OwnerMismatchError) Error() string {
	return "authority error: owner mismatch: lease held by " + e.Owner
}

// ErrNoLease refuses a renewal while nobody holds the lease.
var ErrNoLease = fmt.Errorf("authority error: no lease currently held")

// Authority gives the lease, judged at the ledger's own time.
func (l *Ledger) Authority() Authority {
	a := &l.authority
	view := Authority{Owner: a.owner, LeaseID: a.leaseID, Epoch: a.epoch, Expired: a.expired(l.now)}
	if a.until > 0 {
		view.Until = time.Unix(0, a.until).UTC()
	}
	return view
}

func (a *authority) expired(now int64) bool { return a.owner != "" && a.until > 0 && now >= a.until }

// lead gives the lease to the Raft leader. A lease of an earlier term falls:
// its holder can no longer commit anything.
func (l *Ledger) lead(at Stamp, c *Lead) Result {
	a := &l.authority
	if a.owner != "" && a.owner != c.Owner && at.Term <= a.term && !a.expired(l.now) {
		return Result{Err: &LeaseHeldError{Owner: a.owner}}
	}
	epoch := max(at.Index, a.epoch+1)
	*a = authority{
		owner: c.Owner, leaseID: strconv.FormatUint(epoch, 10) + "-" + c.Owner,
		leasedUntil: FormatTime(c.Until), until: c.Until.UnixNano(),
		epoch: epoch, term: at.Term, member: true,
	}
	return l.authorityEvent(AuthorityAcquired)
}

func (l *Ledger) renew(c *Renew) Result {
	a := &l.authority
	a.until, a.leasedUntil = c.Until.UnixNano(), FormatTime(c.Until)
	return l.authorityEvent(AuthorityRenewed)
}

// acquire is the contract's command. While a member of the yard holds the lease
// nothing changes: who names that member hears of the lease as it stands, and
// anybody else is refused. Handing over is the node's business.
func (l *Ledger) acquire(at Stamp, c *AcquireAuthority) Result {
	a := &l.authority
	if a.member && a.owner == c.Owner && !a.expired(l.now) {
		held := l.lease(AuthorityAcquired)
		return Result{Event: &held}
	}
	if a.owner != "" && (a.member || a.owner != c.Owner && !a.expired(l.now)) {
		return Result{Err: &LeaseHeldError{Owner: a.owner}}
	}
	*a = authority{
		owner: c.Owner, leaseID: c.LeaseID, leasedUntil: c.LeasedUntil,
		until: l.expiry(c.LeasedUntil), epoch: max(at.Index, a.epoch+1), term: at.Term,
	}
	return l.authorityEvent(AuthorityAcquired)
}

func (l *Ledger) renewByCaller(c *RenewAuthority) Result {
	a := &l.authority
	switch {
	case a.owner == "":
		return Result{Err: ErrNoLease}
	case a.member || a.owner != c.Owner:
		return Result{Err: &OwnerMismatchError{Owner: a.owner}}
	}
	a.leaseID, a.leasedUntil, a.until = c.LeaseID, c.LeasedUntil, l.expiry(c.LeasedUntil)
	return l.authorityEvent(AuthorityRenewed)
}

// expiry reads a caller's leased_until: a text that is no time never expires,
// and neither does a time that was past when it was given.
func (l *Ledger) expiry(until string) int64 {
	t, err := time.Parse(time.RFC3339, until)
	if err != nil || t.UnixNano() <= l.now {
		return 0
	}
	return t.UnixNano()
}

func (l *Ledger) authorityEvent(k EventKind) Result { return l.answer(l.lease(k)) }

// lease is an event about the lease as it stands.
func (l *Ledger) lease(k EventKind) Event {
	a := &l.authority
	return Event{Kind: k, A: a.owner, B: a.leaseID, Extra: &Extra{C: a.leasedUntil}}
}

// answer emits an event that answers a contract command.
func (l *Ledger) answer(e Event) Result {
	l.outbox.emit(e)
	return Result{Event: &e}
}

// FormatTime writes a time as the yard's own events do.
func FormatTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// observe emits the contract's run events. Others have commands of their own
// and are left out.
func (l *Ledger) observe(c *Observe) Result {
	for _, o := range c.Observations {
		if o.Event >= RunHeartbeat && o.Event <= RunBlockedOnSystem {
			l.outbox.emit(Event{Kind: o.Event, A: strings.Clone(o.Subject), B: strings.Clone(o.Detail)})
		}
	}
	return Result{}
}
