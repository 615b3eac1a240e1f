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
	bounds := map[string]int64{subjects.StreamRelocated: layout.MaxRelocated, subjects.StreamBlobs: layout.MaxBlobBytes}
	for lane := range layout.Identities {
		bounds[subjects.LaneStream(uint8(lane))] = layout.MaxLaneBytes
	}
	for name, most := range bounds {
		if err := a.raiseBound(ctx, name, most); err != nil {
			return fmt.Errorf("raise the bound of %s to %d bytes, as this node's nats.max_store_bytes allows: %w; set that to the same value on every member, and restart them", name, most, err)
		}
	}
	return nil
}

// raiseBound raises the bound of a stream to most bytes, unless it is as large.
func (a *Admin) raiseBound(ctx context.Context, name string, most int64) error {
	info, err := Info(ctx, a.local.JS, name)
	if err != nil {
		return nil // no leader at present, which others report: at the next call
	}
	cfg := info.Config
	if cfg.Discard != jetstream.DiscardNew || cfg.MaxBytes <= 0 || cfg.MaxBytes >= most {
		return nil
	}
	was := cfg.MaxBytes
	cfg.MaxBytes = most
	if _, err := a.local.JS.UpdateStream(ctx, cfg); err != nil {
		return err
	}
	a.local.Log.Info("bound of a stream raised", "stream", name, "bytes", was, "to", most)
	return nil
}
