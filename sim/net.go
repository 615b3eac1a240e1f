package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"yardmaster/agent"
	"yardmaster/job"
)

var errNoAnswer = errors.New("no answer")

// net plays the messages between nodes. A node always reaches itself.
type net struct {
	y      *yard
	cut    map[[2]string]bool // from, to
	lossy  int                // messages lost, of a thousand
	frozen map[string]time.Time
	stuck  map[string]time.Time     // nodes whose disk is full or hangs, until when
	skew   map[string]time.Duration // by which a node's clock is ahead
	wrong  time.Time                // until when beats may tell of it
}

func newNet(y *yard) *net {
	return &net{y: y, cut: map[[2]string]bool{}, frozen: map[string]time.Time{}, stuck: map[string]time.Time{}, skew: map[string]time.Duration{}}
}

func (n *net) heal() {
	clear(n.cut)
	clear(n.frozen)
	clear(n.stuck)
	clear(n.skew)
	n.lossy = 0
}

// writes tells that a node's disk takes what it is given.
func (n *net) writes(name string) bool { return !n.stuck[name].After(time.Now()) }

// both tells that two nodes reach each other.
func (n *net) both(a, b *node) bool {
	now := time.Now()
	return a == b || !n.cut[[2]string{a.name, b.name}] && !n.cut[[2]string{b.name, a.name}] &&
		!n.frozen[a.name].After(now) && !n.frozen[b.name].After(now)
}

// post carries a message: never, once, twice, soon or late. A node that is
// frozen neither says nor hears anything; what it had said comes afterwards.
// It is called while nothing else happens.
func (n *net) post(from *life, to, key string, deliver func(*life)) {
	y := n.y
	key = from.id + ">" + to + " " + key
	if !from.up {
		return
	}
	own := from.name == to
	if !own && (n.cut[[2]string{from.name, to}] || y.mishaps() && y.chance(key+"lost", n.lossy)) {
		return
	}
	times := 1
	if !own && y.mishaps() && y.chance(key+"twice", 20) {
		times = 2
	}
	for i := range times {
		key := fmt.Sprintf("%s %d", key, i)
		wait := y.between(key, 50*time.Microsecond, 900*time.Microsecond)
		if !own {
			wait = y.delay(key, time.Millisecond, 3*time.Second)
		}
		y.after(n.thawed(from.name, wait), key, func() { n.arrive(to, key, deliver) })
	}
}

func (n *net) arrive(to, key string, deliver func(*life)) {
	if n.frozen[to].After(time.Now()) {
		n.y.after(n.thawed(to, 0), key, func() { n.arrive(to, key, deliver) })
		return
	}
	for _, node := range n.y.nodes {
		if node.name == to && node.life.up {
			deliver(node.life)
		}
	}
}

// thawed gives when something is said or heard that would be after a while.
// What a frozen node kept waiting keeps its order.
func (n *net) thawed(name string, wait time.Duration) time.Duration {
	left := time.Until(n.frozen[name])
	if wait >= left {
		return wait
	}
	return left + time.Millisecond - (left-wait)/10_000
}

// ordersOf is the authority's way to nodes.
type ordersOf struct{ *life }

const ordersPatience = 2 * time.Second

// Assign is scheduler.Fleet's.
func (o ordersOf) Assign(to string, b job.Batch, done func([]job.Answer, error)) {
	l, y := o.life, o.y
	var once sync.Once
	key := fmt.Sprintf("assign %d.%d", b.Epoch, b.Number)
	y.after(0, l.id+">"+to+" "+key, func() {
		y.net.post(l, to, key, func(at *life) {
			_, epoch, _ := at.watched.authority()
			answers := at.agent.Assign(b)
			if b.Epoch < epoch && at.begun && slices.ContainsFunc(answers, func(a job.Answer) bool { return a != job.StaleEpoch }) {
				y.fail("%s answers %v to orders of epoch %d, and knows of epoch %d", at.id, answers, b.Epoch, epoch)
			}
			y.tell("%s answers %s %v", at.id, key, answers)
			y.net.post(at, l.name, "answer "+key, func(back *life) {
				if back == l {
					once.Do(func() { done(answers, nil) })
				}
			})
		})
		y.after(ordersPatience, "late "+key, func() {
			if l.up {
				once.Do(func() { done(nil, errNoAnswer) })
			}
		})
	})
}

