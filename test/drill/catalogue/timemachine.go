package catalogue

import (
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/drill"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// Drills that compare states rebuilt from history with what nodes showed.
var history = []drill.Drill{
	{
		Number: 46, Name: "time-machine", Breaks: "kill the authority, hand it over, pause and resume queues, add and remove some, while nodes show queues and snapshots at 1,000 random moments",
		Promises: "the state that is rebuilt from history as of each of these events is what the node showed, and no job is counted twice or not at all",
		Timeout:  12 * time.Minute, Run: timeMachine,
	},
}

// timeMachine collects what nodes show while the yard works and is broken, and compares it with
// the states as of the same events.
func timeMachine(s *drill.Harness) {
	// Completed jobs stay counted when the ledger forgets them, which it does all the time.
	s.Ask("retention.set", map[string]any{"finished": map[string]any{"count": 50}}, nil)
	s.StartSteadyLoadAt(50 * time.Millisecond)
	wanted := s.Repeats(10) * 100
	sightings := s.StartSightings(wanted)
	for round := 0; sightings.Seen() < wanted; round++ {
		must.Do(s.Ctx.Err())
		changed := fmt.Sprint("changed-", round%3)
		s.AddQueues(changed)
		setPaused(s, drill.FreeQueue, "pause")
		s.Pause(200*time.Millisecond, time.Second)
		setPaused(s, drill.FreeQueue, "resume")
		authority := s.AwaitAuthority()
		if round%2 == 0 {
			s.Fault(kill, authority.Name+", the authority")
			s.Kill(authority)
			s.Pause(2*time.Second, 5*time.Second)
			s.Recover()
		} else {
			_, err := authority.MemberCommand(s.Ctx, "transfer", "--to", other(s, authority).Name)
			s.Require(err == nil, "hand over the authority: %v", err)
		}
		s.Pause(time.Second, 2*time.Second)
	}
	s.RequireSightings(sightings)
}
