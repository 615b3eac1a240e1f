package lanes

import (
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/duration"
)

// Parameters of the slowing down of acceptance.
const (
	// MaxAckDelay is the longest delay of an acknowledgement.
	MaxAckDelay = time.Second
	// RefuseLag is the ingest lag from which jobs are refused. An election takes less.
	RefuseLag = 15 * time.Second

	toleratedLag       = 250 * time.Millisecond // no delay up to this lag
	lagPerDelay        = 2                      // further lag for each unit of delay; above 1, so that acknowledgements never pause
	overloadRetryAfter = 2 * time.Second
)

// slowing is the range of the used share of a bound in which the delay grows from 0 to
// MaxAckDelay.
type slowing struct{ from, to float64 }

// More jobs may be accepted until a stream is full; no more are ingested once there are as
// many ids as there may be. A yard that runs well has most of these ids all the time.
var (
	streamSlowing = slowing{0.5, 0.95}
	idSlowing     = slowing{0.9, 1}
)

// Load is what slows down the acceptance of jobs at a node, or stops it. Lag, Records and
// Lane concern the lane that its new jobs go to, which is LaneNumber.
type Load struct {
	LaneNumber uint8
	Lag        time.Duration // age of the oldest acknowledged record that is not ingested
	Records    uint64        // number of such records
	Lane       Fill          // bytes of the lane
	Bodies     Fill          // bytes of the stream of large bodies
	IDs        Fill          // ids of forgotten jobs in the ledger

	InFlightLimit int64 // of publishes, because lanes answer slowly; 0: they do not
}

// Fill is how much of a bound is used. A Max of 0 means unlimited or unknown.
type Fill struct{ Used, Max uint64 }

// share returns the used share of the bound, from 0 to 1.
func (f Fill) share() float64 {
	if f.Max == 0 {
		return 0
	}
	return min(float64(f.Used)/float64(f.Max), 1)
}

// delay returns the delay of acknowledgements: 0 up to the range's begin, and then the
// square of the part of the range that is used, so that the first steps are small.
func (f Fill) delay(r slowing) time.Duration {
	x := min(max(f.share()-r.from, 0)/(r.to-r.from), 1)
	return time.Duration(x * x * float64(MaxAckDelay))
}

// Pressure is what a node does about its load.
type Pressure struct {
	Delay      time.Duration // of the acknowledgement of a job, from 0 to MaxAckDelay
	LargeDelay time.Duration // the same if the body is stored apart from the record; at least Delay
	Refusal    string        // why jobs are refused before they are published; "": they are not
	Causes     []string      // of a delay or a refusal, with what helps
	Limit      string        // of publishes in flight because lanes answer slowly, as a warning; "": there is none
}

// PressureOf returns what to do about a load.
func PressureOf(load Load) Pressure {
	var p Pressure
	slow := func(delay *time.Duration, d time.Duration, format string, args ...any) {
		if d > 0 {
			*delay = max(*delay, d)
			p.Causes = append(p.Causes, fmt.Sprintf(format, args...))
		}
	}
	slow(&p.Delay, lagDelay(load.Lag), "jobs arrive faster than the authority ingests them: %d wait, the oldest for %s; if none is ingested, 'yardmaster status' names the reason", load.Records, duration.Format(load.Lag.Round(100*time.Millisecond)))
	if load.Lag >= RefuseLag {
		p.Refusal = p.Causes[0]
	}
	slow(&p.Delay, load.Lane.delay(streamSlowing), "lane %d is %.0f %% full of jobs that have not ended: add workers, cancel jobs ('yardmaster queue list' shows where they wait), or raise nats.max_store_bytes on every member", load.LaneNumber, 100*load.Lane.share())
	slow(&p.Delay, load.IDs.delay(idSlowing), "the ledger has %.0f %% of the ids of forgotten jobs that it may have: jobs end faster than their ids may be forgotten", 100*load.IDs.share())
	if load.InFlightLimit > 0 {
		p.Limit = fmt.Sprintf("this node takes in at most %d jobs at once and refuses others, because lanes take more than %s to store a job: if few jobs are enqueued, look at the disks and the network of all members", load.InFlightLimit, duration.Format(slowAnswer))
	}
	p.LargeDelay = p.Delay
	slow(&p.LargeDelay, load.Bodies.delay(streamSlowing), "the stream of large bodies is %.0f %% full of jobs that have not ended, or were refused or replaced within some minutes: add workers, or raise nats.max_store_bytes", 100*load.Bodies.share())
	return p
}

// Warnings returns what an operator should know about p.
func (p *Pressure) Warnings() []string {
	effect := fmt.Sprintf("acknowledgements of jobs are delayed by up to %s at this node", duration.Format(max(p.Delay, p.LargeDelay).Round(time.Millisecond)))
	if p.Refusal != "" {
		effect = "jobs are refused at this node"
	}
	var warnings []string
	for _, cause := range p.Causes {
		warnings = append(warnings, effect+": "+cause)
	}
	if p.Limit != "" {
		warnings = append(warnings, p.Limit)
	}
	return warnings
}

// lagDelay returns the delay of acknowledgements for an ingest lag: 0 up to toleratedLag,
// and then a part of what is above it.
func lagDelay(lag time.Duration) time.Duration {
	return min(max(lag-toleratedLag, 0)/lagPerDelay, MaxAckDelay)
}

// maxSamples bounds the samples of an ingestLag. They cover more than RefuseLag.
const maxSamples = 512

// ingestLag measures how long the records of one lane wait until they are ingested, by the
// clock of one node: from when that node knew of a record until its own ledger has it.
type ingestLag struct {
	samples []lagSample // of records that are not ingested, oldest first
}

// lagSample is a sequence of the lane, and when the node knew that it was stored.
type lagSample struct {
	seq uint64
	at  time.Time
}

// observe records the last stored and the last ingested sequence at the time now. It returns the
// age of the oldest record that is not ingested, 0 if all are.
func (l *ingestLag) observe(now time.Time, last, ingested uint64) time.Duration {
	n := len(l.samples)
	if n > 0 && last < l.samples[n-1].seq { // the lane was reset
		l.samples, n = nil, 0
	}
	if last > ingested && n < maxSamples && (n == 0 || last > l.samples[n-1].seq) {
		l.samples = append(l.samples, lagSample{last, now})
	}
	done := 0
	for done < len(l.samples) && l.samples[done].seq <= ingested {
		done++
	}
	l.samples = l.samples[:copy(l.samples, l.samples[done:])]
	if len(l.samples) == 0 {
		return 0
	}
	return now.Sub(l.samples[0].at)
}
