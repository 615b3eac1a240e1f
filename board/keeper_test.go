package board

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestKeeper_WritesWhatHasChanged(t *testing.T) {
	inHouse(t, []Board{{Name: "a"}, {Name: "slow", Pace: 5 * time.Second}}, func(h *house) {
		if !h.began() {
			h.source.set("a", "x", 1, 1)
			h.source.set("slow", "y", 1, 1)
			return
		}
		h.shows("a/x", `{"fluid":1,"solid":1}`)
		if v := string(h.store.rows["a/x"].Value); !strings.HasSuffix(v, `,"epoch":7,"index":9,"at":"1970-01-01T00:00:00Z"}`) {
			t.Errorf("no moment in %s", v)
		}
		h.wrote()
		h.pass(20)
		if w := h.wrote(); len(w) > 0 {
			t.Errorf("nothing has changed, and %v is written", w)
		}
		for i := range uint64(20) {
			h.source.set("a", "x", 1, i+2)
			h.source.set("slow", "y", 1, i+2)
			h.pass(0)
		}
		counts := map[string]int{}
		for _, w := range h.wrote() {
			counts[w]++
		}
		if counts["a/x"] < 4 || counts["a/x"] > 7 || counts["slow/y"] < 1 || counts["slow/y"] > 2 {
			t.Errorf("in six seconds of change: %v", counts)
		}
		h.source.set("slow", "y", 2, 99)
		h.pass(1)
		h.shows("slow/y", `{"fluid":99,"solid":2}`) // a solid change does not wait for the pace
		h.source.remove("a", "x")
		h.pass(1)
		if !h.store.rows["a/x"].Gone {
			t.Error("what is no more still stands there")
		}
		h.pass(120)
		h.source.set("a", "x", 5, 5)
		h.pass(1)
		h.shows("a/x", `{"fluid":5,"solid":5}`)
		h.says("level=WARN", 0)
	})
}

func TestKeeper_WritesNoMoreThanItsShare(t *testing.T) {
	const rows = 5 * mostWrites
	inHouse(t, []Board{{Name: "few"}, {Name: "many"}}, func(h *house) {
		if !h.began() {
			for i := range rows {
				h.source.set("many", fmt.Sprint(i), 1, 0)
			}
			h.source.set("few", "one", 1, 1)
			return
		}
		for n := uint64(0); n < 20; n++ { // all of them change all the time
			for i := range rows {
				if i != 7 {
					h.source.set("many", fmt.Sprint(i), 1, n)
				}
			}
			if n == 10 { // and this one in a way that matters
				h.source.set("many", "7", 2, n)
			}
			h.wrote()
			h.pass(0)
			time.Sleep(700 * time.Millisecond)
			if w := h.wrote(); len(w) > mostWrites {
				t.Fatalf("%d writes in a second, at most %d", len(w), mostWrites)
			}
			if n == 11 {
				h.shows("many/7", `{"fluid":10,"solid":2}`)
			}
		}
		h.pass(10)
		for i := range rows {
			if i != 7 {
				h.shows("many/"+fmt.Sprint(i), `{"fluid":19,"solid":1}`)
			}
		}
	})
}

func TestKeeper_ReconcilesWhatItFinds(t *testing.T) {
	inHouse(t, []Board{{Name: "a"}}, func(h *house) {
		if !h.began() {
			h.store.foreign("a", "true", `{"fluid":1,"solid":1,"epoch":3,"index":4,"at":"2026-01-01T00:00:00Z"}`)
			h.store.foreign("a", "false", `{"fluid":8,"solid":8,"epoch":3,"index":4,"at":"2026-01-01T00:00:00Z"}`)
			h.store.foreign("a", "odd", `not ours`)
			h.store.foreign("a", "stale", `{"fluid":1,"solid":1}`)
			for _, key := range []string{"true", "false", "odd", "new"} {
				h.source.set("a", key, 1, 1)
			}
			h.wrote()
			return
		}
		h.pass(3)
		for _, key := range []string{"true", "false", "odd", "new"} {
			h.shows("a/"+key, `{"fluid":1,"solid":1}`)
		}
		if !h.store.rows["a/stale"].Gone {
			t.Error("what is no more still stands there")
		}
		if w := h.wrote(); len(w) != 4 {
			t.Errorf("written: %v; want all but the true one", w)
		}
		h.says("another hand", 0)
	})
}

