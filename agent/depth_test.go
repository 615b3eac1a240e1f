package agent

import (
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/job"
)

// TestDropDeep checks that a result that is nested too deep is dropped, and that the outcome gives the reason.
func TestDropDeep(t *testing.T) {
	deep := []byte(strings.Repeat("[", 121) + strings.Repeat("]", 121))
	o := job.Outcome{Status: job.Success, Result: job.Value{Data: deep}}
	if dropDeep(&o); o.Status != job.Success || o.Result.Data != nil || o.Dropped == nil || o.Dropped.Size != 242 || !strings.Contains(o.Dropped.Reason, "nested 121 deep; at most 120") {
		t.Errorf("%+v", o)
	}
	o = job.Outcome{Status: job.Error, Fault: &job.Fault{Message: "lost", Details: deep}}
	if dropDeep(&o); o.Fault.Details != nil || !strings.HasPrefix(o.Fault.Message, "lost (omitted details: ") {
		t.Errorf("%+v", o.Fault)
	}
	o = job.Outcome{Status: job.Success, Result: job.Value{Data: deep[1:241]}}
	if dropDeep(&o); o.Result.Data == nil || o.Dropped != nil {
		t.Errorf("%+v", o)
	}
}
