package job

// Note is what a node has noticed of one of its workers: that it stalled, or
// that it works again.
type Note struct {
	Worker  string // its channel
	Stalled bool   // else it recovered
	Detail  string // why it stalled, or how it recovered
}

// Why workers stall, and how they recover, in the words of history.
const (
	StalledAck   = "ack-timeout"   // it was given a job and did not acknowledge it
	StalledLease = "lease-expired" // it had a job and gave no sign of life

	StalledCrashes     = "crash-loop"   // a runner whose process ends again and again
	StalledNoStart     = "cannot-start" // a runner whose program is missing, or may not be run
	StalledPort        = "port-taken"   // a runner whose port somebody else has
	StalledUnreachable = "unreachable"  // a runner that somebody else keeps, and that does not answer

	RecoveredCredit  = "credit"  // it asked for more work
	RecoveredAlive   = "alive"   // it spoke of the jobs in its hands
	RecoveredLeft    = "left"    // it gave up the subscription that had stalled
	RecoveredResumed = "resumed" // it came back over another connection
	RecoveredProven  = "proven"  // a runner's new process has answered, or has lived for a while
)

// MaxNotes is the most notes that travel in one report.
const MaxNotes = 64
