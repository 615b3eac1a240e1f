package streams

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
)

// boardSpec describes a bucket.
type boardSpec struct {
	description string
	share       int64 // of the store, in thousandths
	rows        int64 // number of rows, of boardRowBytes each, that must fit
}

// boardSpecs holds the specification of each bucket.
var boardSpecs = map[string]boardSpec{
	subjects.BucketAuthority: {"The authority, readiness and replay progress: keys lease, readiness, replay", 2, 3},
	subjects.BucketNodes:     {"The members, by name: state, addresses, capacity for jobs", 2, 64},
	subjects.BucketQueues:    {"The queues, by name: limit, pause, jobs by state, oldest waiting job", 28, 10_000},
	subjects.BucketCron:      {"The cron entries, by name: schedule, next and last tick", 10, 10_000},
}

// Limits of a board.
const (
	boardHistory  = 10  // revisions of a row, at most
	boardRowBytes = 768 // estimated size of a stored row, with headers and a name of 128 bytes
	boardMaxBytes = 128 << 20
	boardMaxValue = 16 << 10
	boardTimeout  = 3 * time.Second
	markerTTL     = time.Hour // of the marker that a removed row leaves

	unappliedDelay = 5 * time.Millisecond // after which a write that overtook the one before it is sent again
)

// Headers and values with which NATS key-value clients mark a removal.
const (
	headerOperation         = "KV-Operation"
	headerRollup            = "Nats-Rollup"
	headerTTL               = "Nats-TTL"
	headerExpectLastSubject = "Nats-Expected-Last-Subject-Sequence"
	operationPurge          = "PURGE"
	rollupSubject           = "sub"
)

// boardConfig returns the configuration of a bucket's stream. Any NATS key-value client
// can read the bucket. Its bound is its share of quota, in bytes. On a node that runs alone
// it is not synced, because its content can be derived again.
func boardConfig(bucket string, l Layout, quota int64) jetstream.StreamConfig {
	spec := boardSpecs[bucket]
	c := auxStream(l, subjects.BoardStream(bucket), "board", spec.description, subjects.BoardSubject(bucket, ">"))
	c.MaxMsgSize = boardMaxValue
	c.MaxBytes, c.Discard = min(boardMaxBytes, quota/1000*spec.share), jetstream.DiscardNew
	c.MaxMsgsPerSubject = spec.revisions(c.MaxBytes)
	c.DenyDelete, c.AllowRollup, c.AllowMsgTTL = true, true, true
	if l.Replicas == 1 {
		c.PersistMode = jetstream.AsyncPersistMode
	}
	return c
}

// revisions returns how many revisions of each row fit into maxBytes, from 1 to boardHistory.
// A full bucket refuses writes.
func (s *boardSpec) revisions(maxBytes int64) int64 {
	return min(max(1, maxBytes/(s.rows*boardRowBytes)), boardHistory)
}

// BoardStore reads and writes boards. Its methods may be called concurrently.
type BoardStore struct {
	local          *embedded.Server
	moveLeaderAway func(ctx context.Context, stream string) error
	cramped        sync.Map // names of buckets that were logged as having too little space
}

// NewBoardStore returns a store over l's connections. moveLeaderAway asks another member to
// take over a stream that this node leads.
func NewBoardStore(l *embedded.Server, moveLeaderAway func(ctx context.Context, stream string) error) *BoardStore {
	return &BoardStore{local: l, moveLeaderAway: moveLeaderAway}
}

// EnsureBoards creates missing boards and reports whether any were missing. It
// also moves their leaders away from this node: if the authority's node dies,
// watchers of the boards should see the failover at once. Only the authority may
// call it.
func (b *BoardStore) EnsureBoards(ctx context.Context) (created bool, err error) {
	layout := Layout{Identities: make([]string, b.local.Lanes())}.withDefaults(&b.local.Config)
	var errs []error
	for _, bucket := range subjects.Boards {
		wasMissing, err := b.ensureBoard(ctx, bucket, layout)
		created = created || wasMissing
		errs = append(errs, err)
	}
	return created, errors.Join(errs...)
}

// ensureBoard creates a bucket if it is missing, and reports whether it has done so.
// Then it moves the bucket's leader away from this node.
func (b *BoardStore) ensureBoard(ctx context.Context, bucket string, layout Layout) (created bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, boardTimeout)
	defer cancel()
	config := boardConfig(bucket, layout, b.local.Config.MaxStore)
	info, err := ensureStream(ctx, b.local.JS, config, false)
	if errors.Is(err, ErrStreamMissing) {
		info, err = ensureStream(ctx, b.local.JS, config, true)
		created = err == nil
	}
	if err != nil {
		return created, err
	}
	b.makeSpace(ctx, bucket, &info.Config, config.MaxBytes)
	if !b.local.Config.Clustered() {
		return created, nil
	}
	if err := b.moveLeaderAway(ctx, subjects.BoardStream(bucket)); err != nil {
		// Not an error: a board that this node leads works as well.
		b.local.Log.Debug("board leader not moved", "bucket", bucket, "err", err)
	}
	return created, nil
}

