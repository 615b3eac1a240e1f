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

func TestUpdater_WritesChangedRows(t *testing.T) {
	runHarness(t, []Board{{Name: "a"}, {Name: "slow", Interval: 5 * time.Second}}, func(h *harness) {
		if !h.running() {
			h.source.set("a", "x", 1, 1)
			h.source.set("slow", "y", 1, 1)
			return
		}
		h.wantRow("a/x", `{"stable":1,"volatile":1}`)
		if v := string(h.store.rows["a/x"].Value); !strings.HasSuffix(v, `,"epoch":7,"index":9,"at":"1970-01-01T00:00:00Z"}`) {
			t.Errorf("no version in %s", v)
		}
		h.takeWrites()
		h.advance(20)
		if w := h.takeWrites(); len(w) > 0 {
			t.Errorf("nothing has changed, but %v was written", w)
		}
		for i := range uint64(20) {
			h.source.set("a", "x", 1, i+2)
			h.source.set("slow", "y", 1, i+2)
			h.advance(0)
		}
		counts := map[string]int{}
		for _, w := range h.takeWrites() {
			counts[w]++
		}
		if counts["a/x"] < 4 || counts["a/x"] > 7 || counts["slow/y"] < 1 || counts["slow/y"] > 2 {
			t.Errorf("writes in six seconds of changes: %v", counts)
		}
		h.source.set("slow", "y", 2, 99)
		h.advance(1)
		h.wantRow("slow/y", `{"stable":2,"volatile":99}`) // a stable change does not wait for the interval
		h.source.remove("a", "x")
		h.advance(1)
		if !h.store.rows["a/x"].Deleted {
			t.Error("a row that no longer exists is still stored")
		}
		h.advance(120)
		h.source.set("a", "x", 5, 5)
		h.advance(1)
		h.wantRow("a/x", `{"stable":5,"volatile":5}`)
		h.wantLogged("level=WARN", 0)
	})
}

func TestUpdater_WriteRateLimit(t *testing.T) {
	const rows = 5 * maxWritesPerSecond
	runHarness(t, []Board{{Name: "few"}, {Name: "many"}}, func(h *harness) {
		if !h.running() {
			for i := range rows {
				h.source.set("many", fmt.Sprint(i), 1, 0)
			}
			h.source.set("few", "one", 1, 1)
			return
		}
		for n := uint64(0); n < 20; n++ { // all rows change all the time
			for i := range rows {
				if i != 7 {
					h.source.set("many", fmt.Sprint(i), 1, n)
				}
			}
			if n == 10 { // and the stable part of this one
				h.source.set("many", "7", 2, n)
			}
			h.takeWrites()
			h.advance(0)
			time.Sleep(700 * time.Millisecond)
			if w := h.takeWrites(); len(w) > maxWritesPerSecond {
				t.Fatalf("%d writes in a second, at most %d", len(w), maxWritesPerSecond)
			}
			if n == 11 {
				h.wantRow("many/7", `{"stable":2,"volatile":10}`)
			}
		}
		h.advance(10)
		for i := range rows {
			if i != 7 {
				h.wantRow("many/"+fmt.Sprint(i), `{"stable":1,"volatile":19}`)
			}
		}
	})
}

func TestUpdater_ReconcilesExistingRows(t *testing.T) {
	runHarness(t, []Board{{Name: "a"}}, func(h *harness) {
		if !h.running() {
			h.store.writeOutside("a", "true", `{"stable":1,"volatile":1,"epoch":3,"index":4,"at":"2026-01-01T00:00:00Z"}`)
			h.store.writeOutside("a", "false", `{"stable":8,"volatile":8,"epoch":3,"index":4,"at":"2026-01-01T00:00:00Z"}`)
			h.store.writeOutside("a", "odd", `not ours`)
			h.store.writeOutside("a", "stale", `{"stable":1,"volatile":1}`)
			for _, key := range []string{"true", "false", "odd", "new"} {
				h.source.set("a", key, 1, 1)
			}
			h.takeWrites()
			return
		}
		h.advance(3)
		for _, key := range []string{"true", "false", "odd", "new"} {
			h.wantRow("a/"+key, `{"stable":1,"volatile":1}`)
		}
		if !h.store.rows["a/stale"].Deleted {
			t.Error("a row that no longer exists is still stored")
		}
		if w := h.takeWrites(); len(w) != 4 {
			t.Errorf("written: %v; want all but the correct row", w)
		}
		h.wantLogged("by another client", 0)
	})
}

