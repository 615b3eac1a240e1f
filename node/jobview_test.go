package node

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
)

// A part of a job that cannot be read for lack of a leader or in time can be retried.
func TestReadError(t *testing.T) {
	for _, c := range []struct {
		cause error
		again bool
	}{
		{fmt.Errorf("YARD_RESULTS: %w", cluster.ErrNoLeader), true},
		{fmt.Errorf("read from YARD_BLOBS: %w", context.DeadlineExceeded), true},
		{errors.New("bytes that make no sense"), false},
	} {
		err := readError("result", job.ID{1}, c.cause)
		var away *job.UnavailableError
		if errors.As(err, &away) != c.again || !c.again && !errors.Is(err, c.cause) {
			t.Errorf("%v: %v", c.cause, err)
		}
	}
}

// The failure of an earlier attempt is shown while a job waits for the next and when it has
// failed, but not while it is active or after it has completed.
func TestJobToJSON_Reason(t *testing.T) {
	for state, told := range map[job.State]bool{
		job.Waiting: true, job.Delayed: true, job.Failed: true, job.Active: false, job.Completed: false,
	} {
		j := jobToJSON(&job.View{State: state, Reason: "no route", Fault: &job.Fault{Message: "no route"}})
		if (j.Reason != "") != told || (j.Error != nil) != told {
			t.Errorf("%s: reason %q, error %v", state, j.Reason, j.Error)
		}
	}
}
