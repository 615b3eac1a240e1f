package scheduler

import (
	"fmt"
	"strings"
	"time"
)

// beingMade is what is wrong with the streams of a new yard.
const beingMade = "the yard's streams are being made"

// unpublished begins a story's reason.
var unpublished = [...]string{History: "history is", Results: "results are", DeadLetters: "dead letters are"}

// reasons tells what is not as it should be: each says what it is, and what
// somebody can do if it does not pass. docs/readiness.md has every one.
func (m *mind) reasons(now time.Time) []string {
	reasons := []string{}
	say := func(format string, args ...any) { reasons = append(reasons, fmt.Sprintf(format, args...)) }
	if m.unmade == beingMade {
		say(beingMade)
	} else if m.unmade != "" {
		say("streams are not as they were made: %s", m.unmade)
	}
	if m.blocked != "" {
		say("%s", m.blocked)
	}
	if !m.trusted().After(now) {
		say("the authority's lease is not certain: nothing is started until it is renewed, here or by another member")
	}
	for story, why := range m.untold {
		if why != "" {
			say("%s not published: %s", unpublished[story], strings.TrimPrefix(why, Story(story).String()+": "))
		}
	}
	for _, lane := range m.lanes {
		if lane.trouble != "" {
			name := fmt.Sprintf("lane %d", lane.number)
			say("%s is not folded: %s", name, strings.TrimPrefix(lane.trouble, name+": "))
		}
	}
	reasons = append(append(reasons, m.away...), m.wrongClocks()...)
	for _, name := range m.cfg.Members {
		if n := m.nodes[name]; (n == nil || n.silent) && now.Sub(m.began) > reassignAfter && m.lacksQuorum() {
			say("member %s is not heard: start it, or mend the network between it and %s", name, m.cfg.Node)
		}
	}
	return reasons
}

// lacksQuorum tells that fewer than a majority of the members are heard.
func (m *mind) lacksQuorum() bool {
	heard := 0
	for _, n := range m.nodes {
		if !n.silent {
			heard++
		}
	}
	return heard <= len(m.cfg.Members)/2
}
