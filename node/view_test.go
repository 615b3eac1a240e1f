package node

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"yardmaster/cluster"
	"yardmaster/job"
)

// What cannot be read for want of a leader, or in time, is to be asked for again.
func TestUnread(t *testing.T) {
	for _, c := range []struct {
		cause error
		again bool
	}{
		{fmt.Errorf("YARD_RESULTS: %w", cluster.ErrNoLeader), true},
		{fmt.Errorf("read from YARD_BLOBS: %w", context.DeadlineExceeded), true},
		{errors.New("bytes that make no sense"), false},
	} {
		err := unread("result", job.ID{1}, c.cause)
		var away *job.UnavailableError
		if errors.As(err, &away) != c.again || !c.again && !errors.Is(err, c.cause) {
			t.Errorf("%v: %v", c.cause, err)
		}
	}
}

// An earlier attempt's failure is told of a job that waits for another or has
// failed, and not of one that runs or has ended well.
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
