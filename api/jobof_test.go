package api

import (
	"testing"

	"github.com/yardmaster-dev/yardmaster/job"
)

// The failure of an earlier attempt is shown while a job waits for the next and when it has
// failed, but not while it is active or after it has completed.
func TestJobOf_Reason(t *testing.T) {
	for state, told := range map[job.State]bool{
		job.Waiting: true, job.Delayed: true, job.Failed: true, job.Cancelled: true, job.Active: false, job.Completed: false,
	} {
		j := JobOf(&job.View{State: state, Reason: "no route", Fault: &job.Fault{Message: "no route"}})
		if (j.Reason != "") != told || (j.Error != nil) != told {
			t.Errorf("%s: reason %q, error %v", state, j.Reason, j.Error)
		}
	}
}
