package backup

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

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// restoreIdleTimeout is how long a restore waits for the next request of its client.
const restoreIdleTimeout = 10 * time.Second

// restorer is a restore under way. Its client sends one part after the other, in
// requests that each run a step of the session.
type restorer struct {
	*session
	cfg   *Config
	tasks *errgroup.Group
	plan  Plan

	freshLanes []string // identities of the lanes that the cluster was founded with
	lanes      []string // identities of the lanes that it gets: the backup's, then extraLanes
	extraLanes []string // identities of the lanes that it gets in addition to the backup's

	// Used by the current step only.
	importing   *streamImport
	received    map[string]bool // complete parts
	ledgerParts uint64          // chunks of the ledger that were proposed
	ledgerBuf   []byte          // bytes of the ledger that were not proposed yet
	report      *api.RestoreReport
}

// BeginRestore starts a restore: it prepares the cluster for the parts to come. As
// for all requests of a restore, the reply reports what the node is doing if that
// takes longer than sessionAnswerTimeout; the client then calls
// [Server.WaitRestore].
func (b *Server) BeginRestore(ctx context.Context, plan *Plan) (*api.RestoreReply, error) {
	if plan.Format != Format || len(plan.Keep) == 0 || len(plan.Keep) != len(plan.Streams) {
		return nil, &job.InvalidError{Reason: fmt.Sprintf("a plan of format %d: this node restores format %d", plan.Format, Format)}
	}
	r, err := b.startRestore(*plan, false)
	if err != nil {
		return nil, err
	}
	return r.runStep(ctx, r.prepare)
}

// startRestore makes a new restore the server's current one and returns it. The previous
// one is cancelled. But if its client still sends requests, startRestore returns an error
// instead, unless supersede is set.
func (b *Server) startRestore(plan Plan, supersede bool) (*restorer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	previous := b.restorer
	inUse := previous != nil && previous.ctx.Err() == nil && !previous.idle(time.Now())
	if inUse && !supersede {
		return nil, &api.Error{Code: api.CodeConflict, Text: fmt.Sprintf("%s is already restoring a backup; that ends %v after its client's last request", b.cfg.Node, duration.Format(restoreIdleTimeout))}
	}
	r := &restorer{session: newSession(b.ctx, restoreIdleTimeout), cfg: &b.cfg, tasks: &b.tasks, plan: plan, received: map[string]bool{}}
	if previous != nil {
		previous.cancel()
		r.step = previous.lastStep() // runStep waits for its end
	}
	b.restorer = r
	return r, nil
}

// runStep runs fn as a step of the session once the one before has ended, and waits for
// its result for up to sessionAnswerTimeout. A step that fails ends the restore.
func (r *restorer) runStep(ctx context.Context, fn func(context.Context) error) (*api.RestoreReply, error) {
	previous := r.lastStep()
	if previous != nil {
		running, _ := previous.wait(ctx) // its error was returned already, or belongs to a cancelled restore
		if running {
			r.cancel()
			return nil, &job.UnavailableError{Reason: r.cfg.Node + " has not ended the step before", RetryAfter: time.Second}
		}
	}
	step := &sessionStep{done: make(chan struct{})}
	if !r.setStep(previous, step) {
		return nil, &api.Error{Code: api.CodeConflict, Text: "two steps of one restore were requested at once"}
	}
	r.tasks.Go(func() error {
		defer close(step.done)
		step.err = fn(r.ctx) // not ctx: the step may outlast the request
		if step.err != nil {
			r.cancel()
		}
		return nil
	})
	return r.wait(ctx)
}

// wait waits for the result of the current step for up to sessionAnswerTimeout. While
// the step runs, the reply has its activity, afterwards the report, if there is one.
func (r *restorer) wait(ctx context.Context) (*api.RestoreReply, error) {
	s := r.lastStep()
	running, err := s.wait(ctx)
	switch {
	case err != nil:
		return nil, err
	case running:
		return &api.RestoreReply{Session: r.id, Node: r.cfg.Node, Activity: r.currentActivity()}, nil
	}
	return &api.RestoreReply{Session: r.id, Node: r.cfg.Node, Report: r.report}, nil
}

// WaitRestore waits for the result of the current step for up to sessionAnswerTimeout.
func (b *Server) WaitRestore(ctx context.Context, req *api.BackupRequest) (*api.RestoreReply, error) {
	r, err := b.findRestore(req.Session)
	if err != nil {
		return nil, err
	}
	return r.wait(ctx)
}

// findRestore returns the restore with the given session and counts the request as its
// activity.
func (b *Server) findRestore(session string) (*restorer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.restorer == nil || b.restorer.id != session {
		return nil, &api.Error{Code: api.CodeGone, Text: fmt.Sprintf("%s does not run this restore (any more)", b.cfg.Node)}
	}
	b.restorer.touch()
	return b.restorer, nil
}

