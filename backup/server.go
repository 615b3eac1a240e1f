package backup

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Config is what a [Server] uses of its node. All fields are required.
type Config struct {
	Node    string // this member's name
	Yard    string // ID of the yard
	Version string
	Ledger  Ledger
	Streams Streams
	// LaneInfo returns the state of a lane.
	LaneInfo func(ctx context.Context, lane uint8) (streams.LaneInfo, error)
	// Members returns the names of all members, Routed the server IDs of those that
	// this node is connected to.
	Members, Routed func() []string
	// Propose commits a command on the authority and returns the ledger's error if it
	// rejects the command.
	Propose func(context.Context, ledger.Command) error
	// ReadBarrier waits until the local ledger shows all that was committed before.
	ReadBarrier func(context.Context) error
	Log         *slog.Logger
}

// Ledger is the local ledger.
type Ledger interface {
	View(func(*ledger.Ledger))
	Applied() (index uint64, changed <-chan struct{})
	Copy() *ledger.Ledger
}

// Streams saves, removes and restores the yard's streams.
type Streams interface {
	ArchiveStream(ctx context.Context, stream string, chunk func([]byte) error) (streams.StreamState, error)
	CloseLane(ctx context.Context, lane uint8, identity string) (streams.StreamState, error)
	RemoveStream(ctx context.Context, stream string) error
	EnsureStreams(ctx context.Context, layout streams.Layout) ([]string, error)
	RestoreStream(ctx context.Context, layout streams.Layout, stream string, state streams.StreamState, archive io.Reader) error
	StreamState(ctx context.Context, stream string) (streams.StreamState, error)
	Replicated(ctx context.Context, stream string) (missing string, err error)
}

// Server serves the backup and restore requests of clients: at most one backup and
// one restore at a time.
type Server struct {
	cfg   Config
	tasks errgroup.Group

	mu       crash.Mutex
	ctx      context.Context // of the work between requests
	saver    *saver
	restorer *restorer
}

// NewServer returns a server, which serves requests while [Server.Run] runs.
func NewServer(cfg Config) *Server { return &Server{cfg: cfg, ctx: context.Background()} }

