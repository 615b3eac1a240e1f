package scheduler

import (
	"errors"
	"strings"
	"time"

	"yardmaster/ledger"
)

// What troubles are about that need to be known apart.
const (
	aboutStreams = "streams"
	aboutLease   = "lease"
	aboutClocks  = "clocks"
)

// DecideError is an error that time does not mend: somebody has to decide what
// is to be done.
type DecideError struct{ Err error }

func (e *DecideError) Error() string { return e.Err.Error() }
func (e *DecideError) Unwrap() error { return e.Err }

// decidable notes whether the last error about something waits for somebody's
// decision; nil is no error.
func (m *mind) decidable(about string, err error) {
	var decide *DecideError
	var strange *strangeLaneError
	if errors.As(err, &decide) || errors.As(err, &strange) {
		m.stuck[about] = true
	} else {
		delete(m.stuck, about)
	}
}

// kindOf is how history tells of a trouble. Without a certain lease nothing can
// be committed, so that the next tenure may not claim it any more; and a wrong
// clock stops nothing.
func (m *mind) kindOf(about string) ledger.EventKind {
	switch {
	case about == aboutLease, about == aboutClocks:
		return 0
	case m.stuck[about], strings.HasSuffix(about, " full"):
		return ledger.RunBlockedOnUser
	}
	return ledger.RunBlockedOnSystem
}

// When history tells of a trouble: not of one that passes by itself, and not
// each time that an error is worded otherwise.
const (
	blockedFor   = time.Second
	blockedAgain = 30 * time.Second // at least between two texts about one thing
	maxBlocked   = 512              // bytes of a reason
)

// blocker is a trouble that lasts.
type blocker struct {
	since time.Time
	told  trouble
	at    time.Time // when it was told; zero: not yet
}

// tellBlocked tells history of each trouble that stops something, once, and
// again if it becomes another one. They are those that readiness names.
func (m *mind) tellBlocked(now time.Time) {
	standing := map[string]bool{}
	for _, t := range m.troubles(now) {
		if t.kind == 0 {
			continue
		}
		standing[t.about] = true
		b := m.blockers[t.about]
		if b == nil {
			b = &blocker{since: now}
			m.blockers[t.about] = b
		}
		if t == b.told || now.Sub(b.since) < blockedFor || t.kind == b.told.kind && now.Sub(b.at) < blockedAgain {
			continue
		}
		b.told, b.at = t, now
		m.queue(&ledger.Observe{Observations: []ledger.Observation{{Event: t.kind, Subject: m.cfg.Node, Detail: clip(t.text)}}}, nil)
	}
	for about := range m.blockers {
		if !standing[about] {
			delete(m.blockers, about)
		}
	}
}

// clip cuts a text that an error made long.
func clip(text string) string {
	if len(text) <= maxBlocked {
		return text
	}
	return strings.ToValidUTF8(text[:maxBlocked-3], "") + "…"
}
