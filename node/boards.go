package node

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"strings"
	"time"

	"yardmaster/board"
	"yardmaster/cluster"
	"yardmaster/job"
	"yardmaster/ledger"
	"yardmaster/scheduler"
)

// slowBoard is the pace of numbers whose history should reach back: at ten
// revisions a key, not much less than a minute.
const slowBoard = 5 * time.Second

// yardBoards lists the boards, the first in line written first.
var yardBoards = []board.Board{
	{Name: cluster.BucketAuthority, Pace: slowBoard, Blind: true}, {Name: cluster.BucketNodes, Pace: slowBoard, Blind: true},
	{Name: cluster.BucketQueues}, {Name: cluster.BucketCron},
}

// tenure is one term of leading: the mind decides, and beside it the boards
// show, and the list of members is kept. Both begin once the yard's streams are
// made, so that they hold up no first start, and end with the mind.
func (n *Node) tenure(ctx context.Context, term uint64) error {
	ctx, cancel := context.WithCancel(ctx)
	showing := make(chan struct{})
	go func() {
		defer close(showing)
		if n.awaitStreams(ctx) {
			source := &boardSource{node: n}
			board.New(yardBoards, source, boards{n.messages}, n.log).Run(ctx)
		}
	}()
	keeping := make(chan struct{})
	go func() {
		defer close(keeping)
		if n.cfg.Clustered() && n.awaitStreams(ctx) {
			n.roll.Run(ctx)
		}
	}()
	defer func() { cancel(); <-showing; <-keeping }()
	return n.mind.Run(ctx, term)
}

