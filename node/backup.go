package node

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/yardmaster-dev/yardmaster/backup"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Sizes and times of a backup.
const (
	backupChunkSize   = 512 << 10        // bytes of one reply
	backupIdleTimeout = 30 * time.Second // between requests: a client that writes to a pipe may be slow
	holdInterval      = 20 * time.Second // between renewals of the hold
	maxStreamTries    = 4                // to copy one stream, whose leader may change
)

// backups serves the backup and restore requests of clients: at most one backup and
// one restore at a time.
type backups struct {
	n     *Node
	tasks errgroup.Group

	mu       sync.Mutex
	ctx      context.Context // of the work between requests
	maker    *backupMaker
	restorer *restorer
}

func newBackups(n *Node) *backups { return &backups{n: n, ctx: context.Background()} }

// run ends sessions without requests and stale holds, until ctx ends.
func (b *backups) run(ctx context.Context) error {
	b.mu.Lock()
	b.ctx = ctx
	b.mu.Unlock()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
			b.expire(time.Now())
			b.releaseHold(ctx)
		}
	}
	return b.tasks.Wait()
}

// expire ends the sessions that have been idle for too long.
func (b *backups) expire(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.maker != nil && b.maker.idle(now) {
		b.maker.cancel()
		b.maker = nil
	}
	if b.restorer != nil && b.restorer.idle(now) {
		b.restorer.cancel()
		b.restorer = nil
	}
}

// releaseHold ends a hold of this node that belongs to no running backup, because the
// node was killed or did not learn that the hold was acquired.
func (b *backups) releaseHold(ctx context.Context) {
	b.mu.Lock() // begin acquires the hold and sets b.maker under the same lock
	node, id, holder := b.n.backupHolder()
	stale := node == b.n.cfg.Node.Name && (b.maker == nil || b.maker.id != id)
	b.mu.Unlock()
	if stale {
		_, _ = b.n.proposer.propose(ctx, &ledger.Hold{Holder: holder}) // on an error run tries again
	}
}

// backupHolder returns which backup has the hold: its node, its session, and both as
// the ledger stores them. All are "" without a hold.
func (n *Node) backupHolder() (node, session, holder string) {
	n.raft.View(func(l *ledger.Ledger) { holder, _ = l.Holder() })
	node, session, _ = strings.Cut(holder, "/")
	return node, session, holder
}

// service returns the endpoints for backup and restore. They are not served over HTTP,
// because files are sent in chunks.
func (b *backups) service() cluster.Service {
	verb := func(noun, verb, description string, do func(context.Context, *cluster.Request) ([]byte, error)) cluster.Endpoint {
		return cluster.Endpoint{
			Name: noun + "-" + verb, Subject: cluster.SubjectAPI + "." + noun + "." + verb,
			Description: description, Handle: do, LongRunning: true,
		}
	}
	return cluster.Service{
		Name: "yard-backup", Version: semver(b.n.version), Description: "Yardmaster: backup and restore of the whole yard",
		Metadata: b.n.serviceMetadata,
		Endpoints: []cluster.Endpoint{
			verb("backup", "begin", "start a backup", jsonHandler(b.begin)),
			verb("backup", "read", "return the next chunk of the file", b.read),
			verb("backup", "end", "end a backup, complete or not", jsonHandler(b.end)),
			verb("restore", "begin", "start a restore", jsonHandler(b.beginRestore)),
			verb("restore", "push", "take the next chunk of a part", jsonHandler(b.push)),
			verb("restore", "finish", "become the yard that was saved", jsonHandler(b.finishRestore)),
			verb("restore", "abandon", "give up a restore and leave the yard empty", jsonHandler(b.abandonRestore)),
			verb("restore", "wait", "wait for a step that takes longer than one reply", jsonHandler(b.waitRestore)),
		},
	}
}

// backupRequest names a backup and the offset of the chunk to read.
type backupRequest struct {
	Session string `json:"session"`
	Offset  int64  `json:"at"`
}

type backupReply struct {
	// backupReply names a backup that was started.
	Session string `json:"session"`
	Node    string `json:"node"`
}

// backupMaker is a running backup.
type backupMaker struct {
	*backupSession
	n      *Node
	chunks chan []byte // of the file, in order; closed at its end
	err    error       // set before chunks is closed; nil: the file is complete

	reading   sync.Mutex
	offset    int64  // in the file, after lastChunk
	lastChunk []byte // kept because the reply with it may be lost
}

