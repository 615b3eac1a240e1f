package backup

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Sizes and times of a backup.
const (
	backupChunkSize   = 512 << 10        // bytes of one reply
	backupIdleTimeout = 30 * time.Second // between requests: a client that writes to a pipe may be slow
	holdInterval      = 20 * time.Second // between renewals of the hold
	maxStreamTries    = 4                // attempts to copy one stream, whose leader may change
)

// saver is a running backup. Its goroutine writes the file, in chunks that the client
// fetches with one request each.
type saver struct {
	*session
	cfg    *Config
	chunks chan []byte // of the file, in order; closed at its end
	err    error       // set before chunks is closed; nil: the file is complete

	reading   crash.Mutex
	offset    int64  // in the file, after lastChunk
	lastChunk []byte // kept because the reply with it may be lost
}

// setHold acquires or renews the backup's hold if active is set, otherwise it releases
// it. A hold keeps the cluster from deleting what the ledger refers to, for up to
// ledger.MaxHold. At most one backup has it.
func (sv *saver) setHold(ctx context.Context, active bool) error {
	c := &ledger.Hold{Holder: sv.cfg.Node + "/" + sv.id}
	if active {
		sv.cfg.Ledger.View(func(l *ledger.Ledger) { c.Until = l.Now().Add(ledger.MaxHold) })
	}
	return sv.cfg.Propose(ctx, c)
}

// acquireHold acquires the cluster's hold, which keeps records and blobs from being
// removed while a backup needs them. If another node has it, acquireHold returns an error
// that wraps [ledger.ErrBackupRunning]. But if that node is not connected, acquireHold
// takes the hold over, because the client of that node's backup now asks this one.
func (sv *saver) acquireHold(ctx context.Context) error {
	err := sv.setHold(ctx, true)
	if !errors.Is(err, ledger.ErrBackupRunning) {
		return err
	}
	holderNode, _, holder := sv.cfg.holder()
	holderConnected := slices.ContainsFunc(sv.cfg.members(), func(member ledger.Member) bool {
		return member.Node == holderNode && slices.Contains(sv.cfg.Routed(), member.ServerID())
	})
	if holderConnected {
		return err
	}
	if err := sv.cfg.Propose(ctx, &ledger.Hold{Holder: holder}); err != nil {
		return err
	}
	return sv.setHold(ctx, true)
}

// renewHold renews the hold until ctx ends and then releases it. It returns an error
// if the hold has expired, because data that the backup refers to may be gone.
func (sv *saver) renewHold(ctx context.Context) error {
	tick := time.NewTicker(holdInterval)
	defer tick.Stop()
	defer func() {
		// If this fails, the hold expires.
		_ = sv.setHold(context.WithoutCancel(ctx), false)
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if _, id, _ := sv.cfg.holder(); id != sv.id {
			return errors.New("the hold on what the ledger refers to has expired: no authority could be reached")
		}
		if err := sv.setHold(ctx, true); err != nil && ctx.Err() == nil {
			sv.cfg.Log.Info("backup hold not renewed, retrying", "err", err)
		}
	}
}

// Write passes b to read in chunks. It blocks until they have been requested.
func (sv *saver) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		chunk := rest[:min(len(rest), backupChunkSize)]
		select {
		case sv.chunks <- bytes.Clone(chunk):
			rest = rest[len(chunk):]
		case <-sv.ctx.Done():
			return len(b) - len(rest), errors.New("the client stopped reading")
		}
	}
	return len(b), nil
}

// run writes the file, and renews and at the end releases the hold, which the caller has
// acquired. The ledger is copied under the hold and before the streams, so that the
// streams contain everything that the ledger refers to.
func (sv *saver) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	holdCtx, stopHold := context.WithCancel(ctx)
	group.Go(func() error { return sv.renewHold(holdCtx) })
	group.Go(func() error {
		defer stopHold() // renewHold then releases the hold
		out := bufio.NewWriterSize(sv, backupChunkSize)
		if err := sv.write(ctx, NewWriter(out)); err != nil {
			return err
		}
		return out.Flush()
	})
	return group.Wait()
}

// write writes the ledger, the streams and the manifest to w.
func (sv *saver) write(ctx context.Context, w *Writer) error {
	l := sv.cfg.Ledger.Copy()
	manifest := &Manifest{
		Format: Format, Version: sv.cfg.Version, Yard: sv.cfg.Yard, Node: sv.cfg.Node, Members: sv.cfg.Members(),
		Started: time.Now().UTC(), Index: l.Index(), At: ledger.FormatTime(l.Now()), Epoch: l.Authority().Epoch,
		LastEvent: l.LastEvent(), LastResult: l.LastResult(), LastDead: l.LastDeadLetter(), Queues: Queues(l),
	}
	l.Crons("", func(ledger.CronView) bool { manifest.Crons++; return true })
	part := w.Part(LedgerPart)
	if err := l.Encode(part); err != nil {
		return err
	}
	var err error
	if manifest.Ledger, err = part.Close(); err != nil {
		return err
	}
	for _, stream := range savedStreams(len(l.Lanes())) {
		s, err := sv.writeStream(ctx, w, stream)
		if errors.Is(err, streams.ErrStreamMissing) && stream == subjects.StreamLogs {
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

// savedStreams returns the streams of a backup in their order. A blob is stored
// before the record that refers to it, so blobs are copied after the records. Boards are
// not copied: the authority builds them again.
func savedStreams(lanes int) []string {
	var all []string
	for lane := range lanes {
		all = append(all, subjects.LaneStream(uint8(lane)))
	}
	return append(all, subjects.StreamRelocated, subjects.StreamBlobs, subjects.StreamResultBlobs, subjects.StreamEvents, subjects.StreamResults, subjects.StreamDLQ, subjects.StreamLogs)
}

// writeStream writes one stream to w. After an interruption it writes the stream from
// its beginning again, as the part "<stream>.<try>"; the result names the part that is
// complete.
func (sv *saver) writeStream(ctx context.Context, w *Writer, stream string) (Stream, error) {
	name := stream
	for try := 2; ; try++ {
		part := w.Part(name)
		at, err := sv.cfg.Streams.ArchiveStream(ctx, stream, func(chunk []byte) error {
			_, err := part.Write(chunk)
			return err
		})
		if err == nil {
			written, err := part.Close()
			return Stream{
				Part: written, Stream: stream, Identity: at.Identity, First: at.First, Last: at.Last,
				Messages: at.Messages, Bytes: at.Bytes,
			}, err
		}
		if ctx.Err() != nil || try > maxStreamTries || errors.Is(err, streams.ErrStreamMissing) {
			return Stream{}, err
		}
		sv.cfg.Log.Info("stream copy interrupted, retrying", "stream", stream, "err", err)
		if _, err := part.Close(); err != nil {
			return Stream{}, err
		}
		name = fmt.Sprintf("%s.%d", stream, try)
		_ = backoff.Sleep(ctx, time.Second) // after ctx, the next try fails
	}
}
