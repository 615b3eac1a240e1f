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

	"github.com/yardmaster-dev/yardmaster/backup"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// restoreIdleTimeout is how long a restore waits for the next request of its client.
const restoreIdleTimeout = 10 * time.Second

// restorer is a restore under way. Its client sends one part after the other.
type restorer struct {
	*backupSession
	n       *Node
	backups *backups
	plan    backup.Plan

	freshLanes []string // identities of the lanes that the cluster has now
	lanes      []string // identities of the lanes that it gets

	// Used by the current step only.
	importing   *streamImport
	received    map[string]bool // complete parts
	ledgerParts uint64          // chunks of the ledger that were proposed
	ledgerBuf   []byte          // bytes of the ledger that were not proposed yet
	report      *restoreReport
}

// restoreReply is the reply to all requests about a restore.
type restoreReply struct {
	Session  string         `json:"session"`
	Node     string         `json:"node"`
	Activity string         `json:"working,omitempty"` // what a step does that has not ended; ask restore.wait for its end
	Report   *restoreReport `json:"report,omitempty"`
}

// beginRestore starts a restore: it prepares the cluster for the parts to come.
func (b *backups) beginRestore(ctx context.Context, q *cluster.Request) (any, error) {
	plan, err := decodeRequest[backup.Plan](q)
	if err != nil {
		return nil, err
	}
	if plan.Format != backup.Format || len(plan.Keep) == 0 || len(plan.Keep) != len(plan.Streams) {
		return nil, &job.InvalidError{Reason: fmt.Sprintf("a plan of format %d: this node restores format %d", plan.Format, backup.Format)}
	}
	r, err := b.startRestore(plan, false)
	if err != nil {
		return nil, err
	}
	return r.runStep(ctx, r.prepare)
}

// startRestore returns a new restore. Unless force is set it fails while another one is
// active; otherwise it cancels that one.
func (b *backups) startRestore(plan backup.Plan, force bool) (*restorer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	previous := b.restorer
	if previous != nil && !force && previous.ctx.Err() == nil && !previous.idle(time.Now()) {
		return nil, &cluster.APIError{Code: "409", Text: fmt.Sprintf("%s is already restoring a backup; that ends %v after its client's last request", b.n.cfg.Node.Name, restoreIdleTimeout)}
	}
	r := &restorer{backupSession: newBackupSession(b.ctx, restoreIdleTimeout), n: b.n, backups: b, plan: plan, received: map[string]bool{}}
	if previous != nil {
		previous.cancel()
		r.step = previous.lastStep() // runStep waits for its end
	}
	b.restorer = r
	return r, nil
}

// runStep starts a step once the one before has ended, and waits for its result for a
// short time. A step that fails ends the restore.
func (r *restorer) runStep(ctx context.Context, fn func(context.Context) error) (any, error) {
	if previous := r.lastStep(); previous != nil {
		if running, _ := previous.wait(ctx); running { // its error was returned already, or belongs to a cancelled restore
			r.cancel()
			return nil, &job.UnavailableError{Reason: r.n.cfg.Node.Name + " has not ended the step before", RetryAfter: time.Second}
		}
	}
	started := r.backupSession.startStep(r.backups.tasks.Go, func(ctx context.Context) error {
		err := fn(ctx)
		if err != nil {
			r.cancel()
		}
		return err
	})
	if !started {
		return nil, &cluster.APIError{Code: "409", Text: "two steps of one restore were requested at once"}
	}
	return r.wait(ctx)
}

// wait waits for the result of the current step for a short time.
func (r *restorer) wait(ctx context.Context) (any, error) {
	s := r.lastStep()
	running, err := s.wait(ctx)
	switch {
	case err != nil:
		return nil, err
	case running:
		return restoreReply{Session: r.id, Node: r.n.cfg.Node.Name, Activity: r.currentActivity()}, nil
	}
	return restoreReply{Session: r.id, Node: r.n.cfg.Node.Name, Report: r.report}, nil
}

func (b *backups) waitRestore(ctx context.Context, q *cluster.Request) (any, error) {
	req, err := decodeRequest[backupRequest](q)
	if err != nil {
		return nil, err
	}
	r, err := b.findRestore(req.Session)
	if err != nil {
		return nil, err
	}
	return r.wait(ctx)
}

