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

// Jobs whose bodies lie in a lane that somebody removed, or made anew, wait until it is
// back; those of other lanes go on.
func TestVerify_JobsOfALostLaneWait(t *testing.T) {
	for name, change := range map[string]func(*fakeLane){
		"another identity": func(l *fakeLane) { l.identity = "another" },
		"removed":          func(l *fakeLane) { l.identity = "" },
	} {
		t.Run(name, func(t *testing.T) {
			inYard(t, 2, func(y *yard) {
				large := `{"params":{"x":"` + strings.Repeat("x", 2*maxBody) + `"}}`
				lost := y.enqueueIn(1, "mail", "lost", large)
				y.enqueueIn(1, "mail", "at hand", anyJob)
				y.until("both are folded", func() bool { return y.counts().Pending == 2 })
				var was string
				y.lanes.set(func() { was = y.lanes.lanes[1].identity; change(y.lanes.lanes[1]) })
				y.pass(verifyEvery + 2*doubtFor)
				y.node("n1").offer(job.Overhop, "mail", "w1", 8)
				y.enqueueIn(0, "mail", "other", large)
				y.until("the others ran", func() bool { return y.counts().Delivered == 2 })
				y.pass(3 * time.Second)
				if s := y.state(lost); s != job.Waiting {
					t.Errorf("the job whose body is lost is %s", s)
				}
				y.lanes.set(func() { y.lanes.lanes[1].identity = was })
				y.until("it ran", func() bool { return y.counts().Delivered == 3 })
			})
		})
	}
}

// A job of a lost lane that dies has its letter, without its record, and so have the
// others.
func TestVerify_LettersOfALostLane(t *testing.T) {
	inYard(t, 2, func(y *yard) {
		y.enqueueIn(1, "mail", "lost", anyJob)
		y.until("it is folded", func() bool { return y.counts().Pending == 1 })
		y.lanes.set(func() { y.lanes.lanes[1].identity = "" })
		y.pass(verifyEvery + 2*doubtFor)
		n := y.node("n1")
		n.look(func() { n.work = ending(job.Outcome{Status: job.Error, Final: true}) })
		n.offer(job.Overhop, "mail", "w1", 1)
		y.until("it died", func() bool { return y.counts().Failed == 1 })
		y.enqueueIn(0, "mail", "other", anyJob)
		y.until("another died", func() bool { return y.counts().Failed == 2 })
		y.until("both have letters", func() bool { return len(y.tales.told(DeadLetters)) == 2 })
		if got := y.reasons(); len(got) != 1 || !strings.HasPrefix(got[0], "lane 1 is not folded: ") {
			t.Errorf("reasons %q", got)
		}
	})
}
