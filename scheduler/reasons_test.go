package scheduler

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// wrong waits until the tenure names such a reason.
func (y *yard) wrong(text string) {
	y.t.Helper()
	y.until("a reason is "+text, func() bool { return strings.Contains(strings.Join(y.reasons(), "\n"), text) })
}

// Members that agree and are not heard over NATS: what they would run, nobody
// starts.
func TestReasons_MembersAreNotHeard(t *testing.T) {
	inYard(t, 3, func(y *yard) {
		y.pass(3 * time.Second)
		y.says("")
		for _, name := range []string{"n2", "n3"} {
			n := y.node(name)
			n.look(func() { n.silent = true })
		}
		y.wrong("member n2 is not heard: start it, or mend the network between it and n1")
		y.says("member n3 is not heard")
		n2 := y.node("n2")
		n2.look(func() { n2.silent = false; n2.beat() })
		y.until("a majority is heard", func() bool { return len(y.reasons()) == 0 })
	})
}

// A lease that nobody has renewed for too long is named while the tenure lasts.
func TestReasons_LeaseIsNotCertain(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		m := y.sched.tenure()
		answer := make(chan Look, 1)
		m.post(func() { answer <- m.look(time.Now().Add(trustTime + time.Second)) })
		l := <-answer
		if l.Dispatching || len(l.Reasons) != 1 || !strings.HasPrefix(l.Reasons[0], "the authority's lease is not certain: nothing is started") {
			t.Errorf("%+v", l)
		}
	})
}

// A stream that is missing is named, and never made again.
func TestReasons_StreamsAreGone(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		y.pass(time.Second)
		y.says("")
		y.lanes.set(func() { y.lanes.ensures = errors.New("YARD_DLQ: stream does not exist") })
		y.wrong("streams are not as they were made: YARD_DLQ: stream does not exist")
		y.lanes.set(func() { y.lanes.ensures = nil })
		y.until("it is there again", func() bool { return len(y.reasons()) == 0 })
	})
}

// Each of the three stories is named for itself.
func TestReasons_NothingIsPublished(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		y.tales.set(func() { y.tales.down = true })
		y.enqueue("mail", "", anyJob)
		y.wrong("history is not published: ")
		m := y.sched.tenure()
		for story, name := range map[Story]string{Results: "results", DeadLetters: "dead letters"} {
			m.post(func() { m.untold[story] = name + ": no leader" })
			y.wrong(name + " are not published: no leader")
		}
		y.tales.set(func() { y.tales.down = false })
		m.post(func() { m.untold = [3]string{} })
		y.until("all goes on", func() bool { return len(y.reasons()) == 0 })
	})
}

// A new yard says so while its streams cannot be made yet.
func TestReasons_StreamsAreBeingMade(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		y.pass(time.Second)
		m := y.sched.tenure()
		m.post(func() { m.unmade = beingMade })
		y.wrong("the yard's streams are being made")
		m.post(func() { m.unmade = "" })
		y.until("they are made", func() bool { return len(y.reasons()) == 0 })
	})
}
