package job

// WorkerEvent reports that a worker of a node stalled, or that it recovered.
type WorkerEvent struct {
	Worker  string // its channel
	Stalled bool   // else recovered
	Detail  string // why it stalled, or how it recovered: one of the constants below
}

// Why workers stall and how they recover, as written to history.
const (
	StalledAck   = "ack-timeout"   // it did not acknowledge a job
	StalledLease = "lease-expired" // it had a job and gave no sign of life

	StalledCrashLoop   = "crash-loop"   // a runner whose process exits again and again
	StalledCannotStart = "cannot-start" // a runner whose program is missing or not executable
	StalledPortTaken   = "port-taken"   // a runner whose port is used by another process
	StalledUnreachable = "unreachable"  // a runner that is managed elsewhere and does not answer

	RecoveredCredit  = "credit"  // it asked for more work
	RecoveredAlive   = "alive"   // it reported on its running jobs
	RecoveredLeft    = "left"    // it cancelled the subscription that had stalled
	RecoveredResumed = "resumed" // it reconnected
	RecoveredProven  = "proven"  // a runner's new process has answered, or has run for a while
)

// MaxWorkerEvents is the highest number of worker events in one report.
const MaxWorkerEvents = 64