// chunkHeader precedes a chunk of a part.
type chunkHeader struct {
	Session string `json:"session"`
	Part    string `json:"part"`
	End     bool   `json:"end"` // the part ends with this chunk
}

// readChunk splits a request into a line of JSON, which it decodes, and a chunk.
func readChunk(r *cluster.Request, head any) (chunk []byte, err error) {
	line, chunk, ok := bytes.Cut(r.Data, []byte("\n"))
	if !ok {
		return nil, &job.InvalidError{Reason: "the request must be a line of JSON, followed by the chunk"}
	}
	if err := json.Unmarshal(line, head); err != nil {
		return nil, &job.InvalidError{Reason: err.Error()}
	}
	return chunk, nil
}

// findRestore returns the restore with the given session and counts the request as its
// activity.
func (b *backups) findRestore(session string) (*restorer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.restorer == nil || b.restorer.id != session {
		return nil, &cluster.APIError{Code: "410", Text: fmt.Sprintf("%s does not run this restore (any more)", b.n.cfg.Node.Name)}
	}
	b.restorer.touch()
	return b.restorer, nil
}

// push takes a chunk of a part.
func (b *backups) push(ctx context.Context, q *cluster.Request) (any, error) {
	var header chunkHeader
	chunk, err := readChunk(q, &header)
	if err != nil {
		return nil, err
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

// pushLedger proposes the ledger in chunks of ledger.MaxRestorePart bytes.
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
	part  string
	in    *io.PipeWriter
	group *errgroup.Group
}

// pushStream passes a chunk to the import of its stream. The first chunk starts it.
func (r *restorer) pushStream(ctx context.Context, part string, chunk []byte, end bool) error {
	if r.importing == nil {
		if err := r.checkCurrent(ctx); err != nil {
			return err
		}
		keep := slices.IndexFunc(r.plan.Keep, func(s backup.Stream) bool { return s.Name == part })
		if keep < 0 || r.received[part] {
			return &job.InvalidError{Reason: fmt.Sprintf("part %q is not expected", part)}
		}
		r.importing = r.startImport(r.plan.Keep[keep])
	}
	if r.importing.part != part {
		return &job.InvalidError{Reason: fmt.Sprintf("part %q comes before %q has ended", part, r.importing.part)}
	}
	_, err := r.importing.in.Write(chunk)
	if err == nil && !end {
		return nil
	}
	r.importing.in.Close() //nolint:errcheck // never fails
	if importErr := r.importing.group.Wait(); importErr != nil {
		err = importErr
	}
	r.importing = nil
	if err == nil {
		r.received[part] = true
		return nil
	}
	if errors.Is(err, backup.ErrDamaged) {
		return &job.InvalidError{Reason: err.Error()}
	}
	return retryLater(err)
}

// startImport starts the import of a stream from a pipe.
func (r *restorer) startImport(keep backup.Stream) *streamImport {
	in, pipe := io.Pipe()
	trimmed, trimTo := io.Pipe()
	group, ctx := errgroup.WithContext(r.ctx)
	group.Go(func() error {
		defer context.AfterFunc(ctx, func() { in.CloseWithError(ctx.Err()) })()
		err := backup.Trim(trimTo, in, keep)
		trimTo.CloseWithError(err)
		if err == nil { // read what follows the trimmed end
			_, err = io.Copy(io.Discard, in)
		}
		in.CloseWithError(errors.Join(err, io.ErrClosedPipe))
		return err
	})
	group.Go(func() error {
		err := r.n.cluster.RestoreStream(ctx, cluster.Layout{Identities: r.lanes}, keep.Stream, streamPoint(&keep), trimmed)
		trimmed.CloseWithError(errors.Join(err, io.ErrClosedPipe))
		return err
	})
	r.backups.tasks.Go(func() error {
		_ = group.Wait() // pushStream returns its error
		return nil
	})
	return &streamImport{keep.Name, pipe, group}
}

func streamPoint(s *backup.Stream) cluster.StreamState {
	return cluster.StreamState{Identity: s.Identity, First: s.First, Last: s.Last, Messages: s.Messages, Bytes: s.Bytes}
}
