package ledger

import (
	"errors"
	"fmt"
	"time"
)

// MaxHold is the longest that a hold lasts unless it is renewed: whoever makes
// a backup and dies must not keep the lanes from being reclaimed.
const MaxHold = 2 * time.Minute

// ErrHeld refuses a second backup while one is made.
var ErrHeld = errors.New("a backup is being made already")

// Hold keeps what the ledger points to from being reclaimed, for a backup:
// until a time, at most MaxHold from now, or, with the zero time, no longer.
type Hold struct {
	Holder string
	Until  time.Time
}

func (*Hold) Kind() Kind { return KindHold }

// hold is who makes a backup.
type hold struct {
	holder string
	until  int64 // unix nanoseconds
}

// holdBack gives the hold to one holder at a time. It is in the ledger, so that
// the next authority keeps to it, and it runs out by itself.
func (l *Ledger) holdBack(c *Hold) Result {
	if holder, until := l.Held(); holder != "" && holder != c.Holder {
		return Result{Err: fmt.Errorf("%w, by %s; it ends, or its hold runs out, by %s", ErrHeld, holder, FormatTime(until))}
	}
	if c.Until.IsZero() {
		l.held = hold{}
		return Result{}
	}
	l.held = hold{c.Holder, min(c.Until.UnixNano(), l.now+int64(MaxHold))}
	return Result{}
}

// Held tells who holds back the reclaiming of lanes and blobs, and until when;
// "" if nobody does.
func (l *Ledger) Held() (holder string, until time.Time) {
	if l.held.until <= l.now {
		return "", time.Time{}
	}
	return l.held.holder, time.Unix(0, l.held.until).UTC()
}
