package ledger

// SkipReason is why an operation leaves a job that matches as it is.
type SkipReason uint8

// The reasons.
const (
	SkipChanged    SkipReason = iota // another change was faster
	SkipRemoved                      // so was the removal of the job
	SkipForgotten                    // the index has the job, and the ledger does not
	SkipActive                       // and the following: the action does not apply to the state of the job
	SkipEnded                        //
	SkipNotEnded                     //
	SkipCompleted                    //
	SkipNotFailed                    //
	SkipNoLetter                     // the job failed without a dead letter
	SkipLetterGone                   // its dead letter was removed, by a request or by retention
	SkipRequeued                     // a new job was made of its dead letter before
	skipReasons                      // the number of reasons
)

// skipTexts are the reasons as users see them.
var skipTexts = [skipReasons]string{
	SkipChanged: "it has changed since the operation began", SkipRemoved: "it was removed", SkipForgotten: "the ledger has forgotten it", SkipActive: "it is active",
	SkipEnded: "it has ended", SkipNotEnded: "it has not ended", SkipCompleted: "it is completed", SkipNotFailed: "it has not failed", SkipNoLetter: "it has no dead letter",
	SkipLetterGone: "its dead letter is gone", SkipRequeued: "its dead letter was requeued before",
}

func (r SkipReason) String() string {
	if r < skipReasons {
		return skipTexts[r]
	}
	return "unknown"
}

// Skips are the numbers of jobs that an operation has left as they were, by reason. It has fields
// and no array because log entries are encoded by fields.
type Skips struct {
	Changed, Removed, Forgotten, Active, Ended, NotEnded, Completed, NotFailed, NoLetter, LetterGone, Requeued uint64
}

// counts returns the fields in the order of the reasons.
func (s *Skips) counts() [skipReasons]*uint64 {
	return [...]*uint64{&s.Changed, &s.Removed, &s.Forgotten, &s.Active, &s.Ended, &s.NotEnded, &s.Completed, &s.NotFailed, &s.NoLetter, &s.LetterGone, &s.Requeued}
}

// Count counts a job.
func (s *Skips) Count(reason SkipReason) { *s.counts()[reason]++ }

// Add adds the numbers of o.
func (s *Skips) Add(o Skips) {
	for i, n := range o.counts() {
		*s.counts()[i] += *n
	}
}

// Total returns the number of jobs.
func (s Skips) Total() (total uint64) {
	for _, n := range s.counts() {
		total += *n
	}
	return total
}

// ByReason returns the numbers that are not 0, by the text of the reason; nil if there are none.
func (s Skips) ByReason() (jobs map[string]uint64) {
	for i, n := range s.counts() {
		if *n == 0 {
			continue
		}
		if jobs == nil {
			jobs = make(map[string]uint64)
		}
		jobs[skipTexts[i]] = *n
	}
	return jobs
}
