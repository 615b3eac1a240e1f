package sim

import (
	"fmt"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// producers simulates the producers of jobs.
type producers struct{ sim *simulation }

// The work of a run.
const (
	jobsPerYard = 50
	narrowLimit = 2       // limit of the queue "narrow"
	longBody    = 5 << 10 // bytes, more than an assignment carries
)

// start schedules all enqueues and creates the queue "narrow".
func (p *producers) start() {
	sim := p.sim
	for i := range sim.plan.drawn() {
		key := fmt.Sprintf("k%d", i)
		wait := sim.duration("plan "+key, 50*time.Millisecond, warmup+faultPhase)
		queue := [...]string{"mail", "narrow", "post"}[sim.intn("queue "+key, 3)]
		sim.after(wait, "enqueue "+key, func() { p.enqueue(queue, key, p.body(queue, key)) })
	}
	p.ensure("make narrow", func(l *ledger.Ledger) bool { _, ok := l.Queue("narrow"); return ok },
		&ledger.AddQueue{ID: job.ID{1}, Name: "narrow", Config: job.QueueConfig{Limit: narrowLimit}})
}

// body returns the body of a job; some bodies are invalid.
func (p *producers) body(queue, key string) []byte {
	sim := p.sim
	var fields []string
	if queue == "post" {
		fields = append(fields, `"function":"`+runnerName+`#go"`)
	}
	params := ""
	if sim.chance("long "+key, 100) {
		params = `"x":"` + strings.Repeat("x", longBody) + `"`
	}
	fields = append(fields, `"params":{`+params+`}`)
	switch n := sim.intn("more "+key, 100); {
	case n < 3:
		fields = append(fields, `"priority":"high"`)
	case n < 15:
		fields = append(fields, fmt.Sprintf(`"delay_ms":%d`, sim.intn("delay "+key, 4000)))
	case n < 25:
		fields = append(fields, fmt.Sprintf(`"priority":%d`, sim.intn("priority "+key, 10)))
	case queue != "mail":
	case n < 32:
		fields = append(fields, fmt.Sprintf(`"unique_key":"u%d","unique_ttl_ms":%d`, n%2, 500+sim.intn("ttl "+key, 4000)))
	case n < 38:
		fields = append(fields, fmt.Sprintf(`"rate_limit_key":"r","rate_limit_ms":%d`, 200+sim.intn("rate "+key, 3000)))
	case n < 44:
		fields = append(fields, fmt.Sprintf(`"debounce_key":"d%d","debounce_ms":%d`, n%2, 200+sim.intn("window "+key, 3000)))
	}
	return []byte("{" + strings.Join(fields, ",") + "}")
}

// enqueue publishes a record until it is acknowledged, each time under the same key
// and possibly to another lane.
func (p *producers) enqueue(queue, key string, body []byte) {
	sim := p.sim
	if queue == "narrow" && !p.hasQueue("narrow") {
		sim.after(100*time.Millisecond, "enqueue "+key, func() { p.enqueue(queue, key, body) })
		return
	}
	node := sim.nodes[sim.intn("by "+key, members)].process
	number := uint8(sim.intn("lane "+key, members))
	wait := sim.delay("publish "+key, 3*time.Millisecond, 800*time.Millisecond)
	again := func() {
		sim.after(sim.duration("again "+key, 50*time.Millisecond, time.Second), "enqueue "+key, func() { p.enqueue(queue, key, body) })
	}
	sim.after(wait, "publish "+key, func() {
		if !sim.lanes.made || sim.lanes.lanes[number].truncatedTo > 0 || sim.lanes.checkAvailable(node, number, "publish "+key) != nil {
			again()
			return
		}
		r, fresh := sim.lanes.store(number, queue, key, body)
		sim.trace("%s stored as %d@%d, fresh %t", key, number, r.Seq, fresh)
		if sim.minorFaultsActive() && sim.chance("unacknowledged "+key, 80) {
			again()
			return
		}
		sim.checker.onAccepted(key, &r)
		p.notify(node, r)
	})
}

// notify sends a stored record to the authority, unless the record is too long.
func (p *producers) notify(from *process, r job.Record) {
	to, _, ok := from.authority.authority()
	if !ok || len(r.Body) > 4<<10 || p.sim.chance("unnoticed "+r.Key, 100) {
		return
	}
	p.sim.net.send(from, to, "notice "+r.Key, func(dst *process) { dst.sched.ReceiveRecords([]job.Record{r}) })
}

// hasQueue reports whether any node's ledger has a queue.
func (p *producers) hasQueue(queue string) (ok bool) {
	for _, n := range p.sim.nodes {
		_, has := n.process.ledger.Queue(queue)
		ok = ok || has
	}
	return ok
}

// ensure proposes a command to the leader repeatedly until done is true of its ledger.
func (p *producers) ensure(key string, done func(*ledger.Ledger) bool, c ledger.Command) {
	leader := p.sim.raft.leader
	if leader != nil && done(leader.ledger) {
		return
	}
	if leader != nil {
		p.sim.callers.do(leader, c)
	}
	p.sim.after(150*time.Millisecond, key, func() { p.ensure(key, done, c) })
}