// awaitStreams waits until the ledger says that the yard's streams were made;
// false: ctx has ended.
func (n *Node) awaitStreams(ctx context.Context) bool {
	for {
		_, changed := n.raft.Applied()
		made := false
		n.raft.View(func(l *ledger.Ledger) { made = l.StreamsMade() })
		if made {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// boards are the cluster's buckets as their keeper needs them.
type boards struct{ messages *cluster.Cluster }

func (b boards) Ensure(ctx context.Context) (made bool, err error) {
	return b.messages.EnsureBoards(ctx)
}

func (b boards) Watch(ctx context.Context, name string, heard func(board.Entry)) error {
	return b.messages.WatchBoard(ctx, name, func(e cluster.BoardEntry) { heard(board.Entry(e)) })
}

func (b boards) Put(name, key string, value []byte, last uint64, done func(uint64, error)) {
	b.messages.PutRow(name, key, value, last, func(rev uint64, err error) { done(rev, rowRefusal(err)) })
}

func (b boards) Remove(name, key string, last uint64, done func(uint64, error)) {
	b.messages.RemoveRow(name, key, last, func(rev uint64, err error) { done(rev, rowRefusal(err)) })
}

func rowRefusal(err error) error {
	var changed *cluster.WrongLastError
	if errors.As(err, &changed) {
		return board.ErrOther
	}
	return err
}

// boardSource derives the rows from the ledger and from what the authority
// hears. What a pass asks for after the first board is as of that look.
type boardSource struct {
	node  *Node
	held  bool // this node's tenure has begun
	look  scheduler.Look
	facts map[string]map[string]any // of the boards that are few rows, by key
}

// Rows implements [board.Source].
func (s *boardSource) Rows(ctx context.Context, name string) ([]board.Row, bool) {
	if name == cluster.BucketAuthority {
		s.observe(ctx)
	}
	if !s.held {
		return nil, false
	}
	switch name {
	case cluster.BucketAuthority:
		return s.authorityRows(ctx), true
	case cluster.BucketNodes:
		return s.nodeRows(), true
	case cluster.BucketQueues:
		return s.queueRows(), true
	}
	return s.cronRows(), true
}

// observe looks how the tenure stands; before it has begun there is nothing
// to show.
func (s *boardSource) observe(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	look, err := s.node.mind.Look(ctx)
	s.look, s.held, s.facts = look, err == nil, map[string]map[string]any{}
}

// Facts implements [board.Source].
func (s *boardSource) Facts(name string, keys []string) ([]any, board.Moment) {
	facts := make([]any, len(keys))
	of := board.Moment{Epoch: s.look.Epoch}
	s.node.raft.View(func(l *ledger.Ledger) {
		of.Index, of.At = l.Index(), l.Now()
		for i, key := range keys {
			switch name {
			case cluster.BucketQueues:
				if v, ok := l.Queue(key); ok {
					facts[i] = queueRowOf(l, &v)
				}
			case cluster.BucketCron:
				if v, ok := l.Cron(key); ok {
					facts[i] = cronRowOf(&v)
				}
			default:
				facts[i] = s.facts[name][key]
			}
		}
	})
	return facts, of
}

// boardSeed makes hashes of rows; they are compared within this process only.
var boardSeed = maphash.MakeSeed()

func hashOf[T comparable](v T) uint64 { return maphash.Comparable(boardSeed, v) }

// leaseRow says who decides. It leaves out until when: the lease is renewed
// every few seconds, and each renewal would push the last change of hands out
// of the key's history.
type leaseRow struct {
	Owner   string `json:"owner"`
	LeaseID string `json:"lease_id"`
}

func (s *boardSource) authorityRows(ctx context.Context) []board.Row {
	n := s.node
	ready := n.readiness(ctx, s.look, n.laneStatus(ctx))
	var lease leaseRow
	var replay ledger.SnapshotReplay
	n.raft.View(func(l *ledger.Ledger) {
		a := l.Authority()
		lease = leaseRow{a.Owner, a.LeaseID}
		replay = l.Snapshot(n.surroundings(l, s.look)).Replay
	})
	s.facts[cluster.BucketAuthority] = map[string]any{"lease": lease, "readiness": ready, "replay": replay}
	reasons := strings.Join(ready.Reasons, "\n")
	return []board.Row{
		{Key: "lease", Solid: hashOf(lease)},
		{
			Key: "readiness", Fluid: hashOf(reasons),
			Solid: hashOf(fmt.Sprint(ready.Ready, ready.Accepting, ready.Dispatching, numberless(reasons))),
		},
		{
			Key: "replay", Solid: hashOf(replay.DeferredLeaderNotification),
			Fluid: hashOf(fmt.Sprint(text(replay.Cursor), replay.PendingEvents, text(replay.LastReplayedEventID))),
		},
	}
}

// numberless is a text without its digits: that a number in a reason grows is
// no new reason.
func numberless(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, s)
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// nodeRow is a member as the authority sees it.
type nodeRow struct {
	Name        string               `json:"name"`
	State       string               `json:"state"` // up, draining, down
	Authority   bool                 `json:"authority"`
	Voter       bool                 `json:"voter"`
	Raft        string               `json:"raft"`    // address; "" in a yard of one
	Overhop     string               `json:"overhop"` // address; "" if it has not told
	Incarnation uint64               `json:"incarnation"`
	LastHeard   *time.Time           `json:"last_heard"` // as of this row; null: never in this tenure
	Running     int                  `json:"running"`
	Credits     int                  `json:"credits"` // free, at Overhop subscriptions
	Slots       int                  `json:"slots"`   // free, at RRQ processes
	Pools       []scheduler.PoolRoom `json:"pools"`
}

func (s *boardSource) nodeRows() []board.Row {
	now := time.Now()
	heard := map[string]*scheduler.NodeStatus{}
	for i := range s.look.Nodes {
		heard[s.look.Nodes[i].Name] = &s.look.Nodes[i]
	}
	facts := map[string]any{}
	var rows []board.Row
	for _, m := range s.node.raft.Status().Members {
		row := nodeRow{
			Name: m.Name, State: "down", Authority: m.Name == s.node.cfg.Node.Name, Voter: m.Voter, Raft: m.Addr,
			Pools: []scheduler.PoolRoom{},
		}
		runners := ""
		if h := heard[m.Name]; h != nil {
			at := now.Add(-time.Duration(h.BeatAgoMS) * time.Millisecond).UTC().Truncate(time.Millisecond)
			row.State, row.Overhop, row.Incarnation, row.LastHeard = h.State(), h.Edge, h.Incarnation, &at
			row.Running, row.Credits, row.Slots, row.Pools = h.Running, h.Credits, h.Slots, h.Pools
			for _, p := range h.Pools {
				runners += " " + p.Runner
			}
		}
		facts[m.Name] = row
		rows = append(rows, board.Row{
			Key:   m.Name,
			Solid: hashOf(fmt.Sprint(row.State, row.Authority, row.Voter, row.Raft, row.Overhop, row.Incarnation, runners)),
			Fluid: hashOf(fmt.Sprint(row.Running, row.Credits, row.Slots, row.Pools)),
		})
	}
	s.facts[cluster.BucketNodes] = facts
	return rows
}

// queueRow is a queue, and since when its oldest waiting job has been due.
type queueRow struct {
	queueJSON
	Oldest *time.Time `json:"oldest_waiting_since"`
}

func queueRowOf(l *ledger.Ledger, v *ledger.QueueView) queueRow {
	row := queueRow{queueJSON: queueToJSON(v)}
	if since, ok := l.OldestWaiting(v.Name); ok {
		since = since.UTC()
		row.Oldest = &since
	}
	return row
}

func (s *boardSource) queueRows() []board.Row {
	var views []ledger.QueueView
	s.node.raft.View(func(l *ledger.Ledger) { views = l.Queues() })
	rows := make([]board.Row, len(views))
	for i := range views {
		rows[i] = board.Row{Key: views[i].Name, Solid: hashOf(views[i].Queue), Fluid: hashOf(views[i].Counts)}
	}
	return rows
}

// cronRow is a cron entry without its job, which may be large: cron.show has
// it.
type cronRow struct {
	Name     string     `json:"name"`
	Schedule string     `json:"schedule"`
	Zone     string     `json:"time_zone"`
	Queue    string     `json:"queue"`
	Declared bool       `json:"declared"`
	State    string     `json:"state"` // running, paused, or ended: no tick will come
	Next     *time.Time `json:"next"`
	Last     *time.Time `json:"last"`
	LastJob  *job.ID    `json:"last_job"`
	Fired    uint64     `json:"fired"`
	Skipped  uint64     `json:"skipped"`
	Overdue  uint64     `json:"missed_count"`
}

func cronRowOf(v *ledger.CronView) cronRow {
	row := cronRow{
		Name: v.Name, Schedule: v.Times, Zone: v.Zone, Queue: v.Queue, Declared: v.Declared, State: cronState(v),
		Fired: v.Fired, Skipped: v.Skipped, Overdue: v.Overdue,
	}
	fill(&row.Zone, "UTC")
	if row.State == "running" {
		row.Next = &v.Next
	}
	if !v.Last.IsZero() {
		row.Last, row.LastJob = &v.Last, &v.LastJob
	}
	return row
}

// cronsAtOnce is how many cron entries are read while applying waits.
const cronsAtOnce = 1000

func (s *boardSource) cronRows() []board.Row {
	var rows []board.Row
	for from, more := "", true; more; {
		more = false
		s.node.raft.View(func(l *ledger.Ledger) {
			count := 0
			l.Crons(from, func(v ledger.CronView) bool {
				if count++; count > cronsAtOnce {
					from, more = v.Name, true
					return false
				}
				rows = append(rows, board.Row{
					Key:   v.Name,
					Solid: hashOf([4]string{v.Times, v.Zone, v.Queue, cronState(&v)}),
					Fluid: hashOf([5]uint64{uint64(v.Next.UnixNano()), uint64(v.Last.UnixNano()), v.Fired, v.Skipped, v.Overdue}),
				})
				return true
			})
		})
	}
	return rows
}
