package statedir

import (
	"encoding/json"
	"time"

	"yardmaster/ledger"
)

// adopt takes a directory of the original over: contents are its files by name.
// It gives nil if there is nothing to take over. Nothing is written: that is
// for the command which is then carried out.
func (d *store) adopt(contents map[string][]byte) (*state, error) {
	file, there := contents[eventsFile]
	if !there {
		for _, name := range []string{snapshotFile, dispatchFile} {
			if _, left := contents[name]; left {
				return nil, &DamagedError{File: d.path(eventsFile), Why: errLost, Do: "put it back, or start anew with 'yardmaster init " + d.dir + "'"}
			}
		}
		return nil, nil
	}
	lines, err := readEvents(file)
	if err != nil {
		return nil, d.damaged(eventsFile, err, false)
	}
	s := &state{dispatches: dispatches{index: make(map[string]int)}, events: lines}
	for _, line := range lines {
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, d.damaged(eventsFile, err, false)
		}
		if err := s.fold(&e, d.now); err != nil {
			return nil, d.damaged(eventsFile, err, false)
		}
	}
	if err := s.takeTimes(contents[dispatchFile]); err != nil {
		return nil, d.damaged(dispatchFile, err, false)
	}
	if err := s.takeCounts(contents[snapshotFile]); err != nil {
		return nil, d.damaged(snapshotFile, err, false)
	}
	return s, s.takeLease(d.now)
}

// takeTimes takes the dispatches' times from where the original shows them:
// its events have none. A dispatch that has ended and whose events were
// compacted away is shown there alone; without it its request id could be
// queued a second time.
func (s *state) takeTimes(file []byte) error {
	if file == nil {
		return nil
	}
	shown, err := readDispatches(file)
	if err != nil {
		return err
	}
	for i := range shown {
		from := &shown[i]
		at, r, err := s.dispatches.find(from.RequestID)
		if err != nil {
			return err
		}
		if !isTime(&from.CreatedAt) {
			continue
		}
		if r == nil && (from.Status == delivered && isTime(from.DeliveredAt) || from.Status == failed && isTime(from.FailedAt)) {
			r = from
		}
		if r == nil || r.Status != from.Status {
			continue
		}
		r.CreatedAt = from.CreatedAt
		for _, t := range []struct{ to, from **string }{
			{&r.NotifiedAt, &from.NotifiedAt}, {&r.DeliveredAt, &from.DeliveredAt}, {&r.FailedAt, &from.FailedAt},
		} {
			if isTime(*t.from) {
				*t.to = *t.from
			}
		}
		if err := s.dispatches.put(at, r); err != nil {
			return err
		}
	}
	return nil
}

func isTime(text *string) bool {
	if text == nil {
		return false
	}
	_, err := time.Parse(timeForm, *text)
	return err == nil
}

// takeCounts counts the dispatches whose events the original has compacted
// away: only its snapshot still tells of them.
func (s *state) takeCounts(file []byte) error {
	if file == nil {
		return nil
	}
	var told ledger.Snapshot
	if err := json.Unmarshal(file, &told); err != nil {
		return err
	}
	s.Delivered = max(s.Delivered, told.Backlog.Delivered)
	s.Failed = max(s.Failed, told.Backlog.Failed)
	return nil
}

// takeLease asks the ledger when the lease ends, as if it were acquired now.
func (s *state) takeLease(at time.Time) error {
	if s.Authority.Owner == "" {
		return nil
	}
	l, err := ledger.Restore(ledger.Runtime{At: at})
	if err != nil {
		return err
	}
	c := &ledger.AcquireAuthority{Owner: s.Authority.Owner, LeaseID: s.Authority.LeaseID, LeasedUntil: s.Authority.LeasedUntil}
	if result := l.Apply(ledger.Stamp{Index: 1, At: at}, []ledger.Command{c})[0]; result.Err == nil {
		s.Authority.Expires = l.Authority().Until
	}
	return nil
}