// makeSpace changes a bucket that an earlier release has created with cfg, in which the rows
// of many queues do not fit: it raises its bound to most bytes, if the operator has set the
// size of the store, and lowers the number of revisions to what fits.
func (b *BoardStore) makeSpace(ctx context.Context, bucket string, cfg *jetstream.StreamConfig, most int64) {
	spec, was := boardSpecs[bucket], *cfg
	if b.local.Config.FixedStore {
		cfg.MaxBytes = max(cfg.MaxBytes, most)
	}
	update := func() (err error) {
		if cfg.MaxMsgsPerSubject = min(was.MaxMsgsPerSubject, spec.revisions(cfg.MaxBytes)); cfg.MaxBytes != was.MaxBytes || cfg.MaxMsgsPerSubject != was.MaxMsgsPerSubject {
			_, err = b.local.JS.UpdateStream(ctx, *cfg)
		}
		return err
	}
	err := update()
	if err != nil && cfg.MaxBytes != was.MaxBytes { // streams of users may have reserved the space
		cfg.MaxBytes = was.MaxBytes
		err = errors.Join(err, update())
	}
	if err == nil {
		b.cramped.Delete(bucket)
	} else if _, logged := b.cramped.LoadOrStore(bucket, true); !logged { // it is tried again
		b.local.Log.Warn("bucket not given the space for all its rows", "bucket", bucket, "bytes", most, "err", err)
	}
}

// BoardEntry is a row of a board.
type BoardEntry struct {
	Key      string // "" marks the end of the initial rows
	Value    []byte
	Revision uint64
	Deleted  bool
}

// WatchBoard calls fn for each row of a board, then once with an empty entry, and
// then for every write. It returns nil when ctx ends, and an error if the board cannot
// be read.
func (b *BoardStore) WatchBoard(ctx context.Context, bucket string, fn func(BoardEntry)) error {
	js, err := jetstream.New(b.local.Boards.Conn)
	if err != nil {
		return err
	}
	openCtx, cancel := context.WithTimeout(ctx, boardTimeout)
	defer cancel()
	kv, err := js.KeyValue(openCtx, bucket)
	if err != nil {
		return fmt.Errorf("open bucket %s: %w", bucket, err)
	}
	watch, err := kv.WatchAll(ctx)
	if err != nil {
		return fmt.Errorf("watch bucket %s: %w", bucket, err)
	}
	defer func() { _ = watch.Stop() }() // otherwise the server removes the idle consumer
	for {
		select {
		case <-ctx.Done():
			return nil
		case row, open := <-watch.Updates():
			switch {
			case !open && ctx.Err() != nil:
				return nil
			case !open:
				return fmt.Errorf("watch bucket %s: watch ended unexpectedly", bucket)
			case row == nil: // all rows that existed have been received
				fn(BoardEntry{})
			default:
				fn(BoardEntry{Key: row.Key(), Value: row.Value(), Revision: row.Revision(), Deleted: row.Operation() != jetstream.KeyValuePut})
			}
		}
	}
}

// PutRow writes a row of a board if its revision is still last; with last 0 it
// writes in any case. done is called once and must not block; its error is a
// [*WrongLastError] if the row has changed.
func (b *BoardStore) PutRow(bucket, key string, value []byte, last uint64, done func(rev uint64, err error)) {
	b.writeRow(bucket, &nats.Msg{Subject: subjects.BoardSubject(bucket, key), Data: value, Header: nats.Header{}}, last, done)
}

// DeleteRow removes a row with its history, on the same condition as
// [BoardStore.PutRow]. A marker of the removal remains for an hour.
func (b *BoardStore) DeleteRow(bucket, key string, last uint64, done func(rev uint64, err error)) {
	m := &nats.Msg{Subject: subjects.BoardSubject(bucket, key), Header: nats.Header{
		headerOperation: []string{operationPurge}, headerRollup: []string{rollupSubject}, headerTTL: []string{markerTTL.String()},
	}}
	b.writeRow(bucket, m, last, done)
}

// writeRow publishes m, a write of a row, on the condition that the row's revision is
// still last.
func (b *BoardStore) writeRow(bucket string, m *nats.Msg, last uint64, done func(uint64, error)) {
	m.Header[subjects.HeaderExpectName] = []string{subjects.BoardStream(bucket)}
	if last > 0 {
		m.Header[headerExpectLastSubject] = []string{strconv.FormatUint(last, 10)}
	}
	b.sendRow(subjects.BoardStream(bucket), m, time.Now().Add(boardTimeout), done)
}

// sendRow publishes m, a write of a row of the board in stream, and calls done once with
// the row's new revision or an error. It repeats the write until deadline while the
// stream's leader answers that it has not applied the previous write of the row yet.
func (b *BoardStore) sendRow(stream string, m *nats.Msg, deadline time.Time, done func(uint64, error)) {
	call := &appendCall{stream, func(rev uint64, err error) {
		var changed *WrongLastError
		if errors.As(err, &changed) && changed.unapplied && time.Now().Before(deadline) {
			time.AfterFunc(unappliedDelay, func() { b.sendRow(stream, m, deadline, done) })
			return
		}
		done(rev, err)
	}}
	reply, token := b.local.Boards.Expect(call, deadline, false)
	m.Reply = reply
	if err := b.local.Boards.Conn.PublishMsg(m); err != nil && b.local.Boards.Cancel(token) {
		done(0, embedded.PublishError(err))
	}
}
