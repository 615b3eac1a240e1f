package ledger

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Base is the part of the state that history can be rebuilt from, in the form that
// docs/reference/contract.md describes. Readers of history begin with one, and their state is
// compared with another one.
type Base struct {
	Event     uint64               `json:"event"` // number of the last event
	At        time.Time            `json:"at"`
	Accepted  uint64               `json:"accepted"`
	Removed   uint64               `json:"removed"`
	Queues    map[string]baseQueue `json:"queues"`
	Limits    map[string]baseLimit `json:"limits,omitempty"`
	Crons     map[string]baseCron  `json:"crons,omitempty"`
	Running   map[string]baseRun   `json:"running,omitempty"`
	Authority baseAuthority        `json:"authority"`
	Backlog   SnapshotBacklog      `json:"backlog"`
	Members   []memberSettings     `json:"members,omitempty"`
	Retention []string             `json:"retention,omitempty"`
}

// The parts of a [Base].
type (
	baseQueue struct {
		Paused   bool          `json:"paused,omitempty"`
		Settings queueSettings `json:"settings"`

		Counts map[string]int `json:"counts"` // by state, without those that are 0
	}
	baseLimit struct {
		Paused   bool          `json:"paused,omitempty"`
		Open     bool          `json:"open,omitempty"` // its circuit
		Settings limitSettings `json:"settings"`
	}
	baseCron struct {
		Paused   bool         `json:"paused,omitempty"`
		Settings cronSettings `json:"settings"`
	}
	baseRun struct {
		Queue    string    `json:"queue"`
		Function string    `json:"function,omitempty"`
		Node     string    `json:"node"`
		Worker   string    `json:"worker"`
		Attempt  uint32    `json:"attempt"`
		Key      string    `json:"key,omitempty"`
		Limits   string    `json:"limits,omitempty"`
		Started  time.Time `json:"started"`
	}
	baseAuthority struct {
		Owner       string `json:"owner,omitempty"`
		LeaseID     string `json:"lease_id,omitempty"`
		LeasedUntil string `json:"leased_until,omitempty"`
	}
)

// Base returns the state as of the last event, by the numbers of jobs that the ledger counts.
func (l *Ledger) Base() *Base {
	b := &Base{
		Event: l.LastEvent(), At: l.Now().Truncate(time.Millisecond), Accepted: l.jobs.accepted, Removed: l.jobs.removed,
		Queues: make(map[string]baseQueue), Limits: make(map[string]baseLimit), Crons: make(map[string]baseCron), Running: make(map[string]baseRun),
		Authority: baseAuthority{l.authority.owner, l.authority.leaseID, l.authority.leasedUntil},
		Backlog:   l.counts, Retention: retentionTexts(l.retention.InForce()),
	}
	if l.membership.Revision > 0 {
		b.Members = settingsOfMembers(l.membership.Members)
	}
	for name, q := range l.queues.byName.Scan {
		b.Queues[name] = baseQueue{q.paused, settingsOfQueue(&q.config), countsOf(q.totals())}
	}
	for name, m := range l.jobs.limits.byName.Scan {
		b.Limits[name] = baseLimit{m.Paused, m.circuit.openedAt != 0, settingsOfLimit(&m.Limit)}
	}
	for name, c := range l.crons.byName.Scan {
		b.Crons[name] = baseCron{c.Paused, settingsOfCron(&c.Cron)}
	}
	for item := range l.jobs.active.Scan {
		r := l.jobs.at(item.number)
		b.Running[r.id.String()] = baseRun{
			r.queue.name, r.function, r.run.node, r.run.channel, r.attempt, r.key, limitsText(r.limits),
			time.Unix(0, r.run.started).UTC().Truncate(time.Millisecond),
		}
	}
	return b
}

// RecountedBase is Base with the numbers of jobs that are in the ledger's lists, and of the completed
// jobs that it has forgotten. A reader of history begins with it if there is no earlier base, so that
// it does not take over a wrong count.
func (l *Ledger) RecountedBase() *Base {
	b := l.Base()
	active := make(map[string]int)
	for _, run := range b.Running {
		active[run.Queue]++
	}
	for name, q := range l.queues.byName.Scan {
		var counts [job.States]int
		counts[job.Active], counts[job.Completed] = active[name], int(q.completed)
		for _, wl := range q.waitlists.Scan {
			counts[job.Waiting] += wl.jobs.Len()
		}
		for state, list := range q.lists {
			if list != nil {
				counts[state] += list.Len()
			}
		}
		recounted := b.Queues[name]
		recounted.Counts = countsOf(counts)
		b.Queues[name] = recounted
	}
	return b
}

// JSON returns the base as JSON.
func (b *Base) JSON() json.RawMessage { return settingsJSON(b) }

func countsOf(counts [job.States]int) map[string]int {
	named := make(map[string]int)
	for state, n := range counts {
		if n != 0 {
			named[job.State(state).String()] = n
		}
	}
	return named
}

// limitsText returns a text of joinUses without its separators.
func limitsText(uses string) string {
	return strings.TrimSuffix(strings.ReplaceAll(uses, "\x00", ","), ",")
}
