package job

import "time"

// MaxLosses is how often a job may lose its worker, runner or node before it
// is taken for the cause and becomes a dead letter.
const MaxLosses = 10

// Reasons of the yard's own for a job's end.
const (
	ReasonLostTooOften = "lost_too_often"
	ReasonTimeout      = "timeout"
	ReasonCancelled    = "cancelled"
	ReasonRemoved      = "removed"
)

// Policy decides what follows an outcome. Its numbers are RRQ's.
type Policy struct {
	MaxAttempts uint32        // total attempts of a job that names none; default 5
	Base        time.Duration // delay after the first failure; default 5 s
	Max         time.Duration // longest delay; default 1 h
}

// DefaultPolicy holds RRQ's defaults.
var DefaultPolicy = Policy{MaxAttempts: 5, Base: 5 * time.Second, Max: time.Hour}

// Next tells what becomes of a job after a dispatch.
type Next uint8

// What may follow.
const (
	Done  Next = iota + 1 // completed
	Again                 // another attempt after Delay
	Back                  // the attempt is given back; due after Delay
	Dead                  // failed, a dead letter
)

// Verdict is a policy's decision.
type Verdict struct {
	Next   Next
	Delay  time.Duration
	Reason string // of a failed dispatch or a death
	Loss   bool   // the give-back counts against [MaxLosses]
}

// Decide is pure: attempt is the number the dispatch ran under, losses how
// often the job was given back for a loss before.
func (p Policy) Decide(a Attempt, o Outcome) Verdict {
	switch o.Status {
	case Success:
		return Verdict{Next: Done}
	case TimedOut:
		return Verdict{Next: Dead, Reason: o.reason(ReasonTimeout)}
	case Cancelled:
		return Verdict{Next: Dead, Reason: o.reason(ReasonCancelled)}
	case Declined, Interrupted:
		return Verdict{Next: Back, Delay: p.asked(o, 0), Reason: o.reason(o.Status.String())}
	case Lost:
		if a.Losses+1 >= MaxLosses {
			return Verdict{Next: Dead, Reason: o.lostTooOften()}
		}
		return Verdict{Next: Back, Reason: o.reason(o.Status.String()), Loss: true}
	}
	if o.Final || o.Hopeless() {
		return Verdict{Next: Dead, Reason: o.reason("error")}
	}
	if a.Number >= p.limit(a.MaxAttempts) {
		return Verdict{Next: Dead, Reason: o.reason("error")}
	}
	return Verdict{Next: Again, Delay: p.delay(a, o), Reason: o.reason("error")}
}

// Attempt is what a policy knows of the attempt that ended.
type Attempt struct {
	Number        uint32 // 1-based
	Losses        uint32
	MaxAttempts   uint32        // the job's own; 0: the policy's
	RetryInterval time.Duration // the job's own; 0: backoff
}

func (p Policy) limit(own uint32) uint32 {
	if own > 0 {
		return own
	}
	return max(p.MaxAttempts, 1)
}

// delay: what the worker asked for, else the job's fixed interval, else
// exponential backoff without jitter.
func (p Policy) delay(a Attempt, o Outcome) time.Duration {
	if o.RetryAfter != nil {
		return p.asked(o, 0)
	}
	if a.RetryInterval > 0 {
		return a.RetryInterval
	}
	shift := min(a.Number-1, 30)
	if d := p.Base << shift; d > 0 && d < p.Max && d>>shift == p.Base {
		return d
	}
	return p.Max
}

func (p Policy) asked(o Outcome, otherwise time.Duration) time.Duration {
	if o.RetryAfter == nil {
		return otherwise
	}
	return min(max(*o.RetryAfter, 0), p.Max)
}

// Hopeless tells a fault that no attempt would mend. What a handler itself calls
// invalid is no such fault, nor is a missing handler of one that asks to be run
// again.
func (o *Outcome) Hopeless() bool {
	if o.Fault == nil {
		return false
	}
	return o.Status == Error && o.Fault.Type == HandlerNotFound || !o.Started && o.Fault.Type == FaultInvalid
}

// lostTooOften is the reason with the last loss behind it, if that is told: how
// a runner ended is what its owner needs to know.
func (o *Outcome) lostTooOften() string {
	if last := o.reason(""); last != "" {
		return ReasonLostTooOften + ": " + last
	}
	return ReasonLostTooOften
}

// reason is the fault's text, or what stands for it.
func (o *Outcome) reason(otherwise string) string {
	if o.Fault != nil && o.Fault.Message != "" {
		return o.Fault.Message
	}
	return otherwise
}
