package agent

import (
	"log/slog"
	"testing"

	"github.com/yardmaster-dev/yardmaster/job"
)

// TestResultStore_Limit checks that a result is failed at once if too many bytes
// wait to be stored, and that the bytes are free again afterwards.
func TestResultStore_Limit(t *testing.T) {
	var failed []*pendingOutcome
	s := resultStore{log: slog.New(slog.DiscardHandler), stored: func(e *pendingOutcome) { failed = append(failed, e) }}
	s.bytes.Store(maxStoringBytes - 10)
	s.add(&pendingOutcome{outcome: job.Outcome{Result: job.Value{Data: make([]byte, 10)}}})
	if len(failed) != 0 || s.bytes.Load() != maxStoringBytes {
		t.Fatalf("%d failed, %d bytes wait; want all to fit", len(failed), s.bytes.Load())
	}
	s.add(&pendingOutcome{outcome: job.Outcome{Result: job.Value{Data: make([]byte, 1)}}})
	if len(failed) != 1 || failed[0].outcome.Fault.Type != job.FaultNotStored || !failed[0].outcome.Final {
		t.Errorf("outcomes are %+v, want one that failed for good", failed)
	}
	if s.bytes.Load() != maxStoringBytes {
		t.Errorf("%d bytes wait, want those of the first only", s.bytes.Load())
	}
}
