package sim

import (
	"fmt"
	"strings"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

// load plays producers.
type load struct{ y *yard }

// How much there is to do.
const (
	jobsPerYard = 50
	narrowLimit = 2
	longBody    = 5 << 10 // bytes, more than an assignment carries
)

// begin plans who enqueues what and when.
func (p *load) begin() {
	y := p.y
	for i := range y.plan.jobs() {
		key := fmt.Sprintf("k%d", i)
		wait := y.between("plan "+key, 50*time.Millisecond, calmFor+stormFor)
		queue := [...]string{"mail", "narrow", "post"}[y.pick("queue "+key, 3)]
		y.after(wait, "enqueue "+key, func() { p.enqueue(queue, key, p.body(queue, key)) })
	}
	p.until("make narrow", func(l *ledger.Ledger) bool { _, ok := l.Queue("narrow"); return ok },
		&ledger.AddQueue{ID: job.ID{1}, Name: "narrow", Config: job.QueueConfig{Limit: narrowLimit}})
}

// body is what a producer asks for; some ask for nonsense.
func (p *load) body(queue, key string) []byte {
	y := p.y
	var fields []string
	if queue == "post" {
		fields = append(fields, `"function":"`+runnerName+`#go"`)
	}
	params := ""
	if y.chance("long "+key, 100) {
		params = `"x":"` + strings.Repeat("x", longBody) + `"`
	}
	fields = append(fields, `"params":{`+params+`}`)
	switch n := y.pick("more "+key, 100); {
	case n < 3:
		fields = append(fields, `"priority":"high"`)
	case n < 15:
		fields = append(fields, fmt.Sprintf(`"delay_ms":%d`, y.pick("delay "+key, 4000)))
	case n < 25:
		fields = append(fields, fmt.Sprintf(`"priority":%d`, y.pick("priority "+key, 10)))
	case queue != "mail":
	case n < 32:
		fields = append(fields, fmt.Sprintf(`"unique_key":"u%d","unique_ttl_ms":%d`, n%2, 500+y.pick("ttl "+key, 4000)))
	case n < 38:
		fields = append(fields, fmt.Sprintf(`"rate_limit_key":"r","rate_limit_ms":%d`, 200+y.pick("rate "+key, 3000)))
	case n < 44:
		fields = append(fields, fmt.Sprintf(`"debounce_key":"d%d","debounce_ms":%d`, n%2, 200+y.pick("window "+key, 3000)))
	}
	return []byte("{" + strings.Join(fields, ",") + "}")
}

// enqueue publishes until it is acknowledged, each time under the same key and
// perhaps to another lane.
func (p *load) enqueue(queue, key string, body []byte) {
	y := p.y
	if queue == "narrow" && !p.has("narrow") {
		y.after(100*time.Millisecond, "enqueue "+key, func() { p.enqueue(queue, key, body) })
		return
	}
	at := y.nodes[y.pick("by "+key, members)].life
	number := uint8(y.pick("lane "+key, members))
	wait := y.delay("publish "+key, 3*time.Millisecond, 800*time.Millisecond)
	again := func() {
		y.after(y.between("again "+key, 50*time.Millisecond, time.Second), "enqueue "+key, func() { p.enqueue(queue, key, body) })
	}
	y.after(wait, "publish "+key, func() {
		if !y.lanes.made || y.lanes.lanes[number].cut > 0 || y.lanes.ask(at, number, "publish "+key) != nil {
			again()
			return
		}
		r, fresh := y.lanes.store(number, queue, key, body)
		y.tell("%s stored as %d@%d, fresh %t", key, number, r.Seq, fresh)
		if y.mishaps() && y.chance("unacknowledged "+key, 80) {
			again()
			return
		}
		y.judge.accepted(key, &r)
		p.notice(at, r)
	})
}

// notice tells the authority of a record, if it is not too long to be told.
func (p *load) notice(at *life, r job.Record) {
	to, _, ok := at.watched.authority()
	if !ok || len(r.Body) > 4<<10 || p.y.chance("unnoticed "+r.Key, 100) {
		return
	}
	p.y.net.post(at, to, "notice "+r.Key, func(l *life) { l.sched.Notice([]job.Record{r}) })
}

// has tells that any node's ledger has a queue.
func (p *load) has(queue string) (ok bool) {
	for _, n := range p.y.nodes {
		_, has := n.life.ledger.Queue(queue)
		ok = ok || has
	}
	return ok
}

// until has the authority do something until it is done.
func (p *load) until(what string, done func(*ledger.Ledger) bool, c ledger.Command) {
	l := p.y.raft.leader
	if l != nil && done(l.ledger) {
		return
	}
	if l != nil {
		p.y.callers.do(l, c)
	}
	p.y.after(150*time.Millisecond, what, func() { p.until(what, done, c) })
}
