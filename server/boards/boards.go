// Package boards derives the boards, which show the state of the yard in key-value
// buckets, from the ledger and from what the authority knows.
package boards

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/board"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/consensus"
	"github.com/yardmaster-dev/yardmaster/health"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
)

// slowInterval is the update interval of boards whose history should cover most of a
// minute: JetStream keeps ten revisions of a key.
const slowInterval = 5 * time.Second

// boardList lists the boards in the order in which they are updated.
var boardList = []board.Board{
	{Name: subjects.BucketAuthority, Interval: slowInterval, SkipWatch: true}, {Name: subjects.BucketNodes, Interval: slowInterval, SkipWatch: true},
	{Name: subjects.BucketQueues}, {Name: subjects.BucketCron},
}

// store implements the board updater's interface to the key-value buckets.
type store struct{ boards *streams.BoardStore }

func (b store) Ensure(ctx context.Context) (made bool, err error) {
	return b.boards.EnsureBoards(ctx)
}

func (b store) Watch(ctx context.Context, name string, receive func(board.Entry)) error {
	return b.boards.WatchBoard(ctx, name, func(e streams.BoardEntry) { receive(board.Entry(e)) })
}

func (b store) Put(name, key string, value []byte, expected uint64, done func(uint64, error)) {
	b.boards.PutRow(name, key, value, expected, func(rev uint64, err error) { done(rev, rowError(err)) })
}

func (b store) Remove(name, key string, expected uint64, done func(uint64, error)) {
	b.boards.DeleteRow(name, key, expected, func(rev uint64, err error) { done(rev, rowError(err)) })
}

// rowError maps a conflicting write to [board.ErrConflict].
func rowError(err error) error {
	if _, changed := errors.AsType[*streams.WrongLastError](err); changed {
		return board.ErrConflict
	}
	return err
}

// Config is what the boards are derived from, and where they are stored. All fields are
// required.
type Config struct {
	Node     string
	Boards   *streams.BoardStore
	View     func(func(*ledger.Ledger)) // reads the local ledger
	Raft     func() consensus.Status
	Status   func(context.Context) (scheduler.AuthorityStatus, error) // asks this node's scheduler
	Reporter *health.Reporter
	Log      *slog.Logger
}

// Run keeps the boards up to date until ctx ends. It is for the authority only.
func Run(ctx context.Context, cfg Config) {
	board.New(boardList, &source{cfg: cfg}, store{cfg.Boards}, cfg.Log).Run(ctx)
}

// source derives the rows of the boards from the ledger and from the scheduler's status.
// The status is read for the first board of a pass and used for all of them.
type source struct {
	cfg    Config
	active bool // this node is the authority
	status scheduler.AuthorityStatus
	values map[string]map[string]any // of the small boards, by board and key
}

// Rows implements [board.Source]. It returns the rows of the board with the given name, or
// false if this node is not the authority. The board of the authority comes first in each
// pass: its request refreshes the scheduler's status for all of them.
func (s *source) Rows(ctx context.Context, name string) ([]board.Row, bool) {
	if name == subjects.BucketAuthority {
		s.refresh(ctx)
	}
	if !s.active {
		return nil, false
	}
	switch name {
	case subjects.BucketAuthority:
		return s.authorityRows(ctx), true
	case subjects.BucketNodes:
		return s.nodeRows(), true
	case subjects.BucketQueues:
		return s.queueRows(), true
	}
	return s.cronRows(), true
}

// refresh reads the scheduler's status. Before the tenure has begun it fails and there
// is nothing to show.
func (s *source) refresh(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, health.AuthorityStatusTimeout)
	defer cancel()
	status, err := s.cfg.Status(ctx)
	s.status, s.active, s.values = status, err == nil, map[string]map[string]any{}
}

