package drill

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/drill/check"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// The queue of [Harness.StartWorkers] with a named limit. Its jobs have customers as keys, and
// start in fair rounds.
const (
	KeyedQueue  = "keyed"
	SharedLimit = "shared"
)

// sharedBounds returns the bounds of SharedLimit. Its rate is above that of the steady load,
// which catches up with it after a fault.
func sharedBounds() check.Bounds { return check.Bounds{Total: 6, PerKey: 2, Rate: 200, Burst: 20} }

// customers are those of the steady load.
var customers = []string{"acme", "beta", "gamma"}

// namedLimits records which queues use which limits, and the bounds that may have held when.
type namedLimits struct {
	mu     sync.Mutex
	queues map[string][]string // by limit
	bounds map[string][]check.Bounds

	ordered      string // the limit whose changes and starts must have an order; "" for none
	initialTotal int
	changes      []check.LimitOperation // of that limit
}

// set records a change of a limit from its request until it is answered, and calls change,
// which returns once the change is known to be done.
func (l *namedLimits) set(name string, b check.Bounds, change func() error) error {
	l.mu.Lock()
	b.From, b.To = HostClock(), math.MaxInt64
	if l.bounds == nil {
		l.bounds, l.queues = make(map[string][]check.Bounds), make(map[string][]string)
	}
	l.bounds[name] = append(l.bounds[name], b)
	replaced := len(l.bounds[name]) - 1
	l.mu.Unlock()
	if err := change(); err != nil {
		return err
	}
	answered := HostClock()
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range replaced {
		l.bounds[name][i].To = min(l.bounds[name][i].To, answered)
	}
	if name == l.ordered {
		const client = -1 // none of a worker
		l.changes = append(l.changes, check.LimitOperation{Client: client, Kind: check.SetTotal, Total: b.Total, From: b.From, To: answered})
	}
	return nil
}

// RequireLimitOrder requires that the changes of a limit from now on, when its total is as
// given, have one order with the starts and ends of its jobs. Each worker of its queues must
// run one job at a time.
func (h *Harness) RequireLimitOrder(name string, total int) {
	h.limits.mu.Lock()
	defer h.limits.mu.Unlock()
	h.limits.ordered, h.limits.initialTotal = name, total
}

// SetLimit sets the bounds of a named limit with the command of an operator, on one running
// node after the other until one has done so. It is safe for concurrent use with others. Only
// one change of a limit may be made at a time.
func (h *Harness) SetLimit(name string, b check.Bounds) error {
	words := []string{"limit", "set", name, "--total", strconv.Itoa(b.Total), "--per-key", strconv.Itoa(b.PerKey),
		"--rate", fmt.Sprintf("%d/s", int(b.Rate)), "--burst", strconv.Itoa(int(b.Burst))}
	return h.limits.set(name, b, func() error {
		return until(h.Ctx, "limit "+name+" is set", func() error {
			failed := errors.New("no node is running")
			for _, n := range h.Running() {
				ctx, cancel := context.WithTimeout(h.Ctx, 6*time.Second)
				_, failed = n.Command(ctx, words...)
				cancel()
				if failed == nil {
					break
				}
			}
			return failed
		})
	})
}

// UseLimits makes a queue, which must exist, use limits under the customer in the params of
// its jobs, in fair rounds.
func (h *Harness) UseLimits(queue string, limits ...string) {
	h.Ask("queue.set", map[string]any{"name": queue, "limits": limits, "key": "params.customer", "fair": true}, nil)
	h.limits.mu.Lock()
	defer h.limits.mu.Unlock()
	for _, name := range limits {
		if !slices.Contains(h.limits.queues[name], queue) {
			h.limits.queues[name] = append(h.limits.queues[name], queue)
		}
	}
}

// addKeyedQueue creates KeyedQueue and its limit.
func (h *Harness) addKeyedQueue() {
	must.Do(h.SetLimit(SharedLimit, sharedBounds()))
	h.AddQueue(KeyedQueue, 0)
	h.UseLimits(KeyedQueue, SharedLimit)
}

// CustomerLoads returns loads of KeyedQueue, one for each customer.
func CustomerLoads(load func(customer string) *Load) (loads []*Load) {
	for _, c := range customers {
		l := load(c)
		l.Queue, l.Customer, l.Prefix = KeyedQueue, c, KeyedQueue+"-"+c
		loads = append(loads, l)
	}
	return loads
}

// checkLimits checks for each named limit that neither more jobs ran at the same time than its
// bounds allowed, according to the witnesses, nor more started than its rate allowed, according
// to history and to the witnesses.
func (h *Harness) checkLimits(v *Verdict) {
	for name, queues := range h.limits.queues {
		var runs []check.Run
		var begins []int64
		for _, r := range v.runs {
			if slices.Contains(queues, r.Queue) {
				runs = append(runs, r)
				begins = append(begins, r.Begin)
			}
		}
		var starts []int64
		placed := make(map[string][]int64) // by job
		for _, p := range v.events.placed {
			if slices.Contains(queues, p.queue) {
				starts = append(starts, p.at)
				placed[p.job] = append(placed[p.job], p.at)
			}
		}
		bounds := h.limits.bounds[name]
		delay := longestDelay(runs, placed)
		wrong := slices.Concat(check.ConcurrencyErrors(runs, bounds, delay), check.RateErrors(starts, bounds, clockError), check.RateErrors(begins, bounds, delay))
		for _, w := range wrong[:min(len(wrong), 5)] {
			h.Require(false, "limit %s: %s", name, w)
		}
		h.Figure("limit "+name, fmt.Sprintf("%d runs, %d assignments, %d changes, longest time from an assignment to its begin %s; %d beyond its bounds",
			len(runs), len(starts), len(bounds)-1, delay.Round(time.Millisecond), len(wrong)))
		if name == h.limits.ordered {
			h.checkLimitOrder(runs, v.events.ends)
		}
	}
}

// checkLimitOrder checks what [Harness.RequireLimitOrder] requires.
func (h *Harness) checkLimitOrder(runs []check.Run, ends []check.End) {
	failed := make(map[string]bool)
	for _, e := range ends {
		if e.Failed {
			failed[e.Job] = true
		}
	}
	operations := append(check.LimitOperations(runs, failed), h.limits.changes...)
	ok, undecided := check.LimitLinearizable(operations, h.limits.initialTotal)
	h.Require(ok || undecided, "no order of %d changes of limit %s, starts and ends of its jobs keeps it", len(operations), h.limits.ordered)
	h.Figure("changes of limit "+h.limits.ordered+", starts and ends, explained by one order",
		fmt.Sprintf("%d: %s", len(operations), map[bool]string{true: "not decided in time", false: fmt.Sprint(ok)}[undecided]))
}

// clockError is how far the time of an event in history, of which the harness knows the
// offset from the host's clock only once, may be from that clock.
const clockError = 20 * time.Millisecond

// longestDelay returns the longest time from the last assignment of a job before it began to
// that begin.
func longestDelay(runs []check.Run, placed map[string][]int64) (longest time.Duration) {
	longest = clockError
	for _, r := range runs {
		times := placed[r.Job] // in the order of history
		i, _ := slices.BinarySearch(times, r.Begin+int64(clockError))
		if i > 0 {
			longest = max(longest, time.Duration(r.Begin-times[i-1]))
		}
	}
	return longest
}
