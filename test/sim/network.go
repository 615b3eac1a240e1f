package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/agent"
	"github.com/yardmaster-dev/yardmaster/job"
)

var errNoAnswer = errors.New("no answer")

// network simulates the messages between nodes. A node always reaches itself.
type network struct {
	sim          *simulation
	cut          map[[2]string]bool // from, to
	lossPerMille int                // messages lost, of a thousand
	frozen       map[string]time.Time
	late         map[string]lateness
	diskBlocked  map[string]time.Time // until when a node's disk accepts no writes
}

func (n *network) heal() {
	clear(n.cut)
	clear(n.frozen)
	clear(n.late)
	clear(n.diskBlocked)
	n.lossPerMille = 0
}

// canWrite reports whether a node's disk accepts writes.
func (n *network) canWrite(name string) bool { return !n.diskBlocked[name].After(time.Now()) }

// lateness is how much later the messages arrive that are sent to a node until a time.
type lateness struct {
	until time.Time
	by    time.Duration
}

// connected reports whether two nodes reach each other, in both directions.
func (n *network) connected(a, b *node) bool {
	now := time.Now()
	return a == b || !n.cut[[2]string{a.name, b.name}] && !n.cut[[2]string{b.name, a.name}] &&
		!n.frozen[a.name].After(now) && !n.frozen[b.name].After(now)
}

// send delivers a message to a node: never, once or twice, soon or late. A frozen node
// sends and receives nothing; its messages are delayed until it resumes. Only events
// may call send.
func (n *network) send(from *process, to, key string, deliver func(*process)) {
	sim := n.sim
	key = from.id + ">" + to + " " + key
	if !from.up {
		return
	}
	local := from.name == to
	if !local && (n.cut[[2]string{from.name, to}] || sim.minorFaultsActive() && sim.chance(key+"lost", n.lossPerMille)) {
		return
	}
	times := 1
	if !local && sim.minorFaultsActive() && sim.chance(key+"twice", 20) {
		times = 2
	}
	for i := range times {
		key := fmt.Sprintf("%s %d", key, i)
		wait := sim.duration(key, 50*time.Microsecond, 900*time.Microsecond)
		if !local {
			wait = sim.delay(key, time.Millisecond, 3*time.Second)
		}
		if late := n.late[to]; late.until.After(time.Now()) {
			wait = late.by
		}
		sim.after(n.resumeDelay(from.name, wait), key, func() { n.deliver(to, key, deliver) })
	}
}

// deliver delivers a message to the running process of a node, which may be frozen, and
// drops it if the node is down.
func (n *network) deliver(to, key string, deliver func(*process)) {
	if n.frozen[to].After(time.Now()) {
		n.sim.after(n.resumeDelay(to, 0), key, func() { n.deliver(to, key, deliver) })
		return
	}
	for _, node := range n.sim.nodes {
		if node.name == to && node.process.up {
			deliver(node.process)
		}
	}
}

// resumeDelay returns when a message that is due after wait is sent or received by a
// node that may be frozen. Delayed messages keep their order.
func (n *network) resumeDelay(name string, wait time.Duration) time.Duration {
	left := time.Until(n.frozen[name])
	if wait >= left {
		return wait
	}
	return left + time.Millisecond - (left-wait)/10_000
}

// fleetView implements scheduler.Fleet for one process.
type fleetView struct{ *process }

const assignTimeout = 2 * time.Second

// Assign implements scheduler.Fleet.
func (v fleetView) Assign(to string, b job.AssignmentBatch, done func([]job.Answer, error)) {
	proc, sim := v.process, v.sim
	var once sync.Once
	key := fmt.Sprintf("assign %d.%d", b.Epoch, b.Number)
	sim.after(0, proc.id+">"+to+" "+key, func() {
		sim.net.send(proc, to, key, func(dst *process) {
			_, epoch, _ := dst.authority.authority()
			answers := dst.agent.Assign(b)
			if b.Epoch < epoch && dst.agentStarted && slices.ContainsFunc(answers, func(a job.Answer) bool { return a != job.StaleEpoch }) {
				sim.fail("%s answers %v to assignments of epoch %d, and its ledger is at epoch %d", dst.id, answers, b.Epoch, epoch)
			}
			sim.trace("%s answers %s %v", dst.id, key, answers)
			sim.net.send(dst, proc.name, "answer "+key, func(back *process) {
				if back == proc {
					once.Do(func() { done(answers, nil) })
				}
			})
		})
		sim.after(assignTimeout, "late "+key, func() {
			if proc.up {
				once.Do(func() { done(nil, errNoAnswer) })
			}
		})
	})
}

// Recall implements scheduler.Fleet.
func (v fleetView) Recall(to string, r job.Recall) {
	proc, sim := v.process, v.sim
	key := fmt.Sprintf("recall %s#%d %d %s", r.Job, r.N, r.Epoch, r.Reason)
	sim.after(0, proc.id+">"+to+" "+key, func() {
		sim.net.send(proc, to, key, func(dst *process) {
			sim.trace("%s receives %s", dst.id, key)
			dst.agent.Recall(r)
		})
	})
}

// busView implements agent.Transport for one process.
type busView struct{ *process }

