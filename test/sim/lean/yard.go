package lean

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/agent"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
)

// Size is the number of members.
const Size = 3

// Yard is a yard. Its methods must be called from one goroutine.
type Yard struct {
	Streams *Streams
	Work    func(a *job.Assignment, spec *job.Spec) job.Outcome // runs an attempt; Job and N are set by the yard
	Offers  func(node string) []job.Offer                       // the capacity of a member

	members []*member
	leader  *member // nil outside a session
	raft    raft
	group   sync.WaitGroup // the goroutines of a session
	end     context.CancelFunc
	ctx     context.Context
	failed  chan error // buffer of one: why a tenure ended early
}

// member is a member of the yard. It implements [scheduler.Ledger].
type member struct {
	yard        *Yard
	name        string
	sched       *scheduler.Scheduler
	agent       *agent.Agent // of the session
	targets     []*target
	incarnation uint64
	assigned    chan func() // batches of assignments and recalls, in order

	mu        sync.RWMutex // guards ledger
	ledger    *ledger.Ledger
	authority authorityWatch
}

// New returns a yard whose lanes have at most so many bytes each.
func New(laneBytes uint64) *Yard {
	y := &Yard{Streams: newStreams(laneBytes), failed: make(chan error, 1)}
	y.raft.submitted = make(chan *entry, 1024)
	var names []string
	for i := range Size {
		names = append(names, fmt.Sprintf("n%d", i+1))
	}
	for _, name := range names {
		y.members = append(y.members, y.newMember(name, ledger.New()))
	}
	return y
}

func (y *Yard) newMember(name string, l *ledger.Ledger) *member {
	m := &member{yard: y, name: name, ledger: l}
	m.authority.next = make(chan struct{})
	cfg := scheduler.Config{
		Node: name, Policy: job.Policy{MaxAttempts: 3, BaseDelay: 100 * time.Millisecond, MaxDelay: time.Second},
		DefaultTimeout: time.Minute, CreateQueues: true,
	}
	for i := range Size {
		cfg.Members = append(cfg.Members, fmt.Sprintf("n%d", i+1)) // until the ledger has the membership
	}
	m.sched = scheduler.New(cfg, m, lanesView{m}, fleetView{m}, historyView{m}, slog.New(slog.DiscardHandler))
	return m
}

// Begin begins a session: all members start, and one of them, another each time, becomes
// the authority.
func (y *Yard) Begin() error {
	y.ctx, y.end = context.WithCancel(context.Background())
	y.raft.term++
	leader, term := y.members[y.raft.term%Size], y.raft.term
	for _, m := range y.members {
		m.start(y.ctx)
	}
	y.group.Go(func() { y.raft.run(y.ctx, leader) })
	y.leader = leader
	ctx := y.ctx
	y.group.Go(func() {
		if err := leader.sched.Run(ctx, term); err != nil && ctx.Err() == nil {
			y.failed <- fmt.Errorf("tenure of %s: %w", leader.name, err)
		}
	})
	return y.Await("the authority", time.Minute, func() bool {
		status, err := leader.sched.Status(ctx)
		return err == nil && status.Dispatching && len(status.Reasons) == 0
	})
}

// End ends the session.
func (y *Yard) End() {
	y.end()
	y.group.Wait()
	y.leader = nil
}

// Await sleeps until a condition holds. It returns an error if that takes longer than
// most, or the tenure has ended.
func (y *Yard) Await(what string, most time.Duration, holds func() bool) error {
	for until := time.Now().Add(most); !holds(); time.Sleep(20 * time.Millisecond) {
		select {
		case err := <-y.failed:
			return err
		default:
		}
		if time.Now().After(until) {
			return fmt.Errorf("%s: not within %s", what, most)
		}
	}
	return nil
}

// Propose commits a command and returns its result.
func (y *Yard) Propose(c ledger.Command) (ledger.Result, error) {
	result, _, err := y.leader.sched.Propose(y.ctx, c)
	if err == nil {
		err = result.Err
	}
	return result, err
}

