package ledger

import (
	"errors"
	"fmt"
	"time"
)

// MaxHold is how long a hold lasts unless it is renewed: a backup whose process
// dies must not block reclaiming for longer.
const MaxHold = 2 * time.Minute

// ErrBackupRunning is returned for a second backup while one is being made.
var ErrBackupRunning = errors.New("a backup is being made already")

// Hold prevents that records and blobs are reclaimed while a backup is made:
// until the given time, at most [MaxHold] from now. The zero time ends the
// hold.
type Hold struct {
	Holder string
	Until  time.Time
}

func (*Hold) Kind() Kind { return KindHold }

// hold is the hold of a backup.
type hold struct {
	holder string
	until  int64 // unix nanoseconds
}

// apply grants the hold to one holder at a time. The hold is in the ledger, so
// that a new authority respects it.
func (c *Hold) apply(l *Ledger) Result {
	if holder, until := l.Holder(); holder != "" && holder != c.Holder {
		return Result{Err: fmt.Errorf("%w, by %s; its hold expires at %s unless renewed", ErrBackupRunning, holder, FormatTime(until))}
	}
	if c.Until.IsZero() {
		l.hold = hold{}
		return Result{}
	}
	l.hold = hold{c.Holder, min(c.Until.UnixNano(), l.now+int64(MaxHold))}
	return Result{}
}

// Holder returns which backup prevents the reclaiming of lanes and blobs, and
// until when, or "" if none does.
func (l *Ledger) Holder() (holder string, until time.Time) {
	if l.hold.until <= l.now {
		return "", time.Time{}
	}
	return l.hold.holder, time.Unix(0, l.hold.until).UTC()
}
