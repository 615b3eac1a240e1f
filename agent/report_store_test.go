package agent

import (
	"log/slog"
	"testing"

	"github.com/yardmaster-dev/yardmaster/job"
)

// TestResultStore_Limit checks that a result is dropped at once if too many bytes
// wait to be stored, that the job succeeds nevertheless, and that the bytes are free
// again afterwards.
func TestResultStore_Limit(t *testing.T) {
	var dropped []*pendingOutcome
	s := resultStore{log: slog.New(slog.DiscardHandler), stored: func(e *pendingOutcome) { dropped = append(dropped, e) }}
	s.bytes.Store(maxStoringBytes - 10)
	s.add(&pendingOutcome{outcome: job.Outcome{Status: job.Success, Result: job.Value{Data: make([]byte, 10)}}})
	if len(dropped) != 0 || s.bytes.Load() != maxStoringBytes {
		t.Fatalf("%d dropped, %d bytes wait; want all to fit", len(dropped), s.bytes.Load())
	}
	s.add(&pendingOutcome{outcome: job.Outcome{Status: job.Success, Result: job.Value{Data: make([]byte, 1)}}})
	if len(dropped) != 1 || dropped[0].outcome.Status != job.Success || dropped[0].outcome.Dropped == nil || dropped[0].outcome.Dropped.Size != 1 {
		t.Errorf("outcomes are %+v, want one success without its result of 1 byte", dropped)
	}
	if s.bytes.Load() != maxStoringBytes {
		t.Errorf("%d bytes wait, want those of the first only", s.bytes.Load())
	}
}
