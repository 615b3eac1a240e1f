package scheduler

import (
	"errors"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Topics of conditions that the code distinguishes.
const (
	topicStreams = "streams"
	topicLease   = "lease"
	topicClocks  = "clocks"
)

// OperatorError wraps an error that does not go away without an operator's decision.
type OperatorError struct{ Err error }

func (e *OperatorError) Error() string { return e.Err.Error() }
func (e *OperatorError) Unwrap() error { return e.Err }

// setNeedsOperator records whether err, the last error about a topic, needs an
// operator's decision. A nil err clears the topic.
func (t *tenure) setNeedsOperator(topic string, err error) {
	var operator *OperatorError
	var mismatch *streamMismatchError
	if errors.As(err, &operator) || errors.As(err, &mismatch) {
		t.needsOperator[topic] = true
	} else {
		delete(t.needsOperator, topic)
	}
}

// blockedEventKind returns the kind of the event that history records about a
// condition; 0 for none. An uncertain lease has no event because nothing can be
// committed meanwhile, and a wrong clock has none because it stops nothing.
func (t *tenure) blockedEventKind(topic string) ledger.EventKind {
	switch {
	case topic == topicLease, topic == topicClocks:
		return 0
	case t.needsOperator[topic], strings.HasSuffix(topic, " full"):
		return ledger.RunBlockedOnUser
	}
	return ledger.RunBlockedOnSystem
}

// Parameters of publishBlocked. Conditions that pass quickly are not recorded, and a
// condition whose text changes often is recorded once in a while.
const (
	blockedAfter     = time.Second      // how long a condition must last
	blockedRepeat    = 30 * time.Second // minimum time between two texts about one topic
	maxBlockedReason = 512              // bytes of a text
)

// blocker is a lasting condition and what history records about it.
type blocker struct {
	since       time.Time
	published   condition // the one last recorded
	publishedAt time.Time // when it was recorded; zero: not yet
}

// publishBlocked records in history each condition that stops something: once, and
// again when its text or kind changes. The conditions are those that readiness
// reports.
func (t *tenure) publishBlocked(now time.Time) {
	current := map[string]bool{}
	for _, c := range t.conditions(now) {
		if c.kind == 0 {
			continue
		}
		current[c.topic] = true
		b := t.blockers[c.topic]
		if b == nil {
			b = &blocker{since: now}
			t.blockers[c.topic] = b
		}
		if c == b.published || now.Sub(b.since) < blockedAfter || c.kind == b.published.kind && now.Sub(b.publishedAt) < blockedRepeat {
			continue
		}
		b.published, b.publishedAt = c, now
		t.submitCommand(&ledger.Observe{Observations: []ledger.Observation{{Event: c.kind, Subject: t.cfg.Node, Detail: truncate(c.text)}}}, nil)
	}
	for topic := range t.blockers {
		if !current[topic] {
			delete(t.blockers, topic)
		}
	}
}

// truncate shortens text to maxBlockedReason bytes.
func truncate(text string) string {
	if len(text) <= maxBlockedReason {
		return text
	}
	return strings.ToValidUTF8(text[:maxBlockedReason-3], "") + "…"
}