// View calls fn with the authority's ledger or, outside a session, the first member's.
func (y *Yard) View(fn func(*ledger.Ledger)) {
	m := y.leader
	if m == nil {
		m = y.members[0]
	}
	m.View(fn)
}

// Enqueue stores records and sends most of them to the authority, as nodes do. The
// authority reads the others.
func (y *Yard) Enqueue(records []job.Record) error {
	if err := y.Streams.store(records); err != nil {
		return err
	}
	if records[0].Seq%10 > 0 {
		y.leader.sched.ReceiveRecords(records)
	}
	return nil
}

// Idle reports whether the authority has nothing to do: every record is ingested, no job
// is active, none waits outside of the queues for which waits returns true, and all of
// the outbox is published.
func (y *Yard) Idle(waits func(queue string) bool) (idle bool) {
	ends := y.Streams.laneEnds()
	y.View(func(l *ledger.Ledger) {
		for i, c := range l.Lanes() {
			if c.Cursor < ends[i] {
				return
			}
		}
		for _, q := range l.Queues() {
			if q.Counts[job.Active] > 0 || q.Counts[job.Waiting] > 0 && !waits(q.Name) {
				return
			}
		}
		idle = l.OutboxBytes() == 0
	})
	return idle
}

// SetMembers records the members in the ledger, from which they can be replaced.
func (y *Yard) SetMembers() error {
	c := &ledger.SetMembers{}
	for _, m := range y.members {
		c.Members = append(c.Members, present(m.name))
	}
	_, err := y.Propose(c)
	return err
}

func present(name string) ledger.Member {
	return ledger.Member{Node: name, Dir: "d", Route: name + ":1", Raft: name + ":2", State: ledger.MemberPresent}
}

// ReplaceMember replaces a member that is not the authority by a new one, which starts
// with a snapshot of the authority's ledger.
func (y *Yard) ReplaceMember(name string) error {
	i := 0
	for y.members[i] == y.leader {
		i++
	}
	old, next := present(y.members[i].name), present(name)
	for _, c := range []ledger.Command{
		&ledger.ChangeMembers{Join: &next, Leave: old.ServerID()},
		&ledger.AdvanceMember{ServerID: next.ServerID(), From: ledger.MemberJoining, To: ledger.MemberPresent},
		&ledger.AdvanceMember{ServerID: old.ServerID(), From: ledger.MemberLeaving, To: ledger.MemberOut},
	} {
		if _, err := y.Propose(c); err != nil {
			return fmt.Errorf("%T: %w", c, err)
		}
	}
	y.raft.mu.Lock() // no entry is applied meanwhile
	defer y.raft.mu.Unlock()
	var snapshot bytes.Buffer
	if err := y.leader.Copy().Encode(&snapshot); err != nil {
		return err
	}
	restored, err := ledger.Decode(&snapshot)
	if err != nil {
		return err
	}
	joined := y.newMember(name, restored)
	joined.authority.set(restored.Authority())
	joined.start(y.ctx)
	y.members[i].stop()
	y.members[i] = joined
	return nil
}

// CompareLedgers returns an error unless the members' ledgers are equal.
func (y *Yard) CompareLedgers() error {
	y.raft.mu.Lock() // no entry is applied meanwhile
	defer y.raft.mu.Unlock()
	var first string
	for _, m := range y.members {
		hash, err := m.Copy().Hash()
		if err != nil {
			return err
		}
		if text := fmt.Sprintf("%x", hash); first == "" {
			first = text
		} else if text != first {
			return fmt.Errorf("the ledgers of %s and %s differ", y.members[0].name, m.name)
		}
	}
	return nil
}

// SnapshotSize returns the size of a snapshot of the ledger, in bytes.
func (y *Yard) SnapshotSize() (int64, error) {
	var size counter
	err := y.members[0].Copy().Encode(&size)
	return int64(size), err
}

// counter is a writer that counts bytes.
type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}