// Values implements [board.Source]. It reads queues and cron entries from the ledger; the
// values of the other boards are those that the last call of Rows has kept.
func (s *source) Values(name string, keys []string) ([]any, board.Version) {
	values := make([]any, len(keys))
	version := board.Version{Epoch: s.status.Epoch}
	s.cfg.View(func(l *ledger.Ledger) {
		version.Index, version.At = l.Index(), l.Now()
		for i, key := range keys {
			switch name {
			case subjects.BucketQueues:
				if v, ok := l.Queue(key); ok {
					values[i] = queueRowOf(l, &v)
				}
			case subjects.BucketCron:
				if v, ok := l.Cron(key); ok {
					values[i] = cronRowOf(&v)
				}
			default:
				values[i] = s.values[name][key]
			}
		}
	})
	return values, version
}

// boardSeed seeds the hashes of rows, which are compared only within this process.
var boardSeed = maphash.MakeSeed()

func hashOf[T comparable](v T) uint64 { return maphash.Comparable(boardSeed, v) }

// leaseRow is the holder of the authority. It does not contain the end of the lease,
// which moves every few seconds: each renewal would push the last change of the holder
// out of the key's history.
type leaseRow struct {
	Owner   string `json:"owner"`
	LeaseID string `json:"lease_id"`
}

// authorityRows returns the rows of the authority board.
func (s *source) authorityRows(ctx context.Context) []board.Row {
	ready := s.cfg.Reporter.ReadinessUnder(ctx, s.status)
	var lease leaseRow
	var replay ledger.SnapshotReplay
	s.cfg.View(func(l *ledger.Ledger) {
		a := l.Authority()
		lease = leaseRow{a.Owner, a.LeaseID}
		replay = l.Snapshot(s.cfg.Reporter.SnapshotContext(l, s.status)).Replay
	})
	s.values[subjects.BucketAuthority] = map[string]any{"lease": lease, "readiness": ready, "replay": replay}
	reasons := strings.Join(ready.Reasons, "\n")
	return []board.Row{
		{Key: "lease", Stable: hashOf(lease)},
		{
			Key: "readiness", Volatile: hashOf(reasons),
			Stable: hashOf(fmt.Sprint(ready.Ready, ready.Accepting, ready.Dispatching, withoutDigits(reasons))),
		},
		{
			Key: "replay", Stable: hashOf(replay.DeferredLeaderNotification),
			Volatile: hashOf(fmt.Sprint(stringOrEmpty(replay.Cursor), replay.PendingEvents, stringOrEmpty(replay.LastReplayedEventID))),
		},
	}
}

// withoutDigits returns s without its digits, so that a changed number in a reason
// does not count as a new reason.
func withoutDigits(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, s)
}

