package timeline

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Difference is one respect in which two states differ.
type Difference struct {
	What string `json:"what"` // such as "queue mail waiting"
	From string `json:"from"` // "": it is not there
	To   string `json:"to"`
}

// String returns the difference as text, such as "queue mail waiting: 3, then 4".
func (d Difference) String() string {
	show := func(value string) string {
		if value == "" {
			return "none"
		}
		return value
	}
	return fmt.Sprintf("%s: %s, then %s", d.What, show(d.From), show(d.To))
}

// Diff returns in what to differs from s, apart from the number and the time of the event, in the
// order of what differs. Jobs that were forgotten count as removed, which is all that a ledger knows.
func (s *State) Diff(to *State) []Difference { return diff(s.facts(), to.facts()) }

// Changes is [State.Diff] between two states of one history: it distinguishes jobs that retention has
// forgotten from those that were removed.
func (s *State) Changes(to *State) []Difference {
	from, other := s.facts(), to.facts()
	s.splitRemoved(from)
	to.splitRemoved(other)
	return diff(from, other)
}

// splitRemoved gives jobs that were forgotten a fact of their own.
func (s *State) splitRemoved(facts map[string]string) {
	delete(facts, factRemoved)
	if removed := s.Removed - s.Forgotten; removed > 0 {
		facts[factRemoved] = fmt.Sprint(removed)
	}
	if s.Forgotten > 0 {
		facts["jobs forgotten by retention"] = fmt.Sprint(s.Forgotten)
	}
}

// diff returns what differs between facts.
func diff(from, other map[string]string) (all []Difference) {
	names := maps.Clone(from)
	maps.Copy(names, other)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if from[name] != other[name] {
			all = append(all, Difference{name, from[name], other[name]})
		}
	}
	return all
}

// factRemoved is the name of the number of jobs that were removed.
const factRemoved = "jobs removed"

// facts returns each fact of the state as text, by its name.
func (s *State) facts() map[string]string {
	facts := map[string]string{}
	put := func(value, name string, args ...any) {
		if value != "" {
			facts[fmt.Sprintf(name, args...)] = value
		}
	}
	number := func(n int64, name string, args ...any) {
		if n != 0 {
			put(fmt.Sprint(n), name, args...)
		}
	}
	number(s.Accepted, "jobs accepted")
	number(s.Removed, factRemoved)
	for name, q := range s.Queues {
		put(flags("paused", q.Paused, "running"), "queue %s", name)
		put(compact(q.Settings, `{"allow_job_overrides":true}`), "queue %s settings", name)
		for state, n := range q.Counts {
			number(n, "queue %s %s", name, stateNames[state])
		}
	}
	for name, m := range s.Limits {
		put(strings.TrimSpace(flags("paused", m.Paused, "")+" "+flags("circuit open", m.Open, "in force")), "limit %s", name)
		put(compact(m.Settings, ""), "limit %s settings", name)
	}
	for name, c := range s.Crons {
		put(flags("paused", c.Paused, "scheduled"), "cron %s", name)
		put(compact(c.Settings, ""), "cron %s settings", name)
	}
	for id, r := range s.Running {
		text := fmt.Sprintf("attempt %d of %s in queue %s at %s of %s since %s", r.Attempt, r.Function, r.Queue, r.Worker, r.Node, r.Started.UTC().Format(time.RFC3339Nano))
		if r.Key != "" {
			text += fmt.Sprintf(" under key %q", r.Key)
		}
		if r.Limits != "" {
			text += " " + r.Limits
		}
		put(text, "running %s", id)
	}
	put(s.Authority.Owner, "authority")
	put(s.Authority.LeaseID, "authority lease")
	put(s.Authority.LeasedUntil, "authority leased until")
	number(int64(s.Backlog.Pending), "dispatches pending")
	number(int64(s.Backlog.Notified), "dispatches notified")
	number(int64(s.Backlog.Delivered), "dispatches delivered")
	number(int64(s.Backlog.Failed), "dispatches failed")
	put(compact(s.Members, ""), "members")
	put(compact(s.Retention, ""), "retention")
	return facts
}

// flags returns on if is, otherwise off.
func flags(on string, is bool, off string) string {
	if is {
		return on
	}
	return off
}

// compact returns settings as JSON on one line, "" for those by default and for empty ones.
func compact(settings json.RawMessage, byDefault string) string {
	var b bytes.Buffer
	if json.Compact(&b, settings) != nil {
		return string(settings)
	}
	switch text := b.String(); text {
	case byDefault, "null", "[]", "{}":
		return ""
	default:
		return text
	}
}
