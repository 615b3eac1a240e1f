package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"yardmaster/backup"
	"yardmaster/cluster"
	"yardmaster/job"
	"yardmaster/ledger"
)

// bringIdle is how long a restore waits for the next question.
const bringIdle = 10 * time.Second

// bringer is a restore under way: the caller sends part after part.
type bringer struct {
	*errand
	n    *Node
	desk *backups
	plan backup.Plan

	fresh []string // identities of the lanes that the yard had
	lanes []string // identities of those it gets

	// Of one step at a time.
	feed   *feed
	fed    map[string]bool
	parts  uint64 // of the ledger
	ledger []byte // that is not yet a part
	report *restored
}

// bringing is the answer to all questions about a restore.
type bringing struct {
	Session string    `json:"session"`
	Node    string    `json:"node"`
	Working string    `json:"working,omitempty"` // on what; the end is heard by restore.wait
	Report  *restored `json:"report,omitempty"`
}

func (b *backups) beginRestore(ctx context.Context, q *cluster.Request) (any, error) {
	plan, err := ask[backup.Plan](q)
	if err != nil {
		return nil, err
	}
	if plan.Format != backup.Format || len(plan.Keep) == 0 || len(plan.Keep) != len(plan.Streams) {
		return nil, &job.InvalidError{Reason: fmt.Sprintf("a plan of format %d: this node restores format %d", plan.Format, backup.Format)}
	}
	r, err := b.seat(plan, false)
	if err != nil {
		return nil, err
	}
	return r.take(ctx, r.begin)
}

// seat gives the desk to a restore: the one before is over, or is made to end.
func (b *backups) seat(plan backup.Plan, force bool) (*bringer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.bringing
	if before != nil && !force && before.ctx.Err() == nil && !before.over(time.Now()) {
		return nil, &cluster.APIError{Code: "409", Text: fmt.Sprintf("%s restores a backup already; that ends %v after its asker goes away", b.n.cfg.Node.Name, bringIdle)}
	}
	r := &bringer{errand: newErrand(b.ctx, bringIdle), n: b.n, desk: b, plan: plan, fed: map[string]bool{}}
	if before != nil {
		before.stop()
		r.step = before.last() // nothing begins before it has ended
	}
	b.bringing = r
	return r, nil
}

// take begins a step, once the one before has ended, and answers with its end if
// that comes soon. A step that fails is the restore's last.
func (r *bringer) take(ctx context.Context, do func(context.Context) error) (any, error) {
	if before := r.last(); before != nil {
		if more, _ := before.wait(ctx); more { // its error was told, or is nobody's
			r.stop()
			return nil, &job.UnavailableError{Reason: r.n.cfg.Node.Name + " has not ended the step before", RetryAfter: time.Second}
		}
	}
	begun := r.errand.begin(r.desk.tasks.Go, func(ctx context.Context) error {
		err := do(ctx)
		if err != nil {
			r.stop()
		}
		return err
	})
	if !begun {
		return nil, &cluster.APIError{Code: "409", Text: "two steps of one restore were asked for at once"}
	}
	return r.wait(ctx)
}

func (r *bringer) wait(ctx context.Context) (any, error) {
	s := r.last()
	more, err := s.wait(ctx)
	switch {
	case err != nil:
		return nil, err
	case more:
		return bringing{Session: r.id, Node: r.n.cfg.Node.Name, Working: r.said()}, nil
	}
	return bringing{Session: r.id, Node: r.n.cfg.Node.Name, Report: r.report}, nil
}

func (b *backups) waitRestore(ctx context.Context, q *cluster.Request) (any, error) {
	head, err := ask[backupQuestion](q)
	if err != nil {
		return nil, err
	}
	r, err := b.restoring(head.Session)
	if err != nil {
		return nil, err
	}
	return r.wait(ctx)
}

// pieceHead stands before a piece of a part.
type pieceHead struct {
	Session string `json:"session"`
	Part    string `json:"part"`
	End     bool   `json:"end"` // nothing more of this part comes
}

// readPiece takes a request of JSON, a line's end, and bytes apart.
func readPiece(r *cluster.Request, head any) (piece []byte, err error) {
	line, piece, ok := bytes.Cut(r.Data, []byte("\n"))
	if !ok {
		return nil, &job.InvalidError{Reason: "give a line of JSON, and after it the piece"}
	}
	if err := json.Unmarshal(line, head); err != nil {
		return nil, &job.InvalidError{Reason: err.Error()}
	}
	return piece, nil
}

// restoring finds the restore that is asked about, and notes that it is.
func (b *backups) restoring(session string) (*bringer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bringing == nil || b.bringing.id != session {
		return nil, &cluster.APIError{Code: "410", Text: fmt.Sprintf("%s is not about this restore (any more)", b.n.cfg.Node.Name)}
	}
	b.bringing.touch()
	return b.bringing, nil
}

func (b *backups) push(ctx context.Context, q *cluster.Request) (any, error) {
	var head pieceHead
	piece, err := readPiece(q, &head)
	if err != nil {
		return nil, err
	}
	r, err := b.restoring(head.Session)
	if err != nil {
		return nil, err
	}
	return r.take(ctx, func(ctx context.Context) error {
		r.say("bringing %s back", head.Part)
		if head.Part == r.plan.Ledger.Name {
			return r.pushLedger(ctx, piece, head.End)
		}
		return r.pushStream(ctx, head.Part, piece, head.End)
	})
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

func (r *bringer) pushStream(ctx context.Context, part string, piece []byte, end bool) error {
	if r.feed == nil {
		if err := r.seated(ctx); err != nil {
			return err
		}
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
		defer context.AfterFunc(ctx, func() { in.CloseWithError(ctx.Err()) })()
		err := backup.Trim(trimTo, in, keep)
		trimTo.CloseWithError(err)
		if err == nil { // what lies behind the end that its writer set
			_, err = io.Copy(io.Discard, in)
		}
		in.CloseWithError(errors.Join(err, io.ErrClosedPipe))
		return err
	})
	group.Go(func() error {
		err := r.n.messages.BringStream(ctx, cluster.Layout{Identities: r.lanes}, keep.Stream, pointOf(&keep), trimmed)
		trimmed.CloseWithError(errors.Join(err, io.ErrClosedPipe))
		return err
	})
	r.desk.tasks.Go(func() error {
		_ = group.Wait() // whoever pushes the part's end hears it
		return nil
	})
	return &feed{keep.Name, to, group}
}

func pointOf(s *backup.Stream) cluster.StreamPoint {
	return cluster.StreamPoint{Identity: s.Identity, First: s.First, Last: s.Last, Messages: s.Messages, Bytes: s.Bytes}
}
