package membership

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// streams tells where the streams lie. While jobs come in, a copy lacks at any
// moment what is on its way to it: so those that are behind are looked at again,
// and count as current if they once were within the last ten seconds.
func (k *Keeper) streams(ctx context.Context) ([]StreamCopies, error) {
	until := time.Now().Add(k.patience)
	var streams []StreamCopies
	for {
		now, err := k.yard.Streams(ctx)
		if err != nil && streams == nil {
			return nil, err
		}
		if err == nil {
			streams = now
		}
		if k.settle(streams, time.Now()) || !time.Now().Before(until) {
			return streams, nil
		}
		select {
		case <-time.After(lookPause):
		case <-ctx.Done():
			return streams, nil
		}
	}
}

// settle notes which copies are current, and has those count that lately were;
// all tells that none is left that is heard and behind.
func (k *Keeper) settle(streams []StreamCopies, now time.Time) (all bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	all = true
	for i := range streams {
		for n := range streams[i].Copies {
			c := &streams[i].Copies[n]
			key := streams[i].Stream + " " + c.ID
			if c.Current {
				k.level[key] = now
			}
			c.Current = now.Sub(k.level[key]) < levelFor
			all = all && (c.Current || c.Offline)
		}
	}
	for key, at := range k.level {
		if now.Sub(at) >= levelFor {
			delete(k.level, key)
		}
	}
	return all
}

// moved has what lies on a living member copied elsewhere; left is what still
// lies there.
func (k *Keeper) moved(ctx context.Context, id string) (left string, err error) {
	streams, err := k.streams(ctx)
	if err != nil {
		return "", err
	}
	there := 0
	for i := range streams {
		if len(streams[i].Copies) == 0 || slices.ContainsFunc(streams[i].Copies, func(c Copy) bool { return c.ID == id }) {
			there++ // or it may: nobody who leads it answers
		}
	}
	if there == 0 {
		return k.whole(ctx, id)
	}
	if time.Since(k.evacued) > askAgain {
		k.evacued = time.Now()
		err = k.yard.Evacuate(ctx, id)
	}
	return fmt.Sprintf("streams are copied to others: %d of %d still lie on %s", there, len(streams), id), err
}

// spared tells which streams cannot do without what lies on a dead member: its place
// goes to an empty copy, which makes a majority with one that is behind, and the two
// could decide without what only the third has. What has not caught up after lostTime
// may be lost as well, and is waited for no longer.
func (k *Keeper) spared(ctx context.Context, dead string) (left string, err error) {
	streams, err := k.streams(ctx)
	if err != nil || time.Since(k.began) > lostTime {
		return "", err
	}
	var waits []string
	for i := range streams {
		s := &streams[i]
		there := len(s.Copies) == 0 // or it may be: nobody who leads it answers
		behind := there
		for n := range s.Copies {
			c := &s.Copies[n]
			there = there || c.ID == dead
			behind = behind || c.ID != dead && !c.well()
		}
		if there && behind {
			waits = append(waits, s.Stream)
		}
	}
	if len(waits) == 0 {
		return "", nil
	}
	return fmt.Sprintf("streams have to be current on other members first: %d of %d are not (%s)", len(waits), len(streams), strings.Join(waits, ", ")), nil
}

// whole tells which streams still lack a copy, or have one that is behind.
func (k *Keeper) whole(ctx context.Context, without string) (left string, err error) {
	streams, err := k.streams(ctx)
	if err != nil {
		return "", err
	}
	var lacking []string
	behind := uint64(0)
	for i := range streams {
		s := &streams[i]
		well := 0
		for n := range s.Copies {
			if c := &s.Copies[n]; c.ID != without {
				if c.well() {
					well++
				}
				behind += c.Lag
			}
		}
		if well < max(s.Want, 1) {
			lacking = append(lacking, s.Stream)
		}
	}
	if len(lacking) == 0 {
		return "", nil
	}
	return fmt.Sprintf("streams are made whole: %d of %d lack a current copy, %d operations behind (%s)", len(lacking), len(streams), behind, strings.Join(lacking, ", ")), nil
}
