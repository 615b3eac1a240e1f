package statedir

import (
	"encoding/json"
	"time"

	"github.com/yardmaster-dev/yardmaster/ledger"
)

// importOriginal returns the state in a directory that the original program of the
// contract wrote, or nil if the directory has no state. views are the contents of
// the directory's files by name. importOriginal writes nothing; the commit of the
// command that is being executed does.
func (d *store) importOriginal(views map[string][]byte) (*state, error) {
	file, exists := views[eventsFile]
	if !exists {
		if views[snapshotFile] != nil || views[dispatchFile] != nil {
			return nil, &damagedError{File: d.path(eventsFile), Err: errFileMissing, Remedy: "restore it, or start with an empty state by 'yardmaster init " + d.dir + "'"}
		}
		return nil, nil
	}

	s, err := importEvents(file, d.now)
	if err != nil {
		return nil, d.damaged(eventsFile, err, false)
	}
	if err := s.importTimes(views[dispatchFile]); err != nil {
		return nil, d.damaged(dispatchFile, err, false)
	}
	if err := s.importCounts(views[snapshotFile]); err != nil {
		return nil, d.damaged(snapshotFile, err, false)
	}
	if err := s.importMailbox(views[mailboxFile]); err != nil {
		return nil, d.damaged(mailboxFile, err, false)
	}
	return s, s.importLease(d.now)
}

// importEvents returns the state after all events of an events.json. Events have no
// times, so each counts as if it happened now.
func importEvents(file []byte, now time.Time) (*state, error) {
	lines, err := readEvents(file)
	if err != nil {
		return nil, err
	}
	s := &state{dispatches: dispatches{index: make(map[string]int)}, events: lines}
	for _, line := range lines {
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, err
		}
		if err := s.fold(&e, now); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// importTimes sets the times of the dispatches from the original program's
// dispatch.json; file is nil if it does not exist. It also adds ended dispatches whose
// events were compacted away; without them their request ids could be queued again.
func (s *state) importTimes(file []byte) error {
	if file == nil {
		return nil
	}
	originals, err := readRecords[record](file)
	if err != nil {
		return err
	}
	for i := range originals {
		original := &originals[i]
		line, dispatch, err := s.dispatches.find(original.RequestID)
		if err != nil {
			return err
		}
		if !isTime(&original.CreatedAt) {
			continue
		}
		if dispatch == nil && original.hasEndTime() {
			dispatch = original
		}
		if dispatch == nil || dispatch.Status != original.Status {
			continue
		}
		dispatch.copyTimes(original)
		if err := s.dispatches.put(line, dispatch); err != nil {
			return err
		}
	}
	return nil
}

// hasEndTime reports whether the dispatch has ended, at a known time.
func (r *record) hasEndTime() bool {
	return r.Status == delivered && isTime(r.DeliveredAt) || r.Status == failed && isTime(r.FailedAt)
}

// copyTimes sets the times of r to those of original. A time that is missing or
// malformed in original does not change r.
func (r *record) copyTimes(original *record) {
	r.CreatedAt = original.CreatedAt
	for _, t := range []struct{ to, from **string }{
		{&r.NotifiedAt, &original.NotifiedAt}, {&r.DeliveredAt, &original.DeliveredAt}, {&r.FailedAt, &original.FailedAt},
	} {
		if isTime(*t.from) {
			*t.to = *t.from
		}
	}
}

// isTime reports whether text is a time in timeFormat.
func isTime(text *string) bool {
	if text == nil {
		return false
	}
	_, err := time.Parse(timeFormat, *text)
	return err == nil
}

// importCounts sets the counts of ended dispatches from the original program's
// snapshot.json, because their events may have been compacted away. A file of nil
// changes nothing.
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

// importLease sets when the authority's lease expires, as if the authority had
// acquired it now. The events do not contain that time.
func (s *state) importLease(now time.Time) error {
	if s.Authority.Owner == "" {
		return nil
	}
	l, err := ledger.FromRuntime(ledger.Runtime{At: now})
	if err != nil {
		return err
	}
	acquire := &ledger.AcquireAuthority{Owner: s.Authority.Owner, LeaseID: s.Authority.LeaseID, LeasedUntil: s.Authority.LeasedUntil}
	if result := l.Apply(ledger.Stamp{Index: 1, At: now}, []ledger.Command{acquire})[0]; result.Err == nil {
		s.Authority.Expires = l.Authority().Until
	}
	return nil
}
