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

	"yardmaster/backup"
	"yardmaster/cluster"
	"yardmaster/job"
	"yardmaster/ledger"
)

// How backups go out.
const (
	backupPiece = 512 << 10        // bytes of one answer
	backupIdle  = 30 * time.Second // a pipe's reader may be slow
	holdEvery   = 20 * time.Second // the hold is renewed
	copyTries   = 4                // of one stream, whose leader may change
)

// backups is the desk where backups are made and brought back, one at a time
// each.
type backups struct {
	n     *Node
	tasks errgroup.Group

	mu       sync.Mutex
	ctx      context.Context // of what goes on between questions
	making   *making
	bringing *bringer
}

func newBackups(n *Node) *backups { return &backups{n: n, ctx: context.Background()} }

// run ends what nobody asks about any more, until ctx ends.
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
			b.letGo(ctx)
		}
	}
	return b.tasks.Wait()
}

func (b *backups) expire(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.making != nil && b.making.over(now) {
		b.making.stop()
		b.making = nil
	}
	if b.bringing != nil && b.bringing.over(now) {
		b.bringing.stop()
		b.bringing = nil
	}
}

// letGo ends a hold of this node's that is no backup's any more: the node was
// killed meanwhile, or heard no answer.
func (b *backups) letGo(ctx context.Context) {
	b.mu.Lock() // a backup that begins has its hold first
	maker, id, holder := b.n.holder()
	left := maker == b.n.cfg.Node.Name && (b.making == nil || b.making.id != id)
	b.mu.Unlock()
	if left {
		_, _ = b.n.commander.do(ctx, &ledger.Hold{Holder: holder}) // or a second later
	}
}

// holder tells which backup holds: the node that makes it, and its session. All
// are "" if none does.
func (n *Node) holder() (node, session, holder string) {
	n.raft.View(func(l *ledger.Ledger) { holder, _ = l.Held() })
	node, session, _ = strings.Cut(holder, "/")
	return node, session, holder
}

// service is what operators ask. It is not served over HTTP: files of any size
// go by the piece.
func (b *backups) service() cluster.Service {
	verb := func(noun, verb, description string, do func(context.Context, *cluster.Request) ([]byte, error)) cluster.Endpoint {
		return cluster.Endpoint{
			Name: noun + "-" + verb, Subject: cluster.SubjectAPI + "." + noun + "." + verb,
			Description: description, Do: do, Waits: true,
		}
	}
	return cluster.Service{
		Name: "yard-backup", Version: semver(b.n.version), Description: "Yardmaster: the whole yard, saved and brought back",
		Metadata: b.n.facts,
		Endpoints: []cluster.Endpoint{
			verb("backup", "begin", "begin to save the yard", answer(b.begin)),
			verb("backup", "read", "the next piece of the file", b.read),
			verb("backup", "end", "give up saving, or say that all has come", answer(b.close)),
			verb("restore", "begin", "begin to bring a yard back", answer(b.beginRestore)),
			verb("restore", "push", "take the next piece of a part", answer(b.push)),
			verb("restore", "finish", "become the yard that was saved", answer(b.finishRestore)),
			verb("restore", "abandon", "leave the yard as fresh as it was", answer(b.abandonRestore)),
			verb("restore", "wait", "wait for what takes longer than an answer", answer(b.waitRestore)),
		},
	}
}

// backupQuestion names the backup that is asked about, and how far its file
// has come.
type backupQuestion struct {
	Session string `json:"session"`
	At      int64  `json:"at"`
}

type backupBegun struct {
	Session string `json:"session"`
	Node    string `json:"node"`
}

// making is a backup on its way to whoever asks for it.
type making struct {
	*errand
	n      *Node
	pieces chan []byte // of the file, in order; closed at its end
	why    error       // there is no more, once pieces is closed; nil: that was all

	reading sync.Mutex
	at      int64  // of the file, behind last
	last    []byte // the piece that was given last: the answer may be lost
}

