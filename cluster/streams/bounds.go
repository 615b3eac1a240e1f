package streams

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
)

// raiseBounds raises the bounds of the streams that refuse jobs when they are full to the
// sizes that a new yard with this node's MaxStore has, so that an operator can make them
// larger. It lowers no bound, and does nothing if MaxStore was derived from the free space
// of this node's disk.
func (a *Admin) raiseBounds(ctx context.Context) error {
	if !a.local.Config.FixedStore {
		return nil
	}
	layout := Layout{Identities: make([]string, a.local.Lanes())}.withDefaults(&a.local.Config)
	laneBytes, known := int64(0), true
	for lane := range layout.Identities {
		most, err := a.raiseBound(ctx, subjects.LaneStream(uint8(lane)), layout.MaxLaneBytes)
		if err != nil {
			return err
		}
		laneBytes, known = laneBytes+most, known && most > 0
	}
	if _, err := a.raiseBound(ctx, subjects.StreamBlobs, layout.MaxBlobBytes); err != nil || !known {
		return err
	}
	layout.limitRelocated(&a.local.Config, laneBytes)
	_, err := a.raiseBound(ctx, subjects.StreamRelocated, layout.MaxRelocated)
	return err
}

// raiseBound raises the bound of a stream to most bytes, unless it is as large. It returns
// the bound, 0 if the stream has no leader at present, which others report.
func (a *Admin) raiseBound(ctx context.Context, name string, most int64) (int64, error) {
	info, err := Info(ctx, a.local.JS, name)
	if err != nil {
		return 0, nil
	}
	cfg := info.Config
	was := cfg.MaxBytes
	if cfg.Discard != jetstream.DiscardNew || was <= 0 || was >= most {
		return was, nil
	}
	cfg.MaxBytes = most
	if _, err := a.local.JS.UpdateStream(ctx, cfg); err != nil {
		return 0, fmt.Errorf("raise the bound of %s to %d bytes, as this node's nats.max_store_bytes allows: %w; set it to the same value on every member and restart them; if it is the same already, remove streams or buckets of your own that reserve space", name, most, err)
	}
	a.local.Log.Info("bound of a stream raised", "stream", name, "bytes", was, "to", most)
	return most, nil
}
