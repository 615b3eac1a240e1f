package cluster

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Boards lists the buckets that show how the yard stands.
var Boards = []string{BucketAuthority, BucketNodes, BucketQueues, BucketCron}

// boardAbout describes the boards to who lists them.
var boardAbout = map[string]string{
	BucketAuthority: "Who decides, whether the yard is ready and how far it has read: keys lease, readiness, replay",
	BucketNodes:     "The members, by name: state, addresses, room for jobs",
	BucketQueues:    "The queues, by name: limit, pause, jobs by state, the oldest that waits",
	BucketCron:      "The cron entries, by name: schedule, next and last tick",
}

// Bounds of a board.
const (
	boardHistory = 10
	boardBytes   = 128 << 20
	boardValue   = 16 << 10
	boardAnswer  = 3 * time.Second
	markerLife   = time.Hour // of what says that a row was removed
)

// Headers by which clients of key-value buckets know a removal.
const (
	headerOperation  = "KV-Operation"
	headerRollup     = "Nats-Rollup"
	headerTTL        = "Nats-TTL"
	headerExpectSubj = "Nats-Expected-Last-Subject-Sequence"
	operationPurge   = "PURGE"
	rollupSubject    = "sub"
)

func boardStream(bucket string) string { return "KV_" + bucket }

func boardSubject(bucket, key string) string { return "$KV." + bucket + "." + key }

// boardConfig is a bucket as every client of key-value buckets knows one. It
// takes a hundredth of the quota at most, and alone it need not be synced:
// what is in it can be made again.
func boardConfig(bucket string, l Layout, quota int64) jetstream.StreamConfig {
	c := historyStream(l, boardStream(bucket), "board", boardAbout[bucket], boardSubject(bucket, ">"))
	c.MaxMsgsPerSubject, c.MaxMsgSize = boardHistory, boardValue
	c.MaxBytes, c.Discard = min(boardBytes, quota/100), jetstream.DiscardNew
	c.DenyDelete, c.AllowRollup, c.AllowMsgTTL = true, true, true
	if l.Replicas == 1 {
		c.PersistMode = jetstream.AsyncPersistMode
	}
	return c
}

// EnsureBoards makes the boards that are missing, tells whether any were, and
// leads them away from this node: if the authority's node goes, what becomes of
// it should be seen at once. Only the authority may call it.
func (c *Cluster) EnsureBoards(ctx context.Context) (made bool, err error) {
	layout := Layout{Identities: make([]string, c.Lanes())}.withDefaults(&c.cfg)
	var errs []error
	for _, bucket := range Boards {
		asking, cancel := context.WithTimeout(ctx, boardAnswer)
		config := boardConfig(bucket, layout, c.cfg.MaxStore)
		_, err := c.ensureStream(asking, config, false)
		if errors.Is(err, ErrStreamMissing) {
			_, err = c.ensureStream(asking, config, true)
			made = made || err == nil
		}
		if err == nil && c.cfg.clustered() {
			// One that stays here for now is a board all the same.
			if err := c.leadElsewhere(asking, boardStream(bucket)); err != nil {
				c.log.Debug("a board's leader stays", "bucket", bucket, "error", err)
			}
		}
		cancel()
		errs = append(errs, err)
	}
	return made, errors.Join(errs...)
}

// leadElsewhere has another member lead a stream that this node leads.
func (c *Cluster) leadElsewhere(ctx context.Context, stream string) error {
	m, err := c.heir(ctx, stream, func(node string) bool { return node != c.cfg.Node })
	if err != nil || m.to == "" {
		return err
	}
	return c.stepDown(ctx, stream, m.to)
}

// BoardEntry is a row of a board.
type BoardEntry struct {
	Key   string // "" ends what stood there when the watch began
	Value []byte
	Rev   uint64
	Gone  bool
}

// WatchBoard calls heard for each row of a board, once with an empty entry, and
// then for every write, until ctx ends.
func (c *Cluster) WatchBoard(ctx context.Context, bucket string, heard func(BoardEntry)) error {
	js, err := jetstream.New(c.boards.nc)
	if err != nil {
		return err
	}
	opening, cancel := context.WithTimeout(ctx, boardAnswer)
	defer cancel()
	kv, err := js.KeyValue(opening, bucket)
	if err != nil {
		return fmt.Errorf("open bucket %s: %w", bucket, err)
	}
	watch, err := kv.WatchAll(ctx)
	if err != nil {
		return fmt.Errorf("watch bucket %s: %w", bucket, err)
	}
	defer func() { _ = watch.Stop() }() // the server forgets the consumer by itself
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, open := <-watch.Updates():
			switch {
			case !open && ctx.Err() != nil:
				return nil
			case !open:
				return fmt.Errorf("watch bucket %s: the watch has ended", bucket)
			case e == nil:
				heard(BoardEntry{})
			default:
				heard(BoardEntry{Key: e.Key(), Value: e.Value(), Rev: e.Revision(), Gone: e.Operation() != jetstream.KeyValuePut})
			}
		}
	}
}

// PutRow writes a row of a board if its last revision still is last; 0 writes
// it whatever stands there. done is called once and must not block; its error
// is a [*WrongLastError] if the row has changed.
func (c *Cluster) PutRow(bucket, key string, value []byte, last uint64, done func(rev uint64, err error)) {
	c.writeRow(bucket, &nats.Msg{Subject: boardSubject(bucket, key), Data: value, Header: nats.Header{}}, last, done)
}

// RemoveRow removes a row and its history likewise. What says so is kept for an
// hour.
func (c *Cluster) RemoveRow(bucket, key string, last uint64, done func(rev uint64, err error)) {
	m := &nats.Msg{Subject: boardSubject(bucket, key), Header: nats.Header{
		headerOperation: []string{operationPurge}, headerRollup: []string{rollupSubject}, headerTTL: []string{markerLife.String()},
	}}
	c.writeRow(bucket, m, last, done)
}

func (c *Cluster) writeRow(bucket string, m *nats.Msg, last uint64, done func(uint64, error)) {
	m.Header[headerExpectName] = []string{boardStream(bucket)}
	if last > 0 {
		m.Header[headerExpectSubj] = []string{strconv.FormatUint(last, 10)}
	}
	reply, token := c.boards.expect(&appending{boardStream(bucket), done}, time.Now().Add(boardAnswer), false)
	m.Reply = reply
	if err := c.boards.nc.PublishMsg(m); err != nil && c.boards.forget(token) {
		done(0, sendError(err))
	}
}
