package ledger

import (
	"fmt"

	"github.com/yardmaster-dev/yardmaster/job"
)

// mayExpire reports whether the job ends as expired unless it starts in time.
func (r *storedJob) mayExpire() bool {
	return r.options.expires != 0 && r.attempt == 0 && (r.state == job.Waiting || r.state == job.Delayed)
}

// hasExpired reports whether the job may no longer start.
func (r *storedJob) hasExpired(c *clocks) bool { return r.mayExpire() && c.passed(r.expiry()) }

// expireJobs ends jobs that have not started in time, at most maxPromotions at a time. The
// pending dispatch of a waiting job ends as failed. A delayed job has none, so that an act
// of the ledger itself is in history.
func (d *dispatches) expireJobs() {
	for range maxPromotions {
		earliest, left, ok := d.jobs.expiring.next(&d.clocks)
		if !ok || left > 0 {
			return
		}
		old := d.jobs.at(earliest.number)
		next := *old
		if old.state != job.Waiting {
			d.actOnJob(byRule(""), "job.expire", old)
		}
		d.emitUnstarted(old, failedDispatch{reason: job.ReasonExpired, errorType: job.FaultExpired, to: InState(job.Expired)})
		fault := &job.Fault{Message: "expired: it had not started by " + FormatTime(unixNano(old.options.expires)), Type: job.FaultExpired}
		d.end(old, &next, job.Expired, fault.Message, fault)
	}
}

// checkExpiry returns an error if the job would expire before it is due.
func (r *storedJob) checkExpiry(c *clocks) error {
	if r.options.expires == 0 || r.attempt > 0 || c.elapsedOf(r.dueMoment()) < c.elapsedOf(r.expiry()) {
		return nil
	}
	return fmt.Errorf("%w: it expires at %s; give an earlier time", job.ErrExpiresBefore, FormatTime(unixNano(r.options.expires)))
}
