package sim

import (
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// waitingRecord is a record that is published together with others.
type waitingRecord struct {
	queue, key string
	body       []byte
	stored     func(message []job.Record, r job.Record, fresh bool) // not called if the lane does not take the message
}

// pack appends a record together with those that other producers publish within some
// milliseconds, in one message. If the lane does not take it, stored is not called.
func (s *lanes) pack(number uint8, w waitingRecord) {
	lane := &s.lanes[number]
	lane.waiting = append(lane.waiting, w)
	if len(lane.waiting) > 1 {
		return
	}
	key := fmt.Sprintf("pack %d %s", number, w.key)
	s.sim.after(s.sim.duration(key, time.Millisecond, 300*time.Millisecond), key, func() {
		waiting := lane.waiting
		lane.waiting = nil
		if s.isDown(number) || lane.truncatedTo > 0 {
			return
		}
		var message []job.Record
		for _, w := range waiting {
			r := job.Record{
				Position: job.Position{Lane: number, Seq: lane.end() + 1, Index: uint8(len(message))},
				Queue:    w.queue, Key: w.key, Stored: s.clock(number), Body: w.body, Last: len(message) == len(waiting)-1,
			}
			message = append(message, r)
			s.keys[fmt.Sprintf("%d/%s", number, w.key)] = r.Position
			s.sim.checker.onStored(&r)
		}
		lane.messages = append(lane.messages, message)
		s.sim.report.Packed += len(message) - 1
		for i, w := range waiting {
			w.stored(message, message[i], true)
		}
	})
}

// store appends a record and sends it to the tails. If the lane already has a record
// of that key, and has not forgotten it, store returns that one with fresh false.
func (s *lanes) store(number uint8, queue, key string, body []byte) (r job.Record, fresh bool) {
	name := fmt.Sprintf("%d/%s", number, key)
	lane := &s.lanes[number]
	if at, ok := s.keys[name]; ok && !s.sim.chance("forgotten "+name, 500) {
		r, _ = lane.record(at)
		return r, false
	}
	r = job.Record{
		Position: job.Position{Lane: number, Seq: uint64(len(lane.messages)) + 1},
		Queue:    queue, Key: key, Stored: s.clock(number), Body: body, Last: true,
	}
	lane.messages = append(lane.messages, []job.Record{r})
	s.keys[name] = r.Position
	s.sim.checker.onStored(&r)
	for _, n := range s.sim.nodes {
		if fn := s.tails[n.process]; fn != nil && n.process.up {
			key := fmt.Sprintf("tail %s %d@%d", n.process.id, number, r.Seq)
			if !s.sim.minorFaultsActive() || !s.sim.chance(key, 100) {
				s.sim.after(s.sim.delay(key, time.Millisecond, 400*time.Millisecond), key, func() {
					if n.process.up {
						fn(r)
					}
				})
			}
		}
	}
	return r, true
}
