package scheduler

import (
	"testing"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

// workerEvents are what history tells of workers that stall and recover.
func (y *yard) workerEvents() (told []string) {
	y.raft.View(func(l *ledger.Ledger) {
		l.EventsAfter(l.ToldEvents(), func(_ uint64, _ time.Time, e *ledger.Event) bool {
			if e.Kind == ledger.WorkerStalled || e.Kind == ledger.WorkerRecovered {
				told = append(told, e.Kind.String()+" "+e.A+" "+e.B)
			}
			return true
		})
	})
	return told
}

// A node's notes are committed before they are answered, and told once however
// many authorities hear them.
func TestReport_NotesAreToldOnce(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		y.tales.set(func() { y.tales.down = true }) // so that the outbox keeps all
		r := job.Report{Node: "n1", Incarnation: 1, FirstNote: 1, Notes: []job.Note{
			{Worker: "overhop/w1", Stalled: true, Detail: job.StalledAck},
			{Worker: "overhop/w1", Detail: job.RecoveredCredit},
		}}
		want := []string{"worker.stalled overhop/w1 ack-timeout", "worker.recovered overhop/w1 credit"}
		say := func() {
			t.Helper()
			answered := make(chan []string, 1)
			if err := y.sched.Report(r, func(job.ReportAck) { answered <- y.workerEvents() }); err != nil {
				t.Fatal(err)
			}
			y.until("it is answered", func() bool { return len(answered) > 0 })
			if got := <-answered; len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
				t.Errorf("told when the report was answered: %v", got)
			}
		}
		say()
		say()
		y.end()
		y.begin()
		say()
	})
}

// Notes that the ledger refuses are answered all the same: they would be
// refused for ever.
func TestReport_RefusedNotesAreAnswered(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		answered := make(chan job.ReportAck, 1)
		err := y.sched.Report(job.Report{Node: "n1", Incarnation: 1, FirstNote: 1, Notes: []job.Note{
			{Worker: "overhop/w1", Stalled: true, Detail: string(make([]byte, ledger.MaxText+1))},
		}}, func(ack job.ReportAck) { answered <- ack })
		if err != nil {
			t.Fatal(err)
		}
		y.until("it is answered", func() bool { return len(answered) > 0 })
		if told := y.workerEvents(); len(told) > 0 {
			t.Errorf("told: %v", told)
		}
	})
}
