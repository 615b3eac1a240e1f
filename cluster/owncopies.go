package cluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// OwnCopy is this node's copy of one of the yard's streams, as its server has it.
type OwnCopy struct {
	Stream      string
	First, Last uint64 // of an empty one, Last is less
	// Dense tells that nothing ever leaves its middle.
	Dense bool
}

// OwnCopies lists the streams of the yard of which this node has a copy, as far
// as that has all that the stream's leader has told it of. Users' own streams, what
// nodes say and the boards are not among them.
func (c *Cluster) OwnCopies() ([]OwnCopy, error) {
	info, err := c.srv.Jsz(&server.JSzOptions{Account: account, Streams: true, Config: true})
	if err != nil {
		return nil, fmt.Errorf("look at JetStream: %w", err)
	}
	var all []OwnCopy
	for _, a := range info.AccountDetails {
		for i := range a.Streams {
			d := &a.Streams[i]
			if d.Config == nil || !Proved(d.Name) || !c.srv.JetStreamIsStreamCurrent(account, d.Name) {
				continue
			}
			all = append(all, OwnCopy{
				Stream: d.Name, First: max(1, d.State.FirstSeq), Last: d.State.LastSeq,
				Dense: dense(d.Name),
			})
		}
	}
	slices.SortFunc(all, func(a, b OwnCopy) int { return strings.Compare(a.Stream, b.Stream) })
	return all, nil
}

// dense: lanes and what is told of them lose messages at their beginning alone.
func dense(stream string) bool {
	return strings.HasPrefix(stream, lanePrefix) || stream == StreamEvents || stream == StreamResults
}

// Proved are the streams whose copies are compared. What is in a board is made
// anew each second, and a line of a log may be lost.
func Proved(stream string) bool {
	return dense(stream) || stream == StreamBlobs || stream == StreamDLQ
}

// WalkCopy reads this node's copy of a stream from the disk, past the server, and
// calls fn with every message from one sequence to another, both included: with
// a sum that is the same for the same message on every node. pace is told how
// many bytes were read, and may wait. What was removed from the middle of a stream
// may still lie there. damaged counts places where nothing readable is.
func (c *Cluster) WalkCopy(stream string, from, to uint64, pace func(bytes int) error, fn func(seq, sum uint64)) (damaged int, err error) {
	damaged, err = walkBlocks(stream, filepath.Join(c.streamDir(stream), "msgs"), from, to, pace, fn)
	if err != nil {
		return damaged, fmt.Errorf("read this node's copy of %s: %w", stream, err)
	}
	return damaged, nil
}

func (c *Cluster) streamDir(stream string) string {
	return filepath.Join(c.storeDir(), account, "streams", stream)
}

// Keeps asks a stream's leader whether it has a message, and then the other copies:
// the leader's may be the one that is damaged.
func (c *Cluster) Keeps(ctx context.Context, stream string, seq uint64) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, err := c.leaderOne(ctx, stream, getRequest{Seq: seq})
	if errors.Is(err, ErrNotStored) {
		_, err = c.anyReplica(ctx, stream, getRequest{Seq: seq})
	}
	if errors.Is(err, ErrNotStored) {
		return false, nil
	}
	return err == nil, err
}

// storeDir is where JetStream keeps its files, whether it runs or not.
func (c *Cluster) storeDir() string { return filepath.Join(c.cfg.Dir, server.JetStreamStoreDir) }
