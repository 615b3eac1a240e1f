package soak

import (
	"fmt"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/drill"
)

// kind is what a job is to do.
type kind uint8

const (
	plainJob   kind = iota // returns a small result
	failingJob             // fails for good
	retriedJob             // fails once
	delayedJob             // starts days later, in shortened time
	resultJob              // returns a large result
	bodyJob                // has large params
	loggingJob             // writes to its log
	uniqueJob              // has a unique key
	runnerJob              // is run by an RRQ runner
	pausedJob              // in the queue that is paused until the end
	kinds                  // number of kinds
)

var kindNames = [kinds]string{"plain", "failing", "retried", "delayed", "large result", "large params", "logging", "unique key", "RRQ", "paused queue"}

// shares are the shares of the kinds, in thousandths. The rest is plain.
var shares = [kinds]uint64{failingJob: 10, retriedJob: 10, delayedJob: 10, resultJob: 50, bodyJob: 2, loggingJob: 50, uniqueJob: 100, runnerJob: 20, pausedJob: 3}

// The sizes of jobs, in bytes.
const (
	padBytes         = 160
	delayedPad       = 5 << 10
	pausedPad        = 3 << 10
	largeBytes       = 100 << 10
	logLines         = 5
	hotQueues        = 10 // queues that half of the jobs share
	daysPerRun       = 30 // simulated days of a run, for delays
	maxDelayDays     = 3
	pausedQueue      = "paused"
	runnerQueue      = "rrq"
	runnerFunction   = "demo#echo"
	pausedPart       = 5 // jobs enter the paused queue only in the first 1/pausedPart of the run
	uniqueTTLPart    = 20
	startsEarlySlack = 50 * time.Millisecond // between the clocks of a worker and the authority
)

// mix determines every job from its number.
type mix struct {
	seed     uint64
	rate     int
	duration time.Duration
	queues   int
	keys     int
}

// random returns a number that depends on a job and a purpose only.
func (m *mix) random(n int, purpose uint64) uint64 {
	x := m.seed ^ uint64(n)*0x9e3779b97f4a7c15 ^ purpose*0xd6e8feb86659fd93 // splitmix64
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// due returns when job n is to be enqueued, after the begin of the load.
func (m *mix) due(n int) time.Duration {
	return time.Duration(n) * time.Second / time.Duration(m.rate)
}

// kind returns what job n is to do.
func (m *mix) kind(n int) kind {
	r := m.random(n, 1) % 1000
	for k, share := range shares {
		if r < share {
			if kind(k) == pausedJob && m.due(n) > m.duration/pausedPart {
				return plainJob
			}
			return kind(k)
		}
		r -= share
	}
	return plainJob
}

// queue returns the queue of job n.
func (m *mix) queue(n int) string {
	switch m.kind(n) {
	case pausedJob:
		return pausedQueue
	case runnerJob:
		return runnerQueue
	}
	r := m.random(n, 2)
	if r&1 == 0 {
		return queueName(int(r>>1) % min(hotQueues, m.queues))
	}
	return queueName(int(r>>1) % m.queues)
}

func queueName(i int) string { return fmt.Sprintf("q%05d", i) }

// delay returns how long after it is due to be enqueued job n may start. No job starts
// after the load has ended.
func (m *mix) delay(n int) time.Duration {
	if m.kind(n) != delayedJob {
		return 0
	}
	day := m.duration / daysPerRun
	delay := day + time.Duration(m.random(n, 3)%uint64(maxDelayDays*day))
	return min(delay, max(m.duration-m.due(n), 0))
}

// transport returns how job n is enqueued.
func (m *mix) transport(n int) drill.Transport {
	r := m.random(n, 4) % 20
	switch k := m.kind(n); {
	case k == uniqueJob, k == bodyJob: // the answer names the job; a direct publish takes no large params
		return drill.Enqueue
	case r < 8:
		return drill.Enqueue
	case r < 14:
		return drill.PlainPublish
	case r < 16:
		return drill.HTTP
	case k == delayedJob || k == retriedJob:
		return drill.Enqueue
	}
	return drill.Overhop
}

var padding = strings.Repeat("x", largeBytes)

// message returns job n under an id, as its producer sends it. began is when the load
// began.
func (m *mix) message(n int, id string, began time.Time) drill.Message {
	k, pad := m.kind(n), padBytes
	switch k {
	case bodyJob:
		pad = largeBytes
	case delayedJob:
		pad = delayedPad
	case pausedJob:
		pad = pausedPad
	}
	msg := drill.Message{Queue: m.queue(n), Key: id, Params: fmt.Sprintf(`{"n":%d,"pad":%q}`, n, padding[:pad])}
	switch k {
	case runnerJob:
		msg.Function = runnerFunction
	case delayedJob:
		msg.Fields = fmt.Sprintf(`"run_at":%q`, began.Add(m.due(n)+m.delay(n)).UTC().Format(time.RFC3339Nano))
	case retriedJob:
		msg.Fields = `"retry_interval_ms":200`
	case uniqueJob:
		key := m.random(n, 5) % uint64(m.keys)
		msg.Fields = fmt.Sprintf(`"unique_key":"u%d","unique_ttl_ms":%d`, key, (m.duration / uniqueTTLPart).Milliseconds())
		if m.random(n, 6)&1 == 0 {
			msg.Fields = fmt.Sprintf(`"unique_key":"e%d","unique_until":"end"`, key)
		}
	}
	return msg
}
