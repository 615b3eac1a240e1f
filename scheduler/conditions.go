package scheduler

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler/outbox"
)

// streamsBeingCreated is the problem of the streams of a new cluster.
const streamsBeingCreated = "the yard's streams are being made"

// unpublishedText begins the reason of each stream that is not published.
var unpublishedText = [...]string{outbox.History: "history is not published", outbox.Results: "results are not published", outbox.DeadLetters: "dead letters are not published"}

// condition is a problem of the cluster that the authority sees: a reason not to be
// ready and, depending on its kind, an event of history.
type condition struct {
	topic string // what it concerns; stays the same while the text changes
	text  string
	kind  ledger.EventKind // RunBlockedOnSystem or RunBlockedOnUser; 0: no event, see operatorTopics.eventKind
}

// conditions returns all current conditions. Each text states what is wrong and what an
// operator can do if it lasts. docs/reference/readiness.md documents every
// text, which a test in internal/docs checks.
func (t *tenure) conditions(now time.Time) (all []condition) {
	add := func(topic, format string, args ...any) {
		text := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ") // of joined errors
		all = append(all, condition{topic, text, t.operator.eventKind(topic)})
	}
	if t.streams.problem == streamsBeingCreated {
		add(topicStreams, streamsBeingCreated)
	} else if t.streams.problem != "" {
		add(topicStreams, "streams are not as they were made: %s", t.streams.problem)
	}
	if t.lanes.blocked != "" {
		add("outbox", "%s", t.lanes.blocked)
	}
	if !t.lease.trusted().After(now) {
		add(topicLease, "the authority's lease is not certain: nothing is started until it is renewed, here or by another member")
	}
	for stream, err := range t.unpublished {
		if err != nil {
			topic := outbox.Stream(stream).String()
			add(topic, "%s: %s", unpublishedText[stream], strings.TrimPrefix(err.Error(), topic+": "))
		}
	}
	for _, lane := range t.lanes.all {
		name := lane.name()
		switch ids := t.lanes.forgotten; {
		case lane.problem != "":
			add(name, "%s is not ingested: %s", name, strings.TrimPrefix(lane.problem, name+": "))
		case lane.held && ids.Lane >= 0:
			add(name, "%s is not ingested: %d ids of forgotten jobs are kept, the maximum, until lane %d is ingested; make that lane readable", name, ids.Count, ids.Lane)
		case lane.full:
			add(name+" full", "%s is full and takes no jobs: %s", name, t.reclaimer.holders(lane.number).remedy())
		}
	}
	for _, text := range t.orphans.awayReasons {
		add(text, "%s", text)
	}
	for _, text := range t.capacity.clockWarnings() {
		add(topicClocks, "%s", text)
	}
	for _, name := range t.capacity.members {
		if n := t.capacity.nodes[name]; (n == nil || n.silent) && now.Sub(t.loop.startedAt) > reassignAfter && t.capacity.lacksQuorum() {
			add("member "+name, "member %s sends no heartbeat: start it, or repair the network between it and %s", name, t.loop.cfg.Node)
		}
	}
	return all
}

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

// note records whether err, the last error about a topic, needs an operator's decision.
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

// eventKind returns the kind of the event that history records about a condition with
// this topic; 0 for no event. An uncertain lease has no event because nothing can be
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

// publish records in history each of the current conditions that stops something and has
// lasted for blockedAfter: once, and again when its kind changes, or when its text changes
// and blockedRepeat has passed.
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
		tooNew := now.Sub(b.since) < blockedAfter
		repeatsSoon := c.kind == b.published.kind && now.Sub(b.publishedAt) < blockedRepeat
		if c == b.published || tooNew || repeatsSoon {
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