// PushRestore takes a chunk of a part. The request is an [api.RestoreChunk] as a line of
// JSON, followed by the chunk.
func (b *Server) PushRestore(ctx context.Context, request []byte) (*api.RestoreReply, error) {
	headerLine, chunk, ok := bytes.Cut(request, []byte("\n"))
	if !ok {
		return nil, &job.InvalidError{Reason: "the request must be a line of JSON, followed by the chunk"}
	}
	var header api.RestoreChunk
	if err := json.Unmarshal(headerLine, &header); err != nil {
		return nil, &job.InvalidError{Reason: err.Error()}
	}
	r, err := b.findRestore(header.Session)
	if err != nil {
		return nil, err
	}
	return r.runStep(ctx, func(ctx context.Context) error {
		r.setActivity("restoring %s", header.Part)
		if header.Part == r.plan.Ledger.Name {
			return r.pushLedger(ctx, chunk, header.End)
		}
		return r.pushStream(ctx, header.Part, chunk, header.End)
	})
}

// pushLedger collects the bytes of the ledger and proposes them to the cluster in
// pieces of ledger.MaxRestorePart bytes. end means that chunk is the last one.
func (r *restorer) pushLedger(ctx context.Context, chunk []byte, end bool) error {
	r.ledgerBuf = append(r.ledgerBuf, chunk...)
	for len(r.ledgerBuf) >= ledger.MaxRestorePart || end && len(r.ledgerBuf) > 0 {
		n := min(len(r.ledgerBuf), ledger.MaxRestorePart)
		c := &ledger.Restore{Stage: ledger.RestorePart, ID: r.id, Number: r.ledgerParts, Data: r.ledgerBuf[:n]}
		if err := r.propose(ctx, c); err != nil {
			return err
		}
		r.ledgerParts++
		r.ledgerBuf = slices.Clone(r.ledgerBuf[n:])
	}
	if end {
		r.received[r.plan.Ledger.Name] = true
	}
	return nil
}

// streamImport is a stream being restored: trimmed to the plan, then imported.
type streamImport struct {
	part    string
	archive *io.PipeWriter // receives the part's bytes
	group   *errgroup.Group
}

// pushStream passes a chunk of a part to the import of the part's stream. The first
// chunk starts the import; with the last one, where end is set, pushStream waits until
// the stream is restored.
func (r *restorer) pushStream(ctx context.Context, part string, chunk []byte, end bool) error {
	if r.importing == nil {
		if err := r.checkCurrent(ctx); err != nil {
			return err
		}
		i := slices.IndexFunc(r.plan.Keep, func(s Stream) bool { return s.Name == part })
		if i < 0 || r.received[part] {
			return &job.InvalidError{Reason: fmt.Sprintf("part %q is not expected", part)}
		}
		r.importing = r.startImport(r.plan.Keep[i])
	}
	if r.importing.part != part {
		return &job.InvalidError{Reason: fmt.Sprintf("part %q comes before %q has ended", part, r.importing.part)}
	}
	_, err := r.importing.archive.Write(chunk)
	if err == nil && !end {
		return nil
	}
	r.importing.archive.Close() //nolint:errcheck // never fails
	if importErr := r.importing.group.Wait(); importErr != nil {
		err = importErr
	}
	r.importing = nil
	if err == nil {
		r.received[part] = true
		return nil
	}
	if errors.Is(err, ErrDamaged) {
		return &job.InvalidError{Reason: err.Error()}
	}
	return retryLater(err)
}

// startImport starts the import of a stream. Two goroutines connected by a pipe trim
// the archive that is written to the result, and restore the stream from what is left.
// Each closes its pipes with its error, so that neither the other one nor the writer
// blocks after a failure.
func (r *restorer) startImport(keep Stream) *streamImport {
	archive, archiveWriter := io.Pipe()
	trimmed, trimmedWriter := io.Pipe()
	group, ctx := errgroup.WithContext(r.ctx)
	group.Go(func() error {
		stop := context.AfterFunc(ctx, func() { archive.CloseWithError(ctx.Err()) })
		defer stop()
		err := Trim(trimmedWriter, archive, keep)
		trimmedWriter.CloseWithError(err)
		if err == nil { // read what follows the trimmed end
			_, err = io.Copy(io.Discard, archive)
		}
		archive.CloseWithError(errors.Join(err, io.ErrClosedPipe))
		return err
	})
	group.Go(func() error {
		state := streams.StreamState{Identity: keep.Identity, First: keep.First, Last: keep.Last, Messages: keep.Messages, Bytes: keep.Bytes}
		err := r.cfg.Streams.RestoreStream(ctx, streams.Layout{Identities: r.lanes}, keep.Stream, state, trimmed)
		trimmed.CloseWithError(errors.Join(err, io.ErrClosedPipe))
		return err
	})
	r.tasks.Go(func() error {
		_ = group.Wait() // pushStream returns its error
		return nil
	})
	return &streamImport{keep.Name, archiveWriter, group}
}
