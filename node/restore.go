package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"yardmaster/backup"
	"yardmaster/cluster"
	"yardmaster/internal/backoff"
	"yardmaster/job"
	"yardmaster/ledger"
)

// How long the steps of a restore may take.
const (
	insistFor    = 30 * time.Second // on a command, while the authority changes
	settleFor    = 60 * time.Second // on an authority that knows of the restore
	replicateFor = 30 * time.Minute
)

// bringer is a restore under way: the caller sends part after part.
type bringer struct {
	n    *Node
	id   string
	plan backup.Plan
	stop context.CancelFunc
	ctx  context.Context

	fresh []string // identities of the lanes that the yard had
	lanes []string // identities of those it gets

	work   sync.Mutex // one piece at a time
	feed   *feed
	fed    map[string]bool
	parts  uint64 // of the ledger
	ledger []byte // that is not yet a part

	mu    sync.Mutex
	asked time.Time
}

func (r *bringer) askedAt() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked
}

// touch notes that somebody asks; until it is called again nothing expires.
func (r *bringer) touch(busy bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = time.Now()
	if busy {
		r.asked = r.asked.Add(24 * time.Hour)
	}
}

func (r *bringer) end() { r.stop() }

func (b *backups) beginRestore(ctx context.Context, q *cluster.Request) (any, error) {
	plan, err := ask[backup.Plan](q)
	if err != nil {
		return nil, err
	}
	if plan.Format != backup.Format || len(plan.Keep) == 0 {
		return nil, &job.InvalidError{Reason: fmt.Sprintf("a plan of format %d: this node restores format %d", plan.Format, backup.Format)}
	}
	b.mu.Lock()
	if b.bringing != nil {
		b.mu.Unlock()
		return nil, &cluster.APIError{Code: "409", Text: fmt.Sprintf("%s restores a backup already; that ends %v after its asker goes away", b.n.cfg.Node.Name, backupIdle)}
	}
	work, stop := context.WithCancel(b.ctx)
	r := &bringer{n: b.n, id: uuid.NewString(), plan: plan, ctx: work, stop: stop, fed: map[string]bool{}}
	r.touch(true)
	b.bringing = r
	b.mu.Unlock()
	if err := r.begin(ctx); err != nil {
		b.forget(r)
		return nil, err
	}
	r.touch(false)
	return backupBegun{r.id, b.n.cfg.Node.Name}, nil
}

func (b *backups) forget(r *bringer) {
	r.end()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bringing == r {
		b.bringing = nil
	}
}

// begin empties the yard, if it is fresh or a restore was begun here before.
func (r *bringer) begin(ctx context.Context) error {
	before, epoch, err := r.admit(ctx)
	if err != nil {
		return err
	}
	source := fmt.Sprintf("yard %s at entry %d", r.plan.Yard, r.plan.Index)
	if err := r.insist(ctx, &ledger.BringBack{Stage: ledger.BringBegin, ID: r.id, Source: source}); err != nil {
		return err
	}
	// The tenure that knew of no restore looks after the streams: it has to be
	// over before they go.
	if err := r.settled(ctx, func(l *ledger.Ledger) bool {
		a := l.Authority()
		return a.Owner != "" && (before || a.Epoch > epoch)
	}); err != nil {
		return err
	}
	for lane := range r.fresh {
		last, err := r.n.messages.CloseLane(ctx, uint8(lane))
		if err == nil && last > 0 && !before {
			return errors.Join(r.notFresh(), r.abandon(ctx, false))
		}
		if err != nil {
			return tryLater(err)
		}
	}
	if err := r.n.messages.RemoveStreams(ctx); err != nil {
		return tryLater(err)
	}
	return nil
}

// admit refuses a yard in which something was accepted, or that is not there.
// before: a restore was begun here and has not ended.
func (r *bringer) admit(ctx context.Context) (before bool, epoch uint64, err error) {
	if err := r.n.commander.current(ctx); err != nil {
		return false, 0, err
	}
	fresh, made := false, false
	r.n.raft.View(func(l *ledger.Ledger) {
		id, _ := l.Bringing()
		before, fresh, made, epoch = id != "", l.Fresh(), l.StreamsMade(), l.Authority().Epoch
		for _, lane := range l.Lanes() {
			r.fresh = append(r.fresh, lane.Identity)
		}
	})
	for _, lane := range r.plan.Keep {
		if lane.Identity != "" {
			r.lanes = append(r.lanes, lane.Identity)
		}
	}
	for len(r.lanes) < len(r.fresh) { // as many lanes as this yard was founded with
		r.lanes = append(r.lanes, uuid.NewString())
	}
	switch {
	case !fresh:
		return before, epoch, r.notFresh()
	case !made:
		return before, epoch, &job.UnavailableError{Reason: "the yard's streams are not made yet: wait until it is ready", RetryAfter: time.Second}
	case before:
		return before, epoch, nil
	}
	for lane := range r.fresh {
		info, err := r.n.messages.LaneInfo(ctx, uint8(lane))
		if err != nil {
			return before, epoch, tryLater(err)
		}
		if info.Last > 0 {
			return before, epoch, r.notFresh()
		}
	}
	return before, epoch, nil
}