func (b *backups) begin(ctx context.Context, _ *cluster.Request) (any, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.making != nil && !b.making.over(time.Now()) {
		return nil, &cluster.APIError{Code: "409", Text: fmt.Sprintf("%s makes a backup already; it ends %v after its asker goes away", b.n.cfg.Node.Name, backupIdle)}
	}
	m := &making{errand: newErrand(b.ctx, backupIdle), n: b.n, pieces: make(chan []byte)}
	if err := m.beginHold(ctx); err != nil {
		m.stop()
		return nil, err
	}
	if b.making != nil {
		b.making.stop()
	}
	b.making = m
	b.tasks.Go(func() error {
		if m.why = m.make(m.ctx); m.why != nil {
			b.n.log.Warn("backup is not made", "error", m.why)
		}
		close(m.pieces)
		return nil
	})
	return backupBegun{m.id, b.n.cfg.Node.Name}, nil
}

func (b *backups) asked(r *cluster.Request) (*making, backupQuestion, error) {
	q, err := ask[backupQuestion](r)
	if err != nil {
		return nil, q, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.making == nil || b.making.id != q.Session {
		return nil, q, &cluster.APIError{Code: "410", Text: fmt.Sprintf("%s makes no such backup (any more)", b.n.cfg.Node.Name)}
	}
	b.making.touch()
	return b.making, q, nil
}

// read gives the piece of the file that begins where the asker says, which is
// empty behind the file's end. While there is none yet the answer is 408.
func (b *backups) read(ctx context.Context, r *cluster.Request) ([]byte, error) {
	m, q, err := b.asked(r)
	if err != nil {
		return nil, err
	}
	m.reading.Lock()
	defer m.reading.Unlock()
	switch {
	case q.At == m.at-int64(len(m.last)) && len(m.last) > 0:
		return m.last, nil
	case q.At != m.at:
		return nil, &job.InvalidError{Reason: fmt.Sprintf("at %d: the file has come to %d", q.At, m.at)}
	}
	late := time.NewTimer(errandAnswer)
	defer late.Stop()
	select {
	case piece, more := <-m.pieces:
		if !more && m.why != nil {
			return nil, &cluster.APIError{Code: "503", Text: "the backup was interrupted: " + m.why.Error(), RetryAfter: time.Second}
		}
		m.last, m.at = piece, m.at+int64(len(piece))
		return piece, nil
	case <-late.C:
	case <-ctx.Done():
	}
	return nil, &cluster.APIError{Code: "408", Text: "the next piece of the backup is not there yet"}
}

// Write sends the file's next bytes to whoever asks for them.
func (m *making) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		piece := rest[:min(len(rest), backupPiece)]
		select {
		case m.pieces <- bytes.Clone(piece):
			rest = rest[len(piece):]
		case <-m.ctx.Done():
			return len(b) - len(rest), errors.New("nobody asks for the rest")
		}
	}
	return len(b), nil
}

func (b *backups) close(_ context.Context, r *cluster.Request) (any, error) {
	m, _, err := b.asked(r)
	if err != nil {
		return nil, err
	}
	m.stop()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.making == m {
		b.making = nil
	}
	return struct{}{}, nil
}

// hold keeps the yard from reclaiming, or lets it.
func (m *making) hold(ctx context.Context, on bool) error {
	c := &ledger.Hold{Holder: m.n.cfg.Node.Name + "/" + m.id}
	if on {
		m.n.raft.View(func(l *ledger.Ledger) { c.Until = l.Now().Add(ledger.MaxHold) })
	}
	_, err := m.n.commander.do(ctx, c)
	return err
}