// Recall is scheduler.Fleet's.
func (o ordersOf) Recall(to string, r job.Recall) {
	l, y := o.life, o.y
	key := fmt.Sprintf("recall %s#%d %d %s", r.Job, r.N, r.Epoch, r.Reason)
	y.after(0, l.id+">"+to+" "+key, func() {
		y.net.post(l, to, key, func(at *life) {
			y.tell("%s hears %s", at.id, key)
			at.agent.Recall(r)
		})
	})
}

// busOf is an agent's way to the authority.
type busOf struct{ *life }

// Authority and AuthorityChanged are agent.Bus's.
func (b busOf) Authority() (string, uint64, bool) { return b.watched.authority() }

// AuthorityChanged is closed at the next change.
func (b busOf) AuthorityChanged() <-chan struct{} { return b.watched.changed() }

// Report is answered when its outcomes are committed.
func (b busOf) Report(ctx context.Context, to string, r job.Report) (job.ReportAck, error) {
	key := fmt.Sprintf("report %d.%d", r.Rev, r.FirstNote)
	if len(r.Outcomes) > 0 {
		key += fmt.Sprintf(" %s#%d", r.Outcomes[0].Job, r.Outcomes[0].N)
	}
	return ask(ctx, b.life, to, key, func(at *life, reply func(job.ReportAck)) error { return at.sched.Report(r, reply) })
}

// Beat is answered at once.
func (b busOf) Beat(ctx context.Context, to string, beat job.Beat) (job.BeatAck, error) {
	return ask(ctx, b.life, to, "beat", func(at *life, reply func(job.BeatAck)) error {
		told := beat
		told.At = beat.At.Add(b.y.net.skew[b.name])
		return at.sched.Beat(told, reply)
	})
}

// ask is a request and its answer.
func ask[T any](ctx context.Context, l *life, to, key string, serve func(at *life, reply func(T)) error) (T, error) {
	y := l.y
	answered := make(chan T, 2)
	refused := make(chan error, 2)
	y.after(0, l.id+">"+to+" "+key, func() {
		y.net.post(l, to, key, func(at *life) {
			err := serve(at, func(answer T) {
				y.after(0, at.id+" answers "+key, func() {
					y.net.post(at, l.name, "answer "+key, func(back *life) {
						if back == l {
							put(answered, answer)
						}
					})
				})
			})
			if err != nil {
				y.net.post(at, l.name, "refuse "+key, func(back *life) {
					if back == l {
						put(refused, err)
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

// put leaves a message if there is still room for one.
func put[T any](c chan T, v T) {
	select {
	case c <- v:
	default:
	}
}

// Load reads a job's body from its lane.
func (b busOf) Load(ctx context.Context, at job.Position, _ job.ID) ([]byte, error) {
	body, err := b.y.lanes.load(ctx, b.life, at)
	if errors.Is(err, errGone) {
		err = agent.ErrBodyLost
	}
	return body, err
}

// StoreBlob keeps a large result, or cannot just now.
func (b busOf) StoreBlob(ctx context.Context, name string, data []byte) (job.Blob, error) {
	key := fmt.Sprintf("store %s %s", b.id, name)
	return called(ctx, b.life, key, b.y.delay(key, 2*time.Millisecond, time.Second), func() (job.Blob, error) {
		if err := b.y.lanes.ask(b.life, 0, key); err != nil {
			return job.Blob{}, err
		}
		return job.Blob{Name: name, Chunks: 1, Size: int64(len(data))}, nil
	})
}
