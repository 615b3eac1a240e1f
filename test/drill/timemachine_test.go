package drill

import (
	"encoding/json"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// A sighting is only equal to a state with the same numbers, flags and authority.
func TestSighting_Compare(t *testing.T) {
	owner := "n1"
	queues := sighting{event: 7, kind: queueSighting, queues: []api.Queue{{Name: "mail", State: "paused", Counts: map[string]int{"waiting": 2, "failed": 0}}}}
	snapshot := sighting{event: 7, kind: snapshotSighting, snapshot: &ledger.Snapshot{
		Authority: ledger.SnapshotAuthority{Owner: &owner}, Backlog: ledger.SnapshotBacklog{Pending: 2},
	}}
	const same = `{"queues":{"mail":{"paused":true,"counts":{"waiting":2}}},"authority":{"owner":"n1"},"backlog":{"pending":2}}`
	for _, c := range []struct {
		event           uint64
		imbalance       int64
		state           string
		queues, current bool // are equal
	}{
		{7, 0, same, true, true},
		{8, 0, same, false, false},
		{7, 1, same, false, false},
		{7, 0, `{"queues":{"mail":{"paused":true,"counts":{"waiting":3}}},"authority":{"owner":"n1"},"backlog":{"pending":3}}`, false, false},
		{7, 0, `{"queues":{"mail":{"counts":{"waiting":2}}},"authority":{"owner":"n2"},"backlog":{"pending":2}}`, false, false},
		{7, 0, `{"queues":{"mail":{"paused":true,"counts":{"waiting":2}},"other":{}},"authority":{"owner":"n1"},"backlog":{"pending":2}}`, false, true},
	} {
		state := &api.State{Event: c.event, Imbalance: c.imbalance, State: json.RawMessage(c.state)}
		if err := queues.compare(state); (err == nil) != c.queues {
			t.Errorf("event %d, imbalance %d, queues of %s: %v", c.event, c.imbalance, c.state, err)
		}
		if err := snapshot.compare(state); (err == nil) != c.current {
			t.Errorf("event %d, imbalance %d, snapshot of %s: %v", c.event, c.imbalance, c.state, err)
		}
	}
}
