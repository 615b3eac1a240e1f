package scheduler

import (
	"errors"
	"strings"
	"testing"
	"time"

	"yardmaster/job"
)

func (y *yard) laneReady() (ready bool) {
	done := make(chan struct{})
	m := y.sched.tenure()
	m.post(func() { ready = m.lanes[0].ready; close(done) })
	<-done
	return ready
}

// A lane that becomes another one in the middle of a tenure is not folded any
// more, until it is itself again.
func TestVerify_LaneChangesWithinATenure(t *testing.T) {
	for name, change := range map[string]func(*fakeLane) (undo func()){
		"another identity": func(l *fakeLane) func() {
			was := l.identity
			l.identity = "another"
			return func() { l.identity = was }
		},
		"rolled back": func(l *fakeLane) func() {
			was := l.records
			l.records = l.records[:5]
			return func() { l.records = was }
		},
		"another record": func(l *fakeLane) func() {
			was := l.records[9].Key
			l.records[9].Key = "another"
			return func() { l.records[9].Key = was }
		},
	} {
		t.Run(name, func(t *testing.T) {
			inYard(t, 1, func(y *yard) {
				y.node("n1").offer(job.Overhop, "mail", "w1", 8)
				for i := range 10 {
					y.enqueue("mail", string(rune('a'+i)), anyJob)
				}
				y.until("all ran", func() bool { return y.counts().Delivered == 10 })
				var undo func()
				y.lanes.set(func() { undo = change(y.lanes.lanes[0]) })
				y.pass(verifyEvery + 2*doubtFor)
				if y.laneReady() {
					t.Error("the lane is folded still")
				}
				if got := y.reasons(); len(got) != 1 || !strings.HasPrefix(got[0], "lane 0 is not folded: ") {
					t.Errorf("reasons %q", got)
				}
				y.lanes.set(undo)
				y.pass(3 * time.Second)
				y.enqueue("mail", "later", anyJob)
				y.until("folding goes on", func() bool { return y.counts().Delivered == 11 })
				if got := y.reasons(); len(got) > 0 {
					t.Errorf("reasons afterwards %q", got)
				}
			})
		})
	}
}

func TestVerify_SilenceIsNoDoubt(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		y.lanes.set(func() { y.lanes.down = errors.New("no leader") })
		y.pass(3 * verifyEvery)
		if !y.laneReady() {
			t.Error("a lane that does not answer was given up")
		}
		y.lanes.set(func() { y.lanes.down = nil })
		y.node("n1").offer(job.Overhop, "mail", "w1", 8)
		y.enqueue("mail", "", anyJob)
		y.until("it ran", func() bool { return y.counts().Delivered == 1 })
	})
}
