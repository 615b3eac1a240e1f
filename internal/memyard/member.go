package memyard

import (
	"context"
	"sync"

	"github.com/yardmaster-dev/yardmaster/agent"
	"github.com/yardmaster-dev/yardmaster/scheduler"
	"github.com/yardmaster-dev/yardmaster/server/authority"
)

// Member is one run of a member of a yard, which begins with [Member.Open] and
// [Member.Run]. [Yard.Restart] returns the next one. The exported fields must not change
// after Run.
type Member struct {
	Name        string
	Incarnation uint64
	Watch       *authority.Watch // follows the holder of the authority
	Scheduler   *scheduler.Scheduler
	Agent       *agent.Agent
	Handlers    map[string]func(context.Context, []byte) ([]byte, error) // of requests of other members, by verb

	replica
	yard  *Yard
	inbox chan func()    // batches of assignments and recalls, in order
	loops sync.WaitGroup // the goroutines of the run

	ctx    context.Context // of the run
	cancel context.CancelFunc

	stateMu   sync.Mutex // guards the fields below
	running   bool
	submitted chan *entry // to the committer of the term that it leads; nil: it does not lead
}

// maxInbox is how many batches of assignments and recalls may wait for a member.
const maxInbox = 4096

// Open creates the scheduler and the agent. The agent's targets are to be added before
// Run.
func (m *Member) Open(cfg agent.Config) {
	y := m.yard
	sched := y.cfg.Scheduler
	sched.Node, sched.Members = m.Name, y.cfg.Members // until the ledger has the membership
	cfg.Node, cfg.Incarnation = m.Name, m.Incarnation
	m.Scheduler = scheduler.New(sched, m, lanesView{m}, fleetView{m}, historyView{m}, y.cfg.Log)
	m.Agent = agent.New(cfg, transport{m}, y.cfg.Log)
	m.inbox = make(chan func(), maxInbox)
}

// Run starts the member, which runs until ctx ends, or it is stopped. If other members have
// more entries, it first gets a snapshot. Run does not block.
func (m *Member) Run(ctx context.Context) error {
	m.ctx, m.cancel = context.WithCancel(ctx)
	if err := m.catchUp(); err != nil {
		return err
	}
	m.Go(func(ctx context.Context) { _ = m.Agent.Run(ctx) })
	m.Go(func(ctx context.Context) {
		for {
			select {
			case <-ctx.Done():
				return
			case do := <-m.inbox:
				do()
			}
		}
	})
	return nil
}

// catchUp makes the member run, with the ledger of the member that has the most entries.
func (m *Member) catchUp() error {
	y := m.yard
	y.mu.Lock()
	defer y.mu.Unlock()
	applied, _ := m.Applied()
	latest := y.latestLocked()
	if most, _ := latest.Applied(); most > applied {
		restored, err := snapshotOf(latest)
		if err != nil {
			return err
		}
		m.replica.set(restored)
		m.follow()
	}
	m.setRunning(true)
	return nil
}

// Go runs loop in a goroutine of the member. The context ends with the run.
func (m *Member) Go(loop func(context.Context)) { m.loops.Go(func() { loop(m.ctx) }) }

// Running reports whether the member runs. Messages from and to one that does not are
// lost, and it applies no entries.
func (m *Member) Running() bool {
	m.stateMu.Lock()
	defer m.stateMu.Unlock()
	return m.running
}

func (m *Member) setRunning(running bool) {
	m.stateMu.Lock()
	defer m.stateMu.Unlock()
	m.running = running
}

func (m *Member) setSubmitted(c chan *entry) {
	m.stateMu.Lock()
	defer m.stateMu.Unlock()
	m.submitted = c
}

func (m *Member) getSubmitted() chan *entry {
	m.stateMu.Lock()
	defer m.stateMu.Unlock()
	return m.submitted
}

// Kill ends the run at once: what the member still does reaches no other one.
func (m *Member) Kill() {
	m.setRunning(false)
	m.cancel()
}

// Wait blocks until all goroutines of the run have ended. The run ends with the context of
// Run, and by Kill. What the member does until then, unless it was killed, reaches the
// others.
func (m *Member) Wait() {
	m.loops.Wait()
	m.setRunning(false)
}