func (r *bringer) notFresh() error {
	return &cluster.APIError{Code: "409", Text: "this yard has accepted jobs: a backup is restored into a fresh one only. " +
		"Stop its nodes, move their data directories away, start them again, and restore before anything is enqueued (also before a declared cron entry is due)"}
}

func tryLater(err error) error {
	return &job.UnavailableError{Reason: err.Error(), RetryAfter: time.Second}
}

// insist says a command until it is taken or refused: while a restore begins
// and ends, the authority changes hands.
func (r *bringer) insist(ctx context.Context, c ledger.Command) error {
	for until := time.Now().Add(insistFor); ; {
		_, err := r.n.commander.do(ctx, c)
		var away *job.UnavailableError
		if err == nil || !errors.As(err, &away) || time.Now().After(until) {
			return err
		}
		if err := backoff.Sleep(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// settled waits until the ledger here is as it should be.
func (r *bringer) settled(ctx context.Context, fits func(*ledger.Ledger) bool) error {
	ctx, cancel := context.WithTimeout(ctx, settleFor)
	defer cancel()
	for {
		_, changed := r.n.raft.Applied()
		ok := false
		r.n.raft.View(func(l *ledger.Ledger) { ok = fits(l) })
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return &job.UnavailableError{Reason: "no authority goes on with the restore", RetryAfter: time.Second}
		}
	}
}

// pieceHead stands before a piece of a part.
type pieceHead struct {
	Session string `json:"session"`
	Part    string `json:"part"`
	End     bool   `json:"end"` // nothing more of this part comes
}

func (b *backups) restoring(session string) (*bringer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bringing == nil || b.bringing.id != session {
		return nil, &cluster.APIError{Code: "410", Text: fmt.Sprintf("%s is not about this restore (any more): take it again", b.n.cfg.Node.Name)}
	}
	return b.bringing, nil
}

func (b *backups) push(ctx context.Context, q *cluster.Request) ([]byte, error) {
	var head pieceHead
	piece, err := readPiece(q, &head)
	if err != nil {
		return nil, err
	}
	r, err := b.restoring(head.Session)
	if err != nil {
		return nil, err
	}
	r.work.Lock()
	defer r.work.Unlock()
	r.touch(true)
	defer r.touch(false)
	if head.Part == r.plan.Ledger.Name {
		err = r.pushLedger(ctx, piece, head.End)
	} else {
		err = r.pushStream(head.Part, piece, head.End)
	}
	if err != nil {
		b.forget(r)
		return nil, err
	}
	return []byte("{}"), nil
}

func (r *bringer) pushLedger(ctx context.Context, piece []byte, end bool) error {
	r.ledger = append(r.ledger, piece...)
	for len(r.ledger) >= ledger.MaxBringPart || end && len(r.ledger) > 0 {
		n := min(len(r.ledger), ledger.MaxBringPart)
		c := &ledger.BringBack{Stage: ledger.BringPart, ID: r.id, Number: r.parts, Data: r.ledger[:n]}
		if err := r.insist(ctx, c); err != nil {
			return err
		}
		r.parts++
		r.ledger = slices.Clone(r.ledger[n:])
	}
	if end {
		r.fed[r.plan.Ledger.Name] = true
	}
	return nil
}

// feed is a stream on its way: cut off where the plan says, then to JetStream.
type feed struct {
	part  string
	in    *io.PipeWriter
	group *errgroup.Group
}

func (r *bringer) pushStream(part string, piece []byte, end bool) error {
	if r.feed == nil {
		keep := slices.IndexFunc(r.plan.Keep, func(s backup.Stream) bool { return s.Name == part })
		if keep < 0 || r.fed[part] {
			return &job.InvalidError{Reason: fmt.Sprintf("part %q is not expected", part)}
		}
		r.feed = r.open(r.plan.Keep[keep])
	}
	if r.feed.part != part {
		return &job.InvalidError{Reason: fmt.Sprintf("part %q comes before %q has ended", part, r.feed.part)}
	}
	_, err := r.feed.in.Write(piece)
	if err == nil && !end {
		return nil
	}
	r.feed.in.Close() //nolint:errcheck // never fails
	if ended := r.feed.group.Wait(); ended != nil {
		err = ended
	}
	r.feed = nil
	if err == nil {
		r.fed[part] = true
		return nil
	}
	if errors.Is(err, backup.ErrDamaged) {
		return &job.InvalidError{Reason: err.Error()}
	}
	return tryLater(err)
}

func (r *bringer) open(keep backup.Stream) *feed {
	in, to := io.Pipe()
	trimmed, trimTo := io.Pipe()
	group, ctx := errgroup.WithContext(r.ctx)
	group.Go(func() error {
		err := backup.Trim(trimTo, in, keep)
		trimTo.CloseWithError(err)
		if err == nil { // what lies behind the end that its writer set
			_, err = io.Copy(io.Discard, in)
		}
		in.CloseWithError(errors.Join(err, io.ErrClosedPipe))
		return err
	})
	group.Go(func() error {
		err := r.n.messages.BringStream(ctx, cluster.Layout{Identities: r.lanes}, keep.Stream, cluster.StreamPoint{
			Identity: keep.Identity, First: keep.First, Last: keep.Last, Messages: keep.Messages, Bytes: keep.Bytes,
		}, trimmed)
		trimmed.CloseWithError(errors.Join(err, io.ErrClosedPipe))
		return err
	})
	return &feed{keep.Name, to, group}
}
