package agent

import "github.com/yardmaster-dev/yardmaster/job"

// dropDeep drops the result and the details of the fault of an outcome if they are nested too deep
// for the clients that read them, and puts the reason in their place. The status stays the same.
// A result in MessagePack has been checked with its frame.
func dropDeep(outcome *job.Outcome) {
	if r := &outcome.Result; !r.Msgpack {
		if err := job.CheckDepth("result", r.Data); err != nil {
			outcome.Dropped = &job.DroppedResult{Size: int64(len(r.Data)), Reason: job.CutText(err.Error(), job.MaxDropReason)}
			r.Data = nil
		}
	}
	if fault := outcome.Fault; fault != nil {
		if err := job.CheckDepth("details", fault.Details); err != nil {
			fault.Message += " (omitted " + err.Error() + ")"
			fault.Details = nil
		}
	}
}
