package timeline

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Add folds the events of a message of history that follow the state, up to the first that within
// does not permit; a nil within permits all. It reports whether there was such an event. Events
// that the state has already are skipped. A gap is an error.
func (s *State) Add(message []byte, within func(number uint64, at time.Time) bool) (stopped bool, err error) {
	err = read(message, func(e *event) error {
		switch {
		case e.Number <= s.Event:
			return nil
		case within != nil && !within(e.Number, e.At):
			return errStopped
		case e.Number != s.Event+1:
			return fmt.Errorf("event %d follows event %d: history between them is missing", e.Number, s.Event)
		}
		if err := s.apply(e); err != nil {
			return fmt.Errorf("event %d: %w", e.Number, err)
		}
		s.Event, s.At = e.Number, e.At
		return nil
	})
	if errors.Is(err, errStopped) {
		return true, nil
	}
	return false, err
}

var errStopped = errors.New("stopped")

// apply applies an event. Of those with other names it only has the number.
func (s *State) apply(e *event) error {
	switch e.Kind {
	case "AuthorityAcquired", "AuthorityRenewed":
		s.Authority = Authority{e.Owner, e.LeaseID, e.LeasedUntil}
	case "DispatchQueued":
		s.Backlog.Pending++
		if e.aboutJob && e.From == "" {
			return ErrEarlier
		}
		if e.aboutJob {
			s.move(e.Queue, e.From, "waiting")
		}
	case "DispatchNotified":
		s.Backlog.Pending--
		s.Backlog.Notified++
		if e.aboutJob && e.Channel != "none" {
			s.Running[e.id] = &Run{Worker: e.Channel, Started: e.At}
			s.start(e)
		}
	case "DispatchDelivered":
		s.Backlog.Notified--
		s.Backlog.Delivered++
		if e.aboutJob {
			s.end(e, "completed")
		}
	case "DispatchFailed":
		s.Backlog.Notified--
		s.Backlog.Failed++
		if e.aboutJob && e.To == "" {
			return ErrEarlier
		}
		if e.aboutJob {
			s.end(e, e.To)
		}
	case "worker.assigned":
		s.assign(e)
	case "worker.recovered":
		if run := s.Running[e.id]; e.aboutJob && run != nil {
			run.Worker, run.Node = e.Worker, e.Node
		}
	case "job.changed":
		s.move(e.Queue, e.From, e.To)
	case "jobs.forgotten":
		s.forget(e)
	case "operator.acted":
		s.act(e)
	}
	return nil
}

// move moves a job of a queue from one state to another. Before it is accepted it is new, after
// it was removed gone. A queue that does not exist has no jobs.
func (s *State) move(queue, from, to string) {
	q := s.Queues[queue]
	switch {
	case from == "new":
		s.Accepted++
	case from == "gone":
		s.Removed--
	case q != nil:
		q.Counts.add(from, -1)
	}
	switch {
	case to == "gone":
		s.Removed++
	case q != nil:
		q.Counts.add(to, 1)
	}
}

// forget subtracts jobs that were forgotten. Those that had completed stay counted.
func (s *State) forget(e *event) {
	for state, n := range e.Jobs {
		if state == "completed" {
			continue
		}
		s.Removed += n
		s.Forgotten += n
		if q := s.Queues[e.Queue]; q != nil {
			q.Counts.add(state, -n)
		}
	}
}

// start makes the job of a run that was notified active, once its queue is known: an event that
// is written in full does not name it, and the next one does.
func (s *State) start(e *event) {
	if run := s.Running[e.id]; e.Queue != "" && run.Queue == "" {
		run.Queue = e.Queue
		s.move(e.Queue, "waiting", "active")
	}
}

// assign adds to the run of a job what worker.assigned has.
func (s *State) assign(e *event) {
	run := s.Running[e.id]
	if run == nil {
		return
	}
	s.start(e)
	run.Worker, run.Node, run.Function, run.Attempt, run.Key, run.Limits = e.Worker, e.Node, e.Function, e.Attempt, e.Key, e.Limits
}

// end ends the dispatch of a job, which runs or waits.
func (s *State) end(e *event, to string) {
	from := "waiting"
	if s.Running[e.id] != nil {
		from = "active"
		delete(s.Running, e.id)
	}
	s.move(e.Queue, from, to)
}

// act applies an act.
func (s *State) act(e *event) {
	area, verb, _ := strings.Cut(e.Action, ".")
	name, _, _ := strings.Cut(e.Target, " ")
	switch area {
	case "queue":
		s.actOnQueue(e, verb)
	case "limit":
		s.actOnLimit(e, verb, name)
	case "cron":
		s.actOnCron(e, verb, name)
	case "retention":
		s.Retention = e.Settings
	case "cluster":
		if e.Settings != nil {
			s.Members = e.Settings
		}
	case "yard":
		if verb == "restore" {
			s.Authority, s.Members = Authority{}, e.Settings
		}
	}
}

func (s *State) actOnQueue(e *event, verb string) {
	q := s.Queues[e.Queue]
	switch {
	case verb == "add":
		s.Queues[e.Queue] = &Queue{Settings: e.Settings}
	case q == nil:
	case verb == "set":
		q.Settings = e.Settings
	case verb == "remove":
		for _, n := range q.Counts { // of completed jobs, the others were forgotten
			s.Removed += n
			s.Forgotten += n
		}
		delete(s.Queues, e.Queue)
	case verb == "pause", verb == "resume":
		q.Paused = verb == "pause"
	}
}

func (s *State) actOnLimit(e *event, verb, name string) {
	m := s.Limits[name]
	if m == nil && verb == "set" {
		m = new(Limit)
		s.Limits[name] = m
	}
	switch {
	case m == nil:
	case verb == "set":
		var settings struct{ Circuit json.RawMessage }
		m.Settings = e.Settings
		m.Open = m.Open && json.Unmarshal(e.Settings, &settings) == nil && settings.Circuit != nil
	case verb == "remove":
		delete(s.Limits, name)
	case verb == "pause":
		m.Paused = true
	case verb == "resume":
		if !m.Paused { // it closes the circuit
			m.Open = false
		}
		m.Paused = false
	case verb == "open", verb == "close":
		m.Open = verb == "open"
	}
}

func (s *State) actOnCron(e *event, verb, name string) {
	c := s.Crons[name]
	if c == nil && verb == "add" {
		c = new(Cron)
		s.Crons[name] = c
	}
	switch {
	case c == nil:
	case verb == "add":
		c.Settings = e.Settings
	case verb == "remove":
		delete(s.Crons, name)
	case verb == "pause", verb == "resume":
		c.Paused = verb == "pause"
	}
}
