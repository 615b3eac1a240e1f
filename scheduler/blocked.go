package scheduler

import (
	"errors"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler/outbox"
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

// operatorTopics are the topics whose last error needs an operator's decision. They
// belong to the loop's goroutine.
type operatorTopics map[string]bool

// note records err, the last error about a topic. A nil err clears the topic.
func (o operatorTopics) note(topic string, err error) {
	var operator *OperatorError
	var mismatch *streamMismatchError
	var unpublished *outbox.MismatchError
	if errors.As(err, &operator) || errors.As(err, &mismatch) || errors.As(err, &unpublished) {
		o[topic] = true
	} else {
		delete(o, topic)
	}
}

// eventKind returns the kind of the event that history records about a
// condition; 0 for none. An uncertain lease has no event because nothing can be
// committed meanwhile, and a wrong clock has none because it stops nothing.
func (o operatorTopics) eventKind(topic string) ledger.EventKind {
	switch {
	case topic == topicLease, topic == topicClocks:
		return 0
	case o[topic], strings.HasSuffix(topic, " full"):
		return ledger.RunBlockedOnUser
	}
	return ledger.RunBlockedOnSystem
}

// Parameters of blockers. Conditions that pass quickly are not recorded, and a
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

// blockers are the lasting conditions, by topic. It belongs to the loop's goroutine.
type blockers struct {
	loop    *eventLoop
	byTopic map[string]*blocker
}

// publish records in history each of the current conditions that stops something: once,
// and again when its text or kind changes.
func (bs *blockers) publish(conditions []condition, now time.Time) {
	current := map[string]bool{}
	for _, c := range conditions {
		if c.kind == 0 {
			continue
		}
		current[c.topic] = true
		b := bs.byTopic[c.topic]
		if b == nil {
			b = &blocker{since: now}
			bs.byTopic[c.topic] = b
		}
		if c == b.published || now.Sub(b.since) < blockedAfter || c.kind == b.published.kind && now.Sub(b.publishedAt) < blockedRepeat {
			continue
		}
		b.published, b.publishedAt = c, now
		bs.loop.submit(&ledger.Observe{Observations: []ledger.Observation{{Event: c.kind, Subject: bs.loop.cfg.Node, Detail: truncate(c.text)}}}, nil)
	}
	for topic := range bs.byTopic {
		if !current[topic] {
			delete(bs.byTopic, topic)
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
