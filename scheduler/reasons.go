package scheduler

import (
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

// reasons returns the texts of all conditions.
func (t *tenure) reasons(now time.Time) []string {
	reasons := []string{}
	for _, c := range t.conditions(now) {
		reasons = append(reasons, c.text)
	}
	return reasons
}

// conditions returns all current conditions. Each text says what is wrong and what an
// operator can do if it does not pass. docs/reference/readiness.md documents every
// text, which a test in internal/docs checks.
func (t *tenure) conditions(now time.Time) (all []condition) {
	topic := ""
	add := func(format string, args ...any) {
		all = append(all, condition{topic, fmt.Sprintf(format, args...), t.operator.eventKind(topic)})
	}
	topic = topicStreams
	if t.streams.problem == streamsBeingCreated {
		add(streamsBeingCreated)
	} else if t.streams.problem != "" {
		add("streams are not as they were made: %s", t.streams.problem)
	}
	topic = "outbox"
	if t.lanes.blocked != "" {
		add("%s", t.lanes.blocked)
	}
	topic = topicLease
	if !t.lease.trusted().After(now) {
		add("the authority's lease is not certain: nothing is started until it is renewed, here or by another member")
	}
	for stream, err := range t.unpublished {
		if topic = outbox.Stream(stream).String(); err != nil {
			add("%s: %s", unpublishedText[stream], strings.TrimPrefix(err.Error(), topic+": "))
		}
	}
	for _, lane := range t.lanes.all {
		if topic = lane.name(); lane.problem != "" {
			add("%s is not ingested: %s", topic, strings.TrimPrefix(lane.problem, topic+": "))
		} else if topic += " full"; lane.full {
			add("%s is full and takes no jobs: let those that lie in it end, or requeue elsewhere what cannot; nats.max_store says how large lanes are", lane.name())
		}
	}
	for _, text := range t.orphans.awayRunners {
		topic = text
		add("%s", text)
	}
	topic = topicClocks
	for _, text := range t.capacity.clockWarnings() {
		add("%s", text)
	}
	for _, name := range t.capacity.members {
		topic = "member " + name
		if n := t.capacity.nodes[name]; (n == nil || n.silent) && now.Sub(t.loop.startedAt) > reassignAfter && t.capacity.lacksQuorum() {
			add("member %s sends no heartbeat: start it, or repair the network between it and %s", name, t.loop.cfg.Node)
		}
	}
	return all
}
