package statedir

import (
	"encoding/json"
	"time"

	"github.com/yardmaster-dev/yardmaster/ledger"
)

// importOriginal returns the state in a directory of the original program, or nil
// if the directory has no state. contents are its files by name. importOriginal
// writes nothing; the commit of the command does.
func (d *store) importOriginal(contents map[string][]byte) (*state, error) {
	file, exists := contents[eventsFile]
	if !exists {
		for _, name := range []string{snapshotFile, dispatchFile} {
			if _, left := contents[name]; left {
				return nil, &DamagedError{File: d.path(eventsFile), Err: errFileMissing, Remedy: "restore it, or start with an empty state by 'yardmaster init " + d.dir + "'"}
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
	if err := s.importTimes(contents[dispatchFile]); err != nil {
		return nil, d.damaged(dispatchFile, err, false)
	}
	if err := s.importCounts(contents[snapshotFile]); err != nil {
		return nil, d.damaged(snapshotFile, err, false)
	}
	return s, s.importLease(d.now)
}

// importTimes sets the times of the dispatches from the original's dispatch.json,
// because its events have none. It also adds ended dispatches whose events were
// compacted away; without them their request ids could be queued again.
func (s *state) importTimes(file []byte) error {
	if file == nil {
		return nil
	}
	records, err := readRecords[record](file)
	if err != nil {
		return err
	}
	for i := range records {
		from := &records[i]
		line, r, err := s.dispatches.find(from.RequestID)
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
		if err := s.dispatches.put(line, r); err != nil {
			return err
		}
	}
	return nil
}

func isTime(text *string) bool {
	if text == nil {
		return false
	}
	_, err := time.Parse(timeFormat, *text)
	return err == nil
}

// importCounts sets the counts of ended dispatches from the original's
// snapshot.json, because their events may have been compacted away.
func (s *state) importCounts(file []byte) error {
	if file == nil {
		return nil
	}
	var snapshot ledger.Snapshot
	if err := json.Unmarshal(file, &snapshot); err != nil {
		return err
	}
	s.Delivered = max(s.Delivered, snapshot.Backlog.Delivered)
	s.Failed = max(s.Failed, snapshot.Backlog.Failed)
	return nil
}

// importLease sets when the lease expires, as if it were acquired at the given
// time.
func (s *state) importLease(at time.Time) error {
	if s.Authority.Owner == "" {
		return nil
	}
	l, err := ledger.FromRuntime(ledger.Runtime{At: at})
	if err != nil {
		return err
	}
	c := &ledger.AcquireAuthority{Owner: s.Authority.Owner, LeaseID: s.Authority.LeaseID, LeasedUntil: s.Authority.LeasedUntil}
	if result := l.Apply(ledger.Stamp{Index: 1, At: at}, []ledger.Command{c})[0]; result.Err == nil {
		s.Authority.Expires = l.Authority().Until
	}
	return nil
}