// begin starts a backup in the background and returns its session.
func (b *backups) begin(ctx context.Context, _ *cluster.Request) (any, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.maker != nil && !b.maker.idle(time.Now()) {
		return nil, &cluster.APIError{Code: "409", Text: fmt.Sprintf("%s is already making a backup; it ends %v after its client's last request", b.n.cfg.Node.Name, backupIdleTimeout)}
	}
	m := &backupMaker{backupSession: newBackupSession(b.ctx, backupIdleTimeout), n: b.n, chunks: make(chan []byte)}
	if err := m.acquireHold(ctx); err != nil {
		m.cancel()
		return nil, err
	}
	if b.maker != nil {
		b.maker.cancel()
	}
	b.maker = m
	b.tasks.Go(func() error {
		if m.err = m.run(m.ctx); m.err != nil {
			b.n.log.Warn("backup failed", "err", m.err)
		}
		close(m.chunks)
		return nil
	})
	return backupReply{m.id, b.n.cfg.Node.Name}, nil
}

// lookUp returns the backup that a request names and counts as its activity.
func (b *backups) lookUp(r *cluster.Request) (*backupMaker, backupRequest, error) {
	req, err := decodeRequest[backupRequest](r)
	if err != nil {
		return nil, req, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.maker == nil || b.maker.id != req.Session {
		return nil, req, &cluster.APIError{Code: "410", Text: fmt.Sprintf("%s makes no such backup (any more)", b.n.cfg.Node.Name)}
	}
	b.maker.touch()
	return b.maker, req, nil
}

// read returns the chunk of the file at the requested offset, or an empty one after
// the end of the file. If the chunk does not exist yet within sessionAnswerTimeout
// the answer is 408.
func (b *backups) read(ctx context.Context, r *cluster.Request) ([]byte, error) {
	m, req, err := b.lookUp(r)
	if err != nil {
		return nil, err
	}
	m.reading.Lock()
	defer m.reading.Unlock()
	switch {
	case req.Offset == m.offset-int64(len(m.lastChunk)) && len(m.lastChunk) > 0:
		return m.lastChunk, nil
	case req.Offset != m.offset:
		return nil, &job.InvalidError{Reason: fmt.Sprintf("at %d: the next byte of the file is %d", req.Offset, m.offset)}
	}
	timeout := time.NewTimer(sessionAnswerTimeout)
	defer timeout.Stop()
	select {
	case chunk, more := <-m.chunks:
		if !more && m.err != nil {
			return nil, &cluster.APIError{Code: "503", Text: "the backup was interrupted: " + m.err.Error(), RetryAfter: time.Second}
		}
		m.lastChunk, m.offset = chunk, m.offset+int64(len(chunk))
		return chunk, nil
	case <-timeout.C:
	case <-ctx.Done():
	}
	return nil, &cluster.APIError{Code: "408", Text: "the next chunk of the backup is not ready yet"}
}

// Write passes b to read in chunks. It blocks until they have been requested.
func (m *backupMaker) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		chunk := rest[:min(len(rest), backupChunkSize)]
		select {
		case m.chunks <- bytes.Clone(chunk):
			rest = rest[len(chunk):]
		case <-m.ctx.Done():
			return len(b) - len(rest), errors.New("the client stopped reading")
		}
	}
	return len(b), nil
}

// end ends a backup at the client's request.
func (b *backups) end(_ context.Context, r *cluster.Request) (any, error) {
	m, _, err := b.lookUp(r)
	if err != nil {
		return nil, err
	}
	m.cancel()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.maker == m {
		b.maker = nil
	}
	return struct{}{}, nil
}

// setHold acquires or renews the hold, which keeps the cluster from deleting what the
// ledger refers to, or releases it.
func (m *backupMaker) setHold(ctx context.Context, active bool) error {
	c := &ledger.Hold{Holder: m.n.cfg.Node.Name + "/" + m.id}
	if active {
		m.n.raft.View(func(l *ledger.Ledger) { c.Until = l.Now().Add(ledger.MaxHold) })
	}
	_, err := m.n.proposer.propose(ctx, c)
	return err
}

// acquireHold acquires the hold. It takes it over from a node that is not connected:
// the client of that node's backup now asks this one.
func (m *backupMaker) acquireHold(ctx context.Context) error {
	err := m.setHold(ctx, true)
	if !errors.Is(err, ledger.ErrBackupRunning) {
		return err
	}
	holderNode, _, holder := m.n.backupHolder()
	if members := (membershipAdapter{m.n}).Membership().Members; slices.ContainsFunc(members, func(member ledger.Member) bool {
		return member.Node == holderNode && slices.Contains(m.n.cluster.Routed(), member.ServerID())
	}) {
		return err
	}
	if _, err := m.n.proposer.propose(ctx, &ledger.Hold{Holder: holder}); err != nil {
		return err
	}
	return m.setHold(ctx, true)
}

