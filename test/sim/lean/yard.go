package lean

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/agent"
	"github.com/yardmaster-dev/yardmaster/internal/memyard"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
)

// Size is the number of members.
const Size = 3

// commitTime is how long an entry takes to commit.
const commitTime = 2 * time.Millisecond

// Yard is a yard that works in sessions. Its methods must be called from one goroutine.
type Yard struct {
	*memyard.Yard
	Work   func(a *job.Assignment, spec *job.Spec) job.Outcome // runs an attempt; Job and N are set by the yard
	Offers func(node string) []job.Offer                       // the capacity of a member

	leader   *memyard.Member // of the session; nil outside one
	sessions int
	group    sync.WaitGroup // the workers of a session
	end      context.CancelFunc
	ctx      context.Context
	failed   chan error // buffer of one: why a tenure ended early
}

// New returns a yard whose lanes have at most so many bytes each.
func New(laneBytes uint64) *Yard {
	cfg := memyard.Config{
		LaneBytes: laneBytes, CommitTime: commitTime, Log: slog.New(slog.DiscardHandler),
		Scheduler: scheduler.Config{
			Policy:         job.Policy{MaxAttempts: 3, BaseDelay: 100 * time.Millisecond, MaxDelay: time.Second},
			DefaultTimeout: time.Minute, CreateQueues: true,
		},
	}
	for i := range Size {
		cfg.Members = append(cfg.Members, fmt.Sprintf("n%d", i+1))
	}
	return &Yard{Yard: memyard.New(cfg), failed: make(chan error, 1)}
}

// Begin begins a session: all members start, and one of them, another each time, becomes
// the authority.
func (y *Yard) Begin() error {
	y.ctx, y.end = context.WithCancel(context.Background())
	y.sessions++
	for _, m := range y.Members() {
		if y.sessions > 1 {
			m = y.Restart(m)
		}
		if err := y.start(m); err != nil {
			return err
		}
	}
	leader := y.Members()[y.sessions%Size]
	y.leader = leader
	leader.Go(func(ctx context.Context) {
		if err := y.Lead(ctx, leader); err != nil && ctx.Err() == nil {
			y.failed <- fmt.Errorf("tenure of %s: %w", leader.Name, err)
		}
	})
	return y.Await("the authority", time.Minute, func() bool {
		status, err := leader.Scheduler.Status(y.ctx)
		return err == nil && status.Dispatching && len(status.Reasons) == 0
	})
}

// start starts a member with its workers, which run until the session ends.
func (y *Yard) start(m *memyard.Member) error {
	m.Open(agent.Config{Runners: []string{Runner}, DrainTimeout: time.Millisecond, StopTimeout: time.Millisecond})
	targets := map[job.Kind]*target{}
	for _, k := range []job.Kind{job.Overhop, job.RRQ} {
		t := &target{yard: y, agent: m.Agent, kind: k, free: map[[2]string]int{}, wake: make(chan struct{}, 1)}
		targets[k] = t
		m.Agent.AddTarget(t)
		y.group.Go(func() { t.run(y.ctx) })
	}
	for _, o := range y.Offers(m.Name) {
		targets[o.Kind].release(o.Key, o.Worker, o.Free)
	}
	return m.Run(y.ctx)
}

// End ends the session.
func (y *Yard) End() {
	y.end()
	for _, m := range y.Members() {
		m.Wait()
	}
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
	result, _, err := y.leader.Scheduler.Propose(y.ctx, c)
	if err == nil {
		err = result.Err
	}
	return result, err
}

// View calls fn with the authority's ledger or, outside a session, the first member's.
func (y *Yard) View(fn func(*ledger.Ledger)) {
	m := y.leader
	if m == nil {
		m = y.Members()[0]
	}
	m.View(fn)
}

// Enqueue stores records and sends most of them to the authority, as nodes do. The
// authority reads the others.
func (y *Yard) Enqueue(records []job.Record) error {
	if err := y.Streams.Store(records); err != nil {
		return err
	}
	if records[0].Seq%10 > 0 {
		y.leader.Scheduler.ReceiveRecords(records)
	}
	return nil
}

// Idle reports whether the authority has nothing to do: every record is ingested, no job
// is active, none waits outside of the queues for which waits returns true, and all of
// the outbox is published.
func (y *Yard) Idle(waits func(queue string) bool) (idle bool) {
	ends := y.Streams.LaneEnds()
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
	for _, m := range y.Members() {
		c.Members = append(c.Members, present(m.Name))
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
	members := y.Members()
	i := 0
	for members[i] == y.leader {
		i++
	}
	old, next := present(members[i].Name), present(name)
	for _, c := range []ledger.Command{
		&ledger.ChangeMembers{Join: &next, Leave: old.ServerID()},
		&ledger.AdvanceMember{ServerID: next.ServerID(), From: ledger.MemberJoining, To: ledger.MemberPresent},
		&ledger.AdvanceMember{ServerID: old.ServerID(), From: ledger.MemberLeaving, To: ledger.MemberOut},
	} {
		if _, err := y.Propose(c); err != nil {
			return fmt.Errorf("%T: %w", c, err)
		}
	}
	joined, err := y.Replace(members[i], name)
	if err != nil {
		return err
	}
	defer members[i].Wait()
	members[i].Kill()
	return y.start(joined)
}

// SnapshotSize returns the size of a snapshot of the ledger, in bytes.
func (y *Yard) SnapshotSize() (int64, error) {
	var size counter
	err := y.Members()[0].Copy().Encode(&size)
	return int64(size), err
}

// counter is a writer that counts bytes.
type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}
