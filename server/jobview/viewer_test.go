package jobview

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/job"
)

// A part of a job that cannot be read for lack of a leader or in time can be retried.
func TestReadError(t *testing.T) {
	for _, c := range []struct {
		cause error
		again bool
	}{
		{fmt.Errorf("YARD_RESULTS: %w", streams.ErrNoLeader), true},
		{fmt.Errorf("read from YARD_BLOBS: %w", context.DeadlineExceeded), true},
		{errors.New("bytes that make no sense"), false},
	} {
		err := ReadError("result", job.ID{1}, c.cause)
		var away *job.UnavailableError
		if errors.As(err, &away) != c.again || !c.again && !errors.Is(err, c.cause) {
			t.Errorf("%v: %v", c.cause, err)
		}
	}
}
