package scheduler

import (
	"fmt"
	"strings"
	"time"

	"yardmaster/ledger"
)

// beingMade is what is wrong with the streams of a new yard.
const beingMade = "the yard's streams are being made"

// unpublished begins a story's reason.
var unpublished = [...]string{History: "history is not published", Results: "results are not published", DeadLetters: "dead letters are not published"}

// trouble is something that is not as it should be: a reason not to be ready
// and, by its kind, something that history tells of.
type trouble struct {
	about string // what it concerns, of which its text tells more
	text  string
	kind  ledger.EventKind // RunBlockedOnSystem or RunBlockedOnUser; 0: it stops nothing, or cannot be told
}

// reasons are the texts of all troubles.
func (m *mind) reasons(now time.Time) []string {
	reasons := []string{}
	for _, t := range m.troubles(now) {
		reasons = append(reasons, t.text)
	}
	return reasons
}

// troubles tells what is not as it should be: each says what it is, and what
// somebody can do if it does not pass. docs/readiness.md has every one.
func (m *mind) troubles(now time.Time) (all []trouble) {
	about := ""
	say := func(format string, args ...any) {
		all = append(all, trouble{about, fmt.Sprintf(format, args...), m.kindOf(about)})
	}
	about = aboutStreams
	if m.unmade == beingMade {
		say(beingMade)
	} else if m.unmade != "" {
		say("streams are not as they were made: %s", m.unmade)
	}
	about = "outbox"
	if m.blocked != "" {
		say("%s", m.blocked)
	}
	about = aboutLease
	if !m.trusted().After(now) {
		say("the authority's lease is not certain: nothing is started until it is renewed, here or by another member")
	}
	for story, why := range m.untold {
		if about = Story(story).String(); why != "" {
			say("%s: %s", unpublished[story], strings.TrimPrefix(why, about+": "))
		}
	}
	for _, lane := range m.lanes {
		if about = lane.name(); lane.trouble != "" {
			say("%s is not folded: %s", about, strings.TrimPrefix(lane.trouble, about+": "))
		} else if about += " full"; lane.full {
			say("%s is full and takes no jobs: let those that lie in it end, or requeue elsewhere what cannot; nats.max_store says how large lanes are", lane.name())
		}
	}
	for _, text := range m.away {
		about = text
		say("%s", text)
	}
	about = aboutClocks
	for _, text := range m.wrongClocks() {
		say("%s", text)
	}
	for _, name := range m.members {
		about = "member " + name
		if n := m.nodes[name]; (n == nil || n.silent) && now.Sub(m.began) > reassignAfter && m.lacksQuorum() {
			say("member %s is not heard: start it, or mend the network between it and %s", name, m.cfg.Node)
		}
	}
	return all
}

// lacksQuorum tells that fewer than a majority of the members are heard.
func (m *mind) lacksQuorum() bool {
	heard := 0
	for _, name := range m.members {
		if n := m.nodes[name]; n != nil && !n.silent {
			heard++
		}
	}
	return heard <= len(m.members)/2
}