// Authority implements agent.Transport.
func (v busView) Authority() (string, uint64, bool) { return v.authority.authority() }

// AuthorityChanged implements agent.Transport.
func (v busView) AuthorityChanged() <-chan struct{} { return v.authority.changed() }

// Report implements agent.Transport.
func (v busView) Report(ctx context.Context, to string, r job.Report) (job.ReportAck, error) {
	key := fmt.Sprintf("report %d.%d", r.Rev, r.FirstWorkerEvent)
	if len(r.Outcomes) > 0 {
		key += fmt.Sprintf(" %s#%d", r.Outcomes[0].Job, r.Outcomes[0].N)
	}
	return request(ctx, v.process, to, key, func(dst *process, reply func(job.ReportAck)) error {
		err := dst.sched.Report(r, reply)
		if err == nil {
			dst.heard.knows(v.name, r.Incarnation)
		}
		return err
	})
}

// Heartbeat implements agent.Transport. The heartbeat carries the time of the node's wall clock, and the
// elapsed time that a node keeps whose clock stops while it is suspended.
func (v busView) Heartbeat(ctx context.Context, to string, beat job.Heartbeat) (job.HeartbeatAck, error) {
	clock := v.sim.clocks.of(v.name)
	ack, err := request(ctx, v.process, to, "beat", func(dst *process, reply func(job.HeartbeatAck)) error {
		sent := beat
		sent.At = beat.At.Add(clock.ahead)
		if !beat.Elapsed.IsZero() {
			sent.Elapsed = beat.Elapsed.Add(v.suspendedAtAck - clock.suspended)
		}
		err := dst.sched.Heartbeat(sent, func(ack job.HeartbeatAck) {
			if told := time.Now(); !ack.Elapsed.IsZero() {
				v.sim.after(0, dst.id+" tells "+v.name, func() { v.sim.checker.clocks.onTold(dst, ack.Epoch, told, ack.Elapsed) })
			}
			reply(ack)
		})
		if err == nil {
			dst.heard.add(v.name, &beat)
		}
		return err
	})
	if err == nil {
		v.suspendedAtAck = clock.suspended
	}
	return ack, err
}

// request sends a request to a node and waits for its answer or error. The process
// that receives it calls serve.
func request[T any](ctx context.Context, proc *process, to, key string, serve func(dst *process, reply func(T)) error) (T, error) {
	sim := proc.sim
	answered := make(chan T, 2)
	refused := make(chan error, 2)
	sim.after(0, proc.id+">"+to+" "+key, func() {
		sim.net.send(proc, to, key, func(dst *process) {
			err := serve(dst, func(answer T) {
				sim.after(0, dst.id+" answers "+key, func() {
					sim.net.send(dst, proc.name, "answer "+key, func(back *process) {
						if back == proc {
							offer(answered, answer)
						}
					})
				})
			})
			if err != nil {
				sim.net.send(dst, proc.name, "refuse "+key, func(back *process) {
					if back == proc {
						offer(refused, err)
					}
				})
			}
		})
	})
	var none T
	select {
	case a := <-answered:
		return a, nil
	case err := <-refused:
		return none, err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// offer sends v to c unless its buffer is full.
func offer[T any](c chan T, v T) {
	select {
	case c <- v:
	default:
	}
}

// LoadBody implements agent.Transport. A record that is gone may have been relocated;
// then the ledger of the cluster has its position.
func (v busView) LoadBody(ctx context.Context, pos job.Position, id job.ID) ([]byte, error) {
	r, err := v.sim.lanes.load(ctx, v.process, pos, id, true)
	if !errors.Is(err, errGone) {
		return r.Body, err
	}
	key := "find " + v.id + " " + id.String()
	now, err := callAfter(ctx, v.process, key, v.sim.requestTime(key), func() (job.Position, error) {
		if v.sim.raft.leader == nil {
			return pos, errNoAnswer
		}
		view, _, ok := v.sim.raft.leader.ledger.Find(id)
		if ok && !view.State.Ended() && view.Position == pos && !v.sim.lanes.lane(pos.Lane).damaged {
			v.sim.fail("%s: the record of job %s, %s, is gone", v.id, id, pos)
		}
		if !ok {
			return pos, agent.ErrBodyLost
		}
		return view.Position, nil
	})
	if err != nil {
		return nil, err
	}
	if r, err = v.sim.lanes.load(ctx, v.process, now, id, true); errors.Is(err, errGone) {
		err = agent.ErrBodyLost
	}
	return r.Body, err
}

// StoreError implements agent.Transport. It keeps nothing.
func (v busView) StoreError(ctx context.Context, id job.ID, e *job.AttemptError) error {
	_, err := askLane(ctx, v.process, 0, fmt.Sprintf("error %s %s#%d", v.id, id, e.N), func(*lane) (struct{}, error) { return struct{}{}, nil })
	return err
}

// StoreResult implements agent.Transport. It keeps nothing.
func (v busView) StoreResult(ctx context.Context, name string, data []byte) (job.Blob, error) {
	key := fmt.Sprintf("store %s %s", v.id, name)
	return askLane(ctx, v.process, 0, key, func(*lane) (job.Blob, error) {
		return job.Blob{Name: name, Chunks: 1, Size: int64(len(data))}, nil
	})
}