// stringOrEmpty returns *s, or "" for nil.
func stringOrEmpty(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// nodeRow is a member as the authority sees it.
type nodeRow struct {
	Name         string            `json:"name"`
	State        string            `json:"state"` // up, draining, down
	Authority    bool              `json:"authority"`
	Voter        bool              `json:"voter"`
	Raft         string            `json:"raft"`    // address; "" in a cluster of one
	Overhop      string            `json:"overhop"` // address; "" if the member has not reported one
	Incarnation  uint64            `json:"incarnation"`
	LastReceived *time.Time        `json:"last_heard"` // last heartbeat; null: none in this tenure
	Running      int               `json:"running"`
	Credits      int               `json:"credits"` // available, at Overhop subscriptions
	Slots        int               `json:"slots"`   // available, at RRQ processes
	Pools        []api.RunnerSlots `json:"pools"`
}

// nodeRows returns the rows of the node board.
func (s *source) nodeRows() []board.Row {
	now := time.Now()
	statuses := map[string]*api.NodeStatus{}
	for i := range s.status.Nodes {
		statuses[s.status.Nodes[i].Name] = &s.status.Nodes[i]
	}
	values := map[string]any{}
	var rows []board.Row
	for _, m := range s.cfg.Raft().Members {
		row := nodeRow{
			Name: m.Name, State: "down", Authority: m.Name == s.cfg.Node, Voter: m.Voter, Raft: m.Addr,
			Pools: []api.RunnerSlots{},
		}
		runners := ""
		if status := statuses[m.Name]; status != nil {
			row.State, row.Overhop, row.Incarnation = status.State(), status.Edge, status.Incarnation
			if status.BeatAgoMS >= 0 {
				row.LastReceived = new(now.Add(-time.Duration(status.BeatAgoMS) * time.Millisecond).UTC().Truncate(time.Millisecond))
			}
			row.Running, row.Credits, row.Slots, row.Pools = status.Running, status.Credits, status.Slots, status.Pools
			for _, p := range status.Pools {
				runners += " " + p.Runner
			}
		}
		values[m.Name] = row
		rows = append(rows, board.Row{
			Key:      m.Name,
			Stable:   hashOf(fmt.Sprint(row.State, row.Authority, row.Voter, row.Raft, row.Overhop, row.Incarnation, runners)),
			Volatile: hashOf(fmt.Sprint(row.Running, row.Credits, row.Slots, row.Pools)),
		})
	}
	s.values[subjects.BucketNodes] = values
	return rows
}

// queueRow is a queue with the time since when its oldest waiting job has been due.
type queueRow struct {
	api.Queue
	Oldest *time.Time `json:"oldest_waiting_since"`
}

// queueRowOf returns the row of a queue.
func queueRowOf(l *ledger.Ledger, v *ledger.QueueView) queueRow {
	row := queueRow{Queue: api.QueueOf(v).Brief()}
	if oldest, ok := l.OldestWaitingJob(v.Name); ok {
		row.Oldest = new(oldest.Due.UTC())
	}
	return row
}

// queueRows returns the rows of the queue board.
func (s *source) queueRows() []board.Row {
	var views []ledger.QueueView
	s.cfg.View(func(l *ledger.Ledger) { views = l.Queues() })
	rows := make([]board.Row, len(views))
	for i := range views {
		rows[i] = board.Row{Key: views[i].Name, Stable: hashOf(fmt.Sprint(views[i].Queue)), Volatile: hashOf(views[i].Counts)}
	}
	return rows
}

// cronRow is a cron entry without its job, which may be large: cron.show returns
// that.
type cronRow struct {
	Name     string     `json:"name"`
	Schedule string     `json:"schedule"`
	Zone     string     `json:"time_zone"`
	Queue    string     `json:"queue"`
	Declared bool       `json:"declared"`
	State    string     `json:"state"` // running, paused, or ended (no more ticks)
	Next     *time.Time `json:"next"`
	Last     *time.Time `json:"last"`
	LastJob  *job.ID    `json:"last_job"`
	Fired    uint64     `json:"fired"`
	Skipped  uint64     `json:"skipped"`
	Overdue  uint64     `json:"missed_count"`
}

// cronRowOf returns the row of a cron entry.
func cronRowOf(v *ledger.CronView) cronRow {
	c := api.CronOf(v)
	return cronRow{
		Name: c.Name, Schedule: c.Schedule, Zone: c.Zone, Queue: c.Queue, Declared: c.Declared, State: c.State,
		Next: c.Next, Last: c.Last, LastJob: c.LastJob, Fired: c.Fired, Skipped: c.Skipped, Overdue: c.Overdue,
	}
}

// cronsPerView is how many cron entries are read under the lock that entries are
// applied under.
const cronsPerView = 1000

// cronRows returns the rows of the cron board. It reads the entries in parts of
// cronsPerView, so that the ledger is not locked for long.
func (s *source) cronRows() []board.Row {
	var rows []board.Row
	from, more := "", true
	for more {
		more = false
		s.cfg.View(func(l *ledger.Ledger) {
			count := 0
			l.Crons(from, func(v ledger.CronView) bool {
				count++
				if count > cronsPerView { // it is the first of the next part
					from, more = v.Name, true
					return false
				}
				rows = append(rows, board.Row{
					Key:      v.Name,
					Stable:   hashOf([4]string{v.Schedule, v.TimeZone, v.Queue, api.CronState(&v)}),
					Volatile: hashOf([5]uint64{uint64(v.Next.UnixNano()), uint64(v.Last.UnixNano()), v.Fired, v.Skipped, v.Missed}),
				})
				return true
			})
		})
	}
	return rows
}