func TestKeeper_OverwritesOtherHands(t *testing.T) {
	inHouse(t, []Board{{Name: "a"}}, func(h *house) {
		if !h.began() {
			h.source.set("a", "x", 1, 1)
			return
		}
		h.pass(5)
		h.store.foreign("a", "x", `{"mine":true}`)
		h.store.foreign("a", "junk", `{}`)
		h.pass(0)
		h.shows("a/x", `{"fluid":1,"solid":1}`)
		if !h.store.rows["a/junk"].Gone {
			t.Error("a row of nothing stands there")
		}
		h.says("another hand", 2)
		h.wrote()
		for range 100 { // a war is fought once a second
			h.store.foreign("a", "x", `{"mine":true}`)
			time.Sleep(50 * time.Millisecond)
		}
		if w := h.wrote(); len(w) > 107 {
			t.Errorf("%d writes of the keeper's in five seconds", len(w)-100)
		}
		h.pass(1)
		h.shows("a/x", `{"fluid":1,"solid":1}`)
		h.wrote()
		for range 100 { // also against one who removes
			h.store.mu.Lock()
			h.store.write("a", Entry{Key: "x", Gone: true})
			h.store.mu.Unlock()
			time.Sleep(50 * time.Millisecond)
		}
		if w := h.wrote(); len(w) > 107 {
			t.Errorf("%d writes of the keeper's in five seconds", len(w)-100)
		}
		h.pass(1)
		h.shows("a/x", `{"fluid":1,"solid":1}`)
	})
}

func TestKeeper_DoubtAndFailure(t *testing.T) {
	inHouse(t, []Board{{Name: "a"}, {Name: "b"}}, func(h *house) {
		if !h.began() {
			h.source.set("a", "x", 1, 1)
			h.source.set("b", "y", 1, 1)
			return
		}
		// Stored, but the answer is lost: its own write is no other hand's.
		h.store.mu.Lock()
		h.store.lost = 1
		h.store.mu.Unlock()
		h.source.set("a", "x", 2, 2)
		h.pass(3)
		h.shows("a/x", `{"fluid":2,"solid":2}`)
		h.says("another hand", 0)
		// One board is down: the other goes on, and the log says so once.
		h.store.mu.Lock()
		h.store.down, h.store.perBoard = errors.New("no leader"), "a"
		h.store.mu.Unlock()
		h.source.set("a", "x", 3, 3)
		h.source.set("b", "y", 3, 3)
		h.pass(2)
		h.shows("b/y", `{"fluid":3,"solid":3}`)
		h.says("not up to date", 0) // an election is no news
		h.pass(60)
		h.says("not up to date", 1)
		h.store.mu.Lock()
		h.store.down = nil
		h.store.mu.Unlock()
		h.pass(2)
		h.shows("a/x", `{"fluid":3,"solid":3}`)
		h.says("up to date again", 1)
		// A write that nobody told of: after some refusals all is looked at anew.
		h.store.mu.Lock()
		heard := h.store.heard["a"]
		delete(h.store.heard, "a")
		watches := h.store.watches
		h.store.write("a", Entry{Key: "x", Value: []byte("unheard")})
		h.store.heard["a"] = heard
		h.store.mu.Unlock()
		h.source.set("a", "x", 4, 4)
		h.pass(10)
		h.shows("a/x", `{"fluid":4,"solid":4}`)
		if h.store.watches == watches {
			t.Error("the boards were not looked at anew")
		}
	})
}

// Nobody tells a watch that its board is gone, and in a quiet yard no write
// would find out.
func TestKeeper_FillsABoardThatWasMadeAnew(t *testing.T) {
	inHouse(t, []Board{{Name: "a"}}, func(h *house) {
		if !h.began() {
			h.store.unmade = true // as on the first start
			h.source.set("a", "x", 1, 1)
			return
		}
		h.pass(5)
		h.shows("a/x", `{"fluid":1,"solid":1}`)
		h.store.mu.Lock()
		clear(h.store.rows)
		h.store.unmade = true
		h.store.mu.Unlock()
		h.pass(10)
		h.shows("a/x", `{"fluid":1,"solid":1}`)
		h.says("level=WARN", 0)
	})
}

func TestKeeper_BlindBoardWaitsForNoWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &deafStore{newFakeStore()}
		source := &fakeSource{}
		source.set("blind", "x", 1, 1)
		source.set("seeing", "y", 1, 1)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		var log words
		go func() {
			defer close(ended)
			New([]Board{{Name: "blind", Blind: true}, {Name: "seeing"}}, source, store, slog.New(slog.NewTextHandler(&log, nil))).Run(ctx)
		}()
		time.Sleep(20 * time.Second) // the bubble's time
		synctest.Wait()
		cancel()
		<-ended
		if len(store.writes) != 1 || store.writes[0] != "blind/x" {
			t.Errorf("written: %v", store.writes)
		}
		if text := log.String(); strings.Count(text, "level=WARN") != 2 || !strings.Contains(text, "failing=seeing") {
			t.Errorf("that two boards cannot be watched is told so:\n%s", text)
		}
	})
}