// beginHold takes the hold, also from a node that is not heard: whoever asked it
// for a backup has gone on to ask here.
func (m *making) beginHold(ctx context.Context) error {
	err := m.hold(ctx, true)
	if !errors.Is(err, ledger.ErrHeld) {
		return err
	}
	maker, _, holder := m.n.holder()
	if members := (roster{m.n}).Roll().Members; slices.ContainsFunc(members, func(of ledger.Member) bool {
		return of.Node == maker && slices.Contains(m.n.messages.Routed(), of.ID())
	}) {
		return err
	}
	if _, err := m.n.commander.do(ctx, &ledger.Hold{Holder: holder}); err != nil {
		return err
	}
	return m.hold(ctx, true)
}

// keepHold renews the hold while ctx lasts, and ends it. It is an error if the
// hold ran out: something that the backup points to may be gone.
func (m *making) keepHold(ctx context.Context) error {
	tick := time.NewTicker(holdEvery)
	defer tick.Stop()
	defer func() {
		// Without it, the hold runs out.
		_ = m.hold(context.WithoutCancel(ctx), false)
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if _, id, _ := m.n.holder(); id != m.id {
			return errors.New("the hold on what the ledger points to ran out: no authority could be reached")
		}
		if err := m.hold(ctx, true); err != nil && ctx.Err() == nil {
			m.n.log.Info("hold is not renewed, and tried again", "error", err)
		}
	}
}

// make writes the file. The ledger is copied after the hold has begun, and the
// streams after that: none is older than what the ledger says of it.
func (m *making) make(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	done, stop := context.WithCancel(ctx)
	group.Go(func() error { return m.keepHold(done) })
	group.Go(func() error {
		defer stop()
		out := bufio.NewWriterSize(m, backupPiece)
		if err := m.write(ctx, backup.NewWriter(out)); err != nil {
			return err
		}
		return out.Flush()
	})
	return group.Wait()
}

func (m *making) write(ctx context.Context, w *backup.Writer) error {
	n := m.n
	l := n.raft.Copy()
	manifest := &backup.Manifest{
		Format: backup.Format, Version: n.version, Yard: n.id.Yard, Node: n.cfg.Node.Name, Members: n.messages.Members(),
		Begun: time.Now().UTC(), Index: l.Index(), At: ledger.FormatTime(l.Now()), Epoch: l.Authority().Epoch,
		LastEvent: l.LastEvent(), LastResult: l.LastResult(), LastDead: l.LastDead(), Queues: backup.Queues(l),
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
	for _, stream := range saved(len(l.Lanes())) {
		s, err := m.stream(ctx, w, stream)
		if errors.Is(err, cluster.ErrStreamMissing) && stream == cluster.StreamLogs {
			continue // a yard works without it
		}
		if err != nil {
			return err
		}
		manifest.Streams = append(manifest.Streams, s)
	}
	manifest.Ended = time.Now().UTC()
	return w.Finish(manifest)
}

// saved are the streams of a backup, in their order: what a record points to is
// stored before it, so blobs come after lanes. Boards are made anew.
func saved(lanes int) []string {
	var all []string
	for lane := range lanes {
		all = append(all, cluster.LaneStream(uint8(lane)))
	}
	return append(all, cluster.StreamBlobs, cluster.StreamEvents, cluster.StreamResults, cluster.StreamDLQ, cluster.StreamLogs)
}

// stream writes one, again from its beginning when it was interrupted.
func (m *making) stream(ctx context.Context, w *backup.Writer, stream string) (backup.Stream, error) {
	name := stream
	for try := 2; ; try++ {
		part := w.Part(name)
		point, err := m.n.messages.CopyStream(ctx, stream, func(piece []byte) error {
			_, err := part.Write(piece)
			return err
		})
		if err == nil {
			written, err := part.Close()
			return backup.Stream{
				Part: written, Stream: stream, Identity: point.Identity, First: point.First, Last: point.Last,
				Messages: point.Messages, Bytes: point.Bytes,
			}, err
		}
		if ctx.Err() != nil || try > copyTries || errors.Is(err, cluster.ErrStreamMissing) {
			return backup.Stream{}, err
		}
		m.n.log.Info("stream is copied again", "stream", stream, "error", err)
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