func TestUpdater_OverwritesOutsideWrites(t *testing.T) {
	runHarness(t, []Board{{Name: "a"}}, func(h *harness) {
		if !h.running() {
			h.source.set("a", "x", 1, 1)
			return
		}
		h.advance(5)
		h.store.writeOutside("a", "x", `{"mine":true}`)
		h.store.writeOutside("a", "junk", `{}`)
		h.advance(0)
		h.wantRow("a/x", `{"stable":1,"volatile":1}`)
		if !h.store.rows["a/junk"].Deleted {
			t.Error("a row without a source is stored")
		}
		h.wantLogged("by another client", 2)
		h.takeWrites()
		for range 100 { // a conflict is resolved once a second
			h.store.writeOutside("a", "x", `{"mine":true}`)
			time.Sleep(50 * time.Millisecond)
		}
		if w := h.takeWrites(); len(w) > 107 {
			t.Errorf("%d writes by the updater in five seconds", len(w)-100)
		}
		h.advance(1)
		h.wantRow("a/x", `{"stable":1,"volatile":1}`)
		h.takeWrites()
		for range 100 { // also if the other client removes rows
			h.store.mu.Lock()
			h.store.write("a", Entry{Key: "x", Deleted: true})
			h.store.mu.Unlock()
			time.Sleep(50 * time.Millisecond)
		}
		if w := h.takeWrites(); len(w) > 107 {
			t.Errorf("%d writes by the updater in five seconds", len(w)-100)
		}
		h.advance(1)
		h.wantRow("a/x", `{"stable":1,"volatile":1}`)
	})
}

func TestUpdater_LostAcksAndFailures(t *testing.T) {
	runHarness(t, []Board{{Name: "a"}, {Name: "b"}}, func(h *harness) {
		if !h.running() {
			h.source.set("a", "x", 1, 1)
			h.source.set("b", "y", 1, 1)
			return
		}
		// Stored, but the acknowledgement is lost: not another client's write.
		h.store.mu.Lock()
		h.store.lostAcks = 1
		h.store.mu.Unlock()
		h.source.set("a", "x", 2, 2)
		h.advance(3)
		h.wantRow("a/x", `{"stable":2,"volatile":2}`)
		h.wantLogged("by another client", 0)
		// One board fails: the other is updated, and one warning is logged.
		h.store.mu.Lock()
		h.store.err, h.store.perBoard = errors.New("no leader"), "a"
		h.store.mu.Unlock()
		h.source.set("a", "x", 3, 3)
		h.source.set("b", "y", 3, 3)
		h.advance(2)
		h.wantRow("b/y", `{"stable":3,"volatile":3}`)
		h.wantLogged("boards out of date", 0) // not logged during an election
		h.advance(60)
		h.wantLogged("boards out of date", 1)
		h.store.mu.Lock()
		h.store.err = nil
		h.store.mu.Unlock()
		h.advance(2)
		h.wantRow("a/x", `{"stable":3,"volatile":3}`)
		h.wantLogged("up to date again", 1)
		// A write that the watch missed: after some conflicts all boards are read again.
		h.store.mu.Lock()
		heard := h.store.watchers["a"]
		delete(h.store.watchers, "a")
		watches := h.store.watches
		h.store.write("a", Entry{Key: "x", Value: []byte("unheard")})
		h.store.watchers["a"] = heard
		h.store.mu.Unlock()
		h.source.set("a", "x", 4, 4)
		h.advance(10)
		h.wantRow("a/x", `{"stable":4,"volatile":4}`)
		if h.store.watches == watches {
			t.Error("the boards were not read again")
		}
	})
}

// TestUpdater_RefillsRecreatedBoard checks that a recreated board is filled again.
// Its watch does not report the loss, and without changes no write would detect
// it.
func TestUpdater_RefillsRecreatedBoard(t *testing.T) {
	runHarness(t, []Board{{Name: "a"}}, func(h *harness) {
		if !h.running() {
			h.store.missing = true // as on the first start
			h.source.set("a", "x", 1, 1)
			return
		}
		h.advance(5)
		h.wantRow("a/x", `{"stable":1,"volatile":1}`)
		h.store.mu.Lock()
		clear(h.store.rows)
		h.store.missing = true
		h.store.mu.Unlock()
		h.advance(10)
		h.wantRow("a/x", `{"stable":1,"volatile":1}`)
		h.wantLogged("level=WARN", 0)
	})
}

func TestUpdater_SkipWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &unwatchableStore{newFakeStore()}
		source := &fakeSource{}
		source.set("blind", "x", 1, 1)
		source.set("seeing", "y", 1, 1)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		var log logBuffer
		go func() {
			defer close(ended)
			New([]Board{{Name: "blind", SkipWatch: true}, {Name: "seeing"}}, source, store, slog.New(slog.NewTextHandler(&log, nil))).Run(ctx)
		}()
		time.Sleep(20 * time.Second) // simulated time
		synctest.Wait()
		cancel()
		<-ended
		if len(store.writes) != 1 || store.writes[0] != "blind/x" {
			t.Errorf("written: %v", store.writes)
		}
		if text := log.String(); strings.Count(text, "level=WARN") != 2 || !strings.Contains(text, "task=seeing") {
			t.Errorf("log of two boards that cannot be watched:\n%s", text)
		}
	})
}
