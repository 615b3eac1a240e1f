package memyard

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
	"github.com/yardmaster-dev/yardmaster/server/authority"
)

// Config configures a [Yard].
type Config struct {
	Members      []string         // names
	LaneBytes    uint64           // size of each lane; 0: unlimited
	CommitTime   time.Duration    // how long an entry takes to commit
	KeepMessages bool             // results, dead letters and the history can be read; otherwise they are only counted
	Scheduler    scheduler.Config // of all members, without Node and Members
	Log          *slog.Logger
}

// Yard is a yard in memory. Its methods may be called from any goroutine.
type Yard struct {
	Streams *Streams

	cfg Config

	mu          sync.Mutex // guards the fields below, and is held while an entry is applied
	members     []*Member
	leader      *Member // nil: none
	term, index uint64  // of the last tenure and the last entry
}

// New returns a yard whose members do not run yet.
func New(cfg Config) *Yard {
	y := &Yard{cfg: cfg, Streams: newStreams(len(cfg.Members), cfg.LaneBytes, cfg.KeepMessages)}
	for _, name := range cfg.Members {
		y.members = append(y.members, y.newMember(name, ledger.New()))
	}
	return y
}

func (y *Yard) newMember(name string, l *ledger.Ledger) *Member {
	m := &Member{Name: name, Incarnation: 1, Watch: authority.NewWatch(), yard: y, replica: replica{ledger: l}}
	m.follow()
	return m
}

// Restart returns the next run of a member, which has ended, with the same ledger.
func (y *Yard) Restart(ended *Member) *Member {
	y.mu.Lock()
	defer y.mu.Unlock()
	next := y.newMember(ended.Name, ended.ledger)
	next.Incarnation = ended.Incarnation + 1
	y.members[slices.Index(y.members, ended)] = next
	return next
}

// Members returns the present members, in the order of their configuration.
func (y *Yard) Members() []*Member {
	y.mu.Lock()
	defer y.mu.Unlock()
	return slices.Clone(y.members)
}

// Leader returns the member that leads, or nil.
func (y *Yard) Leader() *Member {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.leader
}

// Index returns the index of the last entry.
func (y *Yard) Index() uint64 {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.index
}

// member returns the running member with a name, or nil.
func (y *Yard) member(name string) *Member {
	for _, m := range y.Members() {
		if m.Name == name && m.Running() {
			return m
		}
	}
	return nil
}

// latestLocked returns the member whose ledger has the most entries. mu is held.
func (y *Yard) latestLocked() *Member {
	return slices.MaxFunc(y.members, func(a, b *Member) int {
		ia, _ := a.Applied()
		ib, _ := b.Applied()
		return int(ia) - int(ib)
	})
}

// ErrNoLeader is returned by [Yard.Replace] if no member leads.
var ErrNoLeader = errors.New("no member leads")

// Replace puts a new member, which starts with a snapshot of the leader's ledger, in the
// place of old, and returns it.
func (y *Yard) Replace(old *Member, name string) (*Member, error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	i := slices.Index(y.members, old)
	switch {
	case y.leader == nil:
		return nil, ErrNoLeader
	case i < 0 || old == y.leader:
		return nil, fmt.Errorf("%s cannot be replaced: it leads, or is no member", old.Name)
	}
	restored, err := snapshotOf(y.leader)
	if err != nil {
		return nil, err
	}
	y.members[i] = y.newMember(name, restored)
	return y.members[i], nil
}

// snapshotOf returns a ledger that was restored from a snapshot of a member's.
func snapshotOf(m *Member) (*ledger.Ledger, error) {
	var snapshot bytes.Buffer
	if err := m.Copy().Encode(&snapshot); err != nil {
		return nil, err
	}
	return ledger.Decode(&snapshot)
}

// CompareLedgers returns an error unless the ledgers of all running members are equal.
func (y *Yard) CompareLedgers() error {
	y.mu.Lock() // no entry is applied meanwhile
	defer y.mu.Unlock()
	var first *Member
	var hash [32]byte
	for _, m := range y.members {
		if !m.Running() {
			continue
		}
		sum, err := m.Copy().Hash()
		switch {
		case err != nil:
			return err
		case first == nil:
			first, hash = m, sum
		case sum != hash:
			return fmt.Errorf("the ledgers of %s and %s differ", first.Name, m.Name)
		}
	}
	return nil
}