// Run ends sessions without requests and stale holds, until ctx ends.
func (b *Server) Run(ctx context.Context) error {
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
func (b *Server) expire(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.saver != nil && b.saver.idle(now) {
		b.saver.cancel()
		b.saver = nil
	}
	if b.restorer != nil && b.restorer.idle(now) {
		b.restorer.cancel()
		b.restorer = nil
	}
}

// releaseHold ends a hold of this node that belongs to no running backup, because the
// node was killed or did not learn that the hold was acquired.
func (b *Server) releaseHold(ctx context.Context) {
	b.mu.Lock() // begin acquires the hold and sets b.saver under the same lock
	node, id, holder := b.cfg.holder()
	stale := node == b.cfg.Node && (b.saver == nil || b.saver.id != id)
	b.mu.Unlock()
	if stale {
		_ = b.cfg.Propose(ctx, &ledger.Hold{Holder: holder}) // on an error Run tries again
	}
}

// holder returns which backup has the hold: its node, its session, and both as
// the ledger stores them. All are "" without a hold.
func (c *Config) holder() (node, session, holder string) {
	c.Ledger.View(func(l *ledger.Ledger) { holder, _ = l.Holder() })
	node, session, _ = strings.Cut(holder, "/")
	return node, session, holder
}

// members returns the members in the ledger.
func (c *Config) members() (members []ledger.Member) {
	c.Ledger.View(func(l *ledger.Ledger) { members = l.Membership().Members })
	return members
}

// BeginBackup starts a backup in the background and returns its session. The client
// then fetches the file with [Server.ReadBackup]. If this node makes a backup already,
// BeginBackup returns an [api.Error] with [api.CodeConflict], unless that backup's client
// has been idle for backupIdleTimeout: then the new backup takes its place.
func (b *Server) BeginBackup(ctx context.Context) (*api.BackupReply, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.saver != nil && !b.saver.idle(time.Now()) {
		return nil, &api.Error{Code: api.CodeConflict, Text: fmt.Sprintf("%s is already making a backup; it ends %v after its client's last request", b.cfg.Node, duration.Format(backupIdleTimeout))}
	}
	sv := &saver{session: newSession(b.ctx, backupIdleTimeout), cfg: &b.cfg, chunks: make(chan []byte)}
	if err := sv.acquireHold(ctx); err != nil {
		sv.cancel()
		return nil, err
	}
	if b.saver != nil {
		b.saver.cancel()
	}
	b.saver = sv
	b.tasks.Go(func() error {
		sv.err = sv.run(sv.ctx)
		if sv.err != nil {
			b.cfg.Log.Warn("backup failed", "err", sv.err)
		}
		close(sv.chunks) // ReadBackup then reads sv.err, and reports it to the client
		return nil
	})
	return &api.BackupReply{Session: sv.id, Node: b.cfg.Node}, nil
}

// findBackup returns the backup with the given session and counts the request as its
// activity.
func (b *Server) findBackup(session string) (*saver, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.saver == nil || b.saver.id != session {
		return nil, &api.Error{Code: api.CodeGone, Text: fmt.Sprintf("%s makes no such backup (any more)", b.cfg.Node)}
	}
	b.saver.touch()
	return b.saver, nil
}

// ReadBackup returns the chunk of the file at the requested offset, or an empty one after
// the end of the file. The offset must be that of the next chunk, or of the last one
// again, whose reply may have been lost. If the next chunk does not exist within
// sessionAnswerTimeout the error has [api.CodeTimeout].
func (b *Server) ReadBackup(ctx context.Context, req *api.BackupRequest) ([]byte, error) {
	sv, err := b.findBackup(req.Session)
	if err != nil {
		return nil, err
	}
	sv.reading.Lock()
	defer sv.reading.Unlock()
	switch {
	case req.Offset == sv.offset-int64(len(sv.lastChunk)) && len(sv.lastChunk) > 0:
		return sv.lastChunk, nil
	case req.Offset != sv.offset:
		return nil, &job.InvalidError{Reason: fmt.Sprintf("at %d: the next byte of the file is %d", req.Offset, sv.offset)}
	}
	timeout := time.NewTimer(sessionAnswerTimeout)
	defer timeout.Stop()
	select {
	case chunk, more := <-sv.chunks:
		if !more && sv.err != nil {
			return nil, &api.Error{Code: api.CodeUnavailable, Text: "the backup was interrupted: " + sv.err.Error(), RetryAfter: time.Second}
		}
		sv.lastChunk, sv.offset = chunk, sv.offset+int64(len(chunk))
		return chunk, nil
	case <-timeout.C:
	case <-ctx.Done():
	}
	return nil, &api.Error{Code: api.CodeTimeout, Text: "the next chunk of the backup is not ready yet"}
}

// EndBackup ends a backup at the client's request.
func (b *Server) EndBackup(_ context.Context, req *api.BackupRequest) (*struct{}, error) {
	sv, err := b.findBackup(req.Session)
	if err != nil {
		return nil, err
	}
	sv.cancel()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.saver == sv {
		b.saver = nil
	}
	return &struct{}{}, nil
}

// sessionAnswerTimeout is how long a request about a session waits for what it asks
// for. A client gets an answer within this time, and so learns that the node is alive.
const sessionAnswerTimeout = 2 * time.Second

// session is work that a node does for a client over many requests: a backup or
// a restore. It ends when the client sends no more requests.
type session struct {
	id          string
	idleTimeout time.Duration // between requests; after it the client is considered gone
	ctx         context.Context
	cancel      context.CancelFunc

	mu          crash.Mutex
	lastRequest time.Time
	step        *sessionStep // the latest
	activity    string       // what the session does now, for the client
}

// sessionStep is a part of a session that may take longer than one reply.
type sessionStep struct {
	done chan struct{}
	err  error // set before done is closed
}

// newSession returns a session whose context ends with ctx.
func newSession(ctx context.Context, idle time.Duration) *session {
	sessionCtx, cancel := context.WithCancel(ctx)
	return &session{id: uuid.NewString(), idleTimeout: idle, ctx: sessionCtx, cancel: cancel, lastRequest: time.Now()}
}

// touch records a request of the client.
func (bs *session) touch() {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	bs.lastRequest = time.Now()
}

// idle reports whether the client has sent no request for longer than idleTimeout.
func (bs *session) idle(now time.Time) bool {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	return now.Sub(bs.lastRequest) > bs.idleTimeout
}

// setActivity records what the session does now.
func (bs *session) setActivity(format string, v ...any) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	bs.activity = fmt.Sprintf(format, v...)
}

// currentActivity returns what the session does now.
func (bs *session) currentActivity() string {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	return bs.activity
}

// lastStep returns the latest step, or nil if there was none.
func (bs *session) lastStep() *sessionStep {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	return bs.step
}

// setStep makes next the latest step. It returns false and does nothing if previous is no
// longer the latest one.
func (bs *session) setStep(previous, next *sessionStep) bool {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	if bs.step != previous {
		return false
	}
	bs.step = next
	return true
}

// wait waits up to sessionAnswerTimeout for a step to end and returns its error.
// running reports that it has not.
func (s *sessionStep) wait(ctx context.Context) (running bool, err error) {
	timeout := time.NewTimer(sessionAnswerTimeout)
	defer timeout.Stop()
	select {
	case <-s.done:
		return false, s.err
	case <-timeout.C:
	case <-ctx.Done():
	}
	return true, nil
}
