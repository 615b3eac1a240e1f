package job

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
	"time"
)

// MaxLosses is how often a dispatch of a job may be lost with its worker,
// runner or node. The job is then taken to be the cause and becomes a dead
// letter.
const MaxLosses = 10

// Reasons for the end of a job that the system itself sets.
const (
	ReasonLostTooOften = "lost_too_often"
	ReasonTimeout      = "timeout"
	ReasonCancelled    = "cancelled"
	ReasonRemoved      = "removed"
	ReasonExpired      = "expired"
)

// Policy decides what follows an outcome. The defaults equal those of RRQ, which has no
// jitter.
type Policy struct {
	MaxAttempts uint32        // total attempts of a job that names none; default 5
	BaseDelay   time.Duration // backoff after the first failure; default 5 s
	MaxDelay    time.Duration // longest backoff; default 1 h
	Jitter      uint8         // percent by which a backoff is lengthened at most; default 50
}

// DefaultPolicy holds RRQ's defaults, and our jitter.
var DefaultPolicy = Policy{MaxAttempts: 5, BaseDelay: 5 * time.Second, MaxDelay: time.Hour, Jitter: 50}

// Next is what happens to a job after a dispatch ended.
type Next uint8

// Values of Next.
const (
	NextDone     Next = iota + 1 // completed
	NextRetry                    // another attempt, due after Delay
	NextGiveBack                 // the attempt does not count; due again after Delay
	NextDead                     // failed; the job becomes a dead letter
)

// Verdict is a policy's decision about an outcome.
type Verdict struct {
	Next   Next
	Delay  time.Duration
	Reason string // why the dispatch failed
	Loss   bool   // the give-back counts towards [MaxLosses]
}

// Decide returns what is to happen to a job whose attempt a has ended with
// outcome o: it is done, is retried after a delay, fails as a dead letter, or is given
// back, which repeats the attempt without counting it. r is the rule of the job's queue for
// its function, or nil. Decide is deterministic and has no side effects.
func (p Policy) Decide(a Attempt, r *RetryRule, o Outcome) Verdict {
	switch o.Status {
	case Success:
		return Verdict{Next: NextDone}
	case RunCancelled:
		return Verdict{Next: NextDead, Reason: o.reason(ReasonCancelled)}
	case Declined, Interrupted:
		delay := p.retryAfter(o)
		if o.Snoozes() {
			delay = min(max(*o.RetryAfter, 0), MaxDuration)
		}
		return Verdict{Next: NextGiveBack, Delay: delay, Reason: o.reason(o.Status.String())}
	case Lost:
		if a.Losses+1 >= MaxLosses {
			return Verdict{Next: NextDead, Reason: o.lossReason()}
		}
		return Verdict{Next: NextGiveBack, Reason: o.reason(o.Status.String()), Loss: true}
	}

	fallback := "error"
	if o.Status == TimedOut {
		fallback = ReasonTimeout
	}
	reason := o.reason(fallback)
	if why := r.discards(&o); why != "" {
		return Verdict{Next: NextDead, Reason: withNote(reason, why)}
	}
	p = p.with(r)
	maxAttempts := cmp.Or(a.MaxAttempts, max(p.MaxAttempts, 1))
	retriesTimeouts := *cmp.Or(a.RetryOnTimeout, new(r.retriesTimeouts()))
	final := o.Final || o.Permanent() || o.Status == TimedOut && !retriesTimeouts
	if final || a.Number >= maxAttempts {
		return Verdict{Next: NextDead, Reason: reason}
	}
	if why := r.excludes(&o); why != "" {
		return Verdict{Next: NextDead, Reason: withNote(reason, why)}
	}
	return Verdict{Next: NextRetry, Delay: p.delay(a, o), Reason: reason}
}

// withNote returns a reason that ends with a note, in at most [MaxInlineFault] bytes.
func withNote(reason, note string) string { return CutText(reason, MaxInlineFault-len(note)) + note }

// Attempt describes the attempt that ended.
type Attempt struct {
	Job            ID            // seeds the jitter
	Number         uint32        // of this attempt, from 1
	Losses         uint32        // how often a dispatch of the job was lost before
	MaxAttempts    uint32        // the setting of the job, or else of its queue; 0: the policy's
	RetryInterval  time.Duration // the job's own setting; 0: exponential backoff
	RetryOnTimeout *bool         // the setting of the job, or else of its queue; nil: the rule's, or false
}

// delay returns the delay before the next attempt: what the worker asked for,
// else the job's fixed interval, else exponential backoff with jitter.
func (p Policy) delay(a Attempt, o Outcome) time.Duration {
	if o.RetryAfter != nil {
		return p.retryAfter(o)
	}
	if a.RetryInterval > 0 {
		return a.RetryInterval
	}
	return p.jittered(p.backoff(a.Number), a)
}

// backoff returns the delay after a failed attempt without jitter: BaseDelay, doubled
// with each attempt, at most MaxDelay.
func (p Policy) backoff(attempt uint32) time.Duration {
	doublings := min(attempt-1, 30)
	delay := p.BaseDelay << doublings
	overflows := delay <= 0 || delay>>doublings != p.BaseDelay
	if overflows {
		return p.MaxDelay
	}
	return min(delay, p.MaxDelay)
}

// jittered returns the delay, lengthened by up to Jitter percent, so that jobs that failed
// together are not retried together. The fraction is a hash of the job's id and the
// attempt: the same outcome always has the same verdict.
func (p Policy) jittered(delay time.Duration, a Attempt) time.Duration {
	sum := sha256.Sum256(binary.BigEndian.AppendUint32(a.Job[:], a.Number))
	longest := uint64(delay) / 100 * uint64(p.Jitter)
	extra, _ := bits.Mul64(longest, binary.BigEndian.Uint64(sum[:])) // longest × a fraction below 1
	return delay + time.Duration(extra)
}

// retryAfter returns the delay that the worker asked for, between 0 and
// MaxDelay, or 0 if it asked for none.
func (p Policy) retryAfter(o Outcome) time.Duration {
	if o.RetryAfter == nil {
		return 0
	}
	return min(max(*o.RetryAfter, 0), p.MaxDelay)
}

// Snoozes reports whether a handler gave its attempt back for a time of its choice, which
// the policy does not limit.
func (o *Outcome) Snoozes() bool {
	return o.Status == Declined && o.Started && o.RetryAfter != nil
}

// Permanent reports whether the fault cannot be cured by another attempt: the
// handler does not exist, or the job was invalid before it started. A fault
// that a handler itself reports as invalid is not permanent, nor is a missing
// handler in an outcome that asks to be run again.
func (o *Outcome) Permanent() bool {
	if o.Fault == nil {
		return false
	}
	return o.Status == Error && o.Fault.Type == HandlerNotFound || !o.Started && o.Fault.Type == FaultInvalid
}

// lossReason returns the reason of a job that was lost too often, followed by
// the reason of the last loss if there is one: its owner needs to know how the
// runner ended.
func (o *Outcome) lossReason() string {
	if last := o.reason(""); last != "" {
		return ReasonLostTooOften + ": " + last
	}
	return ReasonLostTooOften
}

// reason returns the fault's message, or fallback.
func (o *Outcome) reason(fallback string) string {
	if o.Fault != nil && o.Fault.Message != "" {
		return o.Fault.Message
	}
	return fallback
}
