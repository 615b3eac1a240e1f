package board

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// pass writes what is most urgent, at most so many rows, and waits for what
// becomes of it. Its error is [ErrOther] if that was all that went wrong.
func (k *Keeper) pass(ctx context.Context, panels []*panel, most int) (wrote int, err error) {
	out := &flight{most: most, ends: make(chan landed, most)}
	var broken error
	for _, p := range panels {
		rows, ok := k.source.Rows(ctx, p.board.Name)
		if !ok {
			continue
		}
		if err := k.show(p, p.wishes(rows, time.Now()), out); err != nil {
			broken = err
		}
	}
	if err = out.await(ctx); broken != nil {
		err = broken
	}
	return out.count, err
}

// show sends the first of the wishes, as many as the pass has room for.
func (k *Keeper) show(p *panel, wanted []wish, out *flight) error {
	for len(wanted) > 0 && out.count < out.most {
		some := wanted[:min(len(wanted), factsAtOnce)]
		wanted = wanted[len(some):]
		keys := make([]string, len(some))
		for i := range some {
			keys[i] = some[i].Key
		}
		facts, of := k.source.Facts(p.board.Name, keys)
		for i := range some {
			if out.count == out.most {
				return nil
			}
			if err := k.showRow(p, &some[i], facts[i], of, out); err != nil {
				return fmt.Errorf("row %s of %s: %w", some[i].Key, p.board.Name, err)
			}
		}
	}
	return nil
}

func (k *Keeper) showRow(p *panel, w *wish, facts any, of Moment, out *flight) error {
	if w.remove {
		k.store.Remove(p.board.Name, w.Key, p.begin(w, []byte{}), out.lands(p, w))
		return nil
	}
	if facts == nil { // gone since: the next pass sees that
		return nil
	}
	text, err := json.Marshal(facts)
	if err != nil {
		return err
	}
	if w.compare && p.holds(w, text) {
		return nil
	}
	value := withMoment(text, of)
	k.store.Put(p.board.Name, w.Key, value, p.begin(w, value), out.lands(p, w))
	return nil
}

// momentKey begins what is added to the facts of a row.
const momentKey = `,"epoch":`

// withMoment adds to a row's facts which state of the ledger they are of.
func withMoment(facts []byte, of Moment) []byte {
	value := append([]byte(nil), facts[:len(facts)-1]...)
	return fmt.Appendf(value, momentKey+`%d,"index":%d,"at":%q}`, of.Epoch, of.Index, of.At.UTC().Format(time.RFC3339Nano))
}

// factsOf is a row without its moment.
func factsOf(value []byte) []byte {
	cut := bytes.LastIndex(value, []byte(momentKey))
	if cut < 0 {
		return value
	}
	return append(append([]byte(nil), value[:cut]...), '}')
}

// flight is the writes of a pass that are on their way.
type flight struct {
	most  int         // that there may be
	ends  chan landed // has room for them
	count int
}

type landed struct {
	panel *panel
	wish  *wish
	rev   uint64
	err   error
}

// lands is what the store tells the end of a write.
func (f *flight) lands(p *panel, w *wish) func(uint64, error) {
	f.count++
	return func(rev uint64, err error) { f.ends <- landed{p, w, rev, err} }
}

// await hears the ends of all writes, unless ctx ends before.
func (f *flight) await(ctx context.Context) error {
	var failed error
	for range f.count {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case l := <-f.ends:
			l.panel.end(l.wish, l.rev, l.err, time.Now())
			if l.err != nil && (failed == nil || errors.Is(failed, ErrOther)) {
				failed = fmt.Errorf("row %s of %s: %w", l.wish.Key, l.panel.board.Name, l.err)
			}
		}
	}
	return failed
}