// renewHold renews the hold until ctx ends and then releases it. It returns an error
// if the hold has expired, because data that the backup refers to may be gone.
func (m *backupMaker) renewHold(ctx context.Context) error {
	tick := time.NewTicker(holdInterval)
	defer tick.Stop()
	defer func() {
		// If this fails, the hold expires.
		_ = m.setHold(context.WithoutCancel(ctx), false)
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if _, id, _ := m.n.backupHolder(); id != m.id {
			return errors.New("the hold on what the ledger refers to has expired: no authority could be reached")
		}
		if err := m.setHold(ctx, true); err != nil && ctx.Err() == nil {
			m.n.log.Info("backup hold not renewed, retrying", "err", err)
		}
	}
}

// run writes the file. It acquires the hold before it copies the ledger, and copies
// the streams last, so that they contain everything that the ledger refers to.
func (m *backupMaker) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	holdCtx, stop := context.WithCancel(ctx)
	group.Go(func() error { return m.renewHold(holdCtx) })
	group.Go(func() error {
		defer stop()
		out := bufio.NewWriterSize(m, backupChunkSize)
		if err := m.write(ctx, backup.NewWriter(out)); err != nil {
			return err
		}
		return out.Flush()
	})
	return group.Wait()
}

// write writes the ledger, the streams and the manifest to w.
func (m *backupMaker) write(ctx context.Context, w *backup.Writer) error {
	n := m.n
	l := n.raft.Copy()
	manifest := &backup.Manifest{
		Format: backup.Format, Version: n.version, Yard: n.id.Yard, Node: n.cfg.Node.Name, Members: n.cluster.Members(),
		Started: time.Now().UTC(), Index: l.Index(), At: ledger.FormatTime(l.Now()), Epoch: l.Authority().Epoch,
		LastEvent: l.LastEvent(), LastResult: l.LastResult(), LastDead: l.LastDeadLetter(), Queues: backup.Queues(l),
	}
	l.Crons("", func(ledger.CronView) bool { manifest.Crons++; return true })
	part := w.Part(backup.LedgerPart)
	if err := l.Encode(part); err != nil {
		return err
	}
	var err error
	if manifest.Ledger, err = part.Close(); err != nil {
		return err
	}
	for _, stream := range backupStreams(len(l.Lanes())) {
		s, err := m.writeStream(ctx, w, stream)
		if errors.Is(err, cluster.ErrStreamMissing) && stream == cluster.StreamLogs {
			continue // the log stream is optional
		}
		if err != nil {
			return err
		}
		manifest.Streams = append(manifest.Streams, s)
	}
	manifest.Ended = time.Now().UTC()
	return w.Finish(manifest)
}

// backupStreams returns the streams of a backup in their order. A blob is stored
// before the record that refers to it, so blobs are copied after the lanes. Boards are
// not copied: the authority builds them again.
func backupStreams(lanes int) []string {
	var all []string
	for lane := range lanes {
		all = append(all, cluster.LaneStream(uint8(lane)))
	}
	return append(all, cluster.StreamBlobs, cluster.StreamEvents, cluster.StreamResults, cluster.StreamDLQ, cluster.StreamLogs)
}

// writeStream writes one stream to w, from its beginning again after an interruption.
func (m *backupMaker) writeStream(ctx context.Context, w *backup.Writer, stream string) (backup.Stream, error) {
	name := stream
	for try := 2; ; try++ {
		part := w.Part(name)
		at, err := m.n.cluster.ArchiveStream(ctx, stream, func(chunk []byte) error {
			_, err := part.Write(chunk)
			return err
		})
		if err == nil {
			written, err := part.Close()
			return backup.Stream{
				Part: written, Stream: stream, Identity: at.Identity, First: at.First, Last: at.Last,
				Messages: at.Messages, Bytes: at.Bytes,
			}, err
		}
		if ctx.Err() != nil || try > maxStreamTries || errors.Is(err, cluster.ErrStreamMissing) {
			return backup.Stream{}, err
		}
		m.n.log.Info("stream copy interrupted, retrying", "stream", stream, "err", err)
		if _, err := part.Close(); err != nil {
			return backup.Stream{}, err
		}
		name = fmt.Sprintf("%s.%d", stream, try)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}
