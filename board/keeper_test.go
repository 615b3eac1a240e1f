package board

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeStore is boards in memory. Writes land a millisecond later.
type fakeStore struct {
	mu       sync.Mutex
	rev      uint64
	rows     map[string]Entry // by board and key
	heard    map[string]func(Entry)
	writes   []string // what was stored, as "board/key"
	watches  int
	lost     int    // so many acknowledgements do not arrive
	down     error  // nothing is stored
	unmade   error  // of Ensure
	perBoard string // the board that is down; "": all
}

func newFakeStore() *fakeStore {
	return &fakeStore{rows: map[string]Entry{}, heard: map[string]func(Entry){}}
}

func (s *fakeStore) Ensure(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unmade
}

func (s *fakeStore) Watch(ctx context.Context, board string, heard func(Entry)) error {
	s.mu.Lock()
	s.watches++
	for at, e := range s.rows {
		if strings.HasPrefix(at, board+"/") {
			heard(e)
		}
	}
	heard(Entry{})
	s.heard[board] = heard
	s.mu.Unlock()
	<-ctx.Done()
	return nil
}

// write stores as any hand may.
func (s *fakeStore) write(board string, e Entry) uint64 {
	s.rev++
	e.Rev = s.rev
	s.rows[board+"/"+e.Key] = e
	s.writes = append(s.writes, board+"/"+e.Key)
	if heard := s.heard[board]; heard != nil {
		heard(e)
	}
	return s.rev
}

func (s *fakeStore) foreign(board, key, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.write(board, Entry{Key: key, Value: []byte(value)})
}

func (s *fakeStore) Put(board, key string, value []byte, last uint64, done func(uint64, error)) {
	s.land(board, Entry{Key: key, Value: value}, last, done)
}

func (s *fakeStore) Remove(board, key string, last uint64, done func(uint64, error)) {
	s.land(board, Entry{Key: key, Gone: true}, last, done)
}

func (s *fakeStore) land(board string, e Entry, last uint64, done func(uint64, error)) {
	time.AfterFunc(time.Millisecond, func() {
		s.mu.Lock()
		var rev uint64
		err := s.down
		if s.perBoard != "" && s.perBoard != board {
			err = nil
		}
		if err == nil {
			if last > 0 && s.rows[board+"/"+e.Key].Rev != last {
				err = ErrOther
			} else {
				rev = s.write(board, e)
			}
		}
		if err == nil && s.lost > 0 {
			s.lost--
			err = errors.New("no answer")
		}
		s.mu.Unlock()
		done(rev, err)
	})
}

// fakeSource shows numbers by key.
type fakeSource struct {
	mu    sync.Mutex
	solid map[string]map[string]uint64
	fluid map[string]map[string]uint64
}

func (f *fakeSource) set(board, key string, solid, fluid uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.solid == nil {
		f.solid, f.fluid = map[string]map[string]uint64{}, map[string]map[string]uint64{}
	}
	if f.solid[board] == nil {
		f.solid[board], f.fluid[board] = map[string]uint64{}, map[string]uint64{}
	}
	f.solid[board][key], f.fluid[board][key] = solid, fluid
}

func (f *fakeSource) remove(board, key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.solid[board], key)
}

func (f *fakeSource) Rows(_ context.Context, board string) (rows []Row, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, solid := range f.solid[board] {
		rows = append(rows, Row{key, solid, f.fluid[board][key]})
	}
	return rows, true
}

func (f *fakeSource) Facts(board string, keys []string) ([]any, Moment) {
	f.mu.Lock()
	defer f.mu.Unlock()
	facts := make([]any, len(keys))
	for i, key := range keys {
		if solid, ok := f.solid[board][key]; ok {
			facts[i] = map[string]uint64{"solid": solid, "fluid": f.fluid[board][key]}
		}
	}
	return facts, Moment{Epoch: 7, Index: 9, At: time.Unix(0, 0)}
}

// house is a keeper with all it talks to, in a bubble of its own time.
type house struct {
	t      *testing.T
	store  *fakeStore
	source *fakeSource
	words  *strings.Builder
	stop   func()
}

func inHouse(t *testing.T, boards []Board, test func(h *house)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := &house{t: t, store: newFakeStore(), source: &fakeSource{}, words: &strings.Builder{}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		h.stop = func() { cancel(); <-ended }
		test(&house{t, h.store, h.source, h.words, func() {}}) // what stands there before
		go func() {
			defer close(ended)
			New(boards, h.source, h.store, slog.New(slog.NewTextHandler(h.words, nil))).Run(ctx)
		}()
		h.pass(0)
		test(h)
		h.stop()
	})
}

// pass lets some seconds go by.
func (h *house) pass(seconds int) {
	time.Sleep(time.Duration(seconds)*time.Second + 300*time.Millisecond) // the bubble's time: nothing real waits
	synctest.Wait()
}

// wrote gives what was stored since it was asked last.
func (h *house) wrote() []string {
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	w := h.store.writes
	h.store.writes = nil
	return w
}

func (h *house) shows(at, want string) {
	h.t.Helper()
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	e, ok := h.store.rows[at]
	if got := string(factsOf(e.Value)); !ok || e.Gone || got != want {
		h.t.Errorf("%s shows %q (gone %t), want %q", at, e.Value, e.Gone, want)
	}
}

func (h *house) says(word string, times int) {
	h.t.Helper()
	if n := strings.Count(h.words.String(), word); n != times {
		h.t.Errorf("the log says %q %d times, want %d:\n%s", word, n, times, h.words)
	}
}

// began is false in the call of a test that only lays out what is there before.
func (h *house) began() bool { return h.store.watches > 0 }

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

func TestKeeper_BlindBoardWaitsForNoWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &deafStore{newFakeStore()}
		source := &fakeSource{}
		source.set("blind", "x", 1, 1)
		source.set("seeing", "y", 1, 1)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			New([]Board{{Name: "blind", Blind: true}, {Name: "seeing"}}, source, store, slog.New(slog.DiscardHandler)).Run(ctx)
		}()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		cancel()
		<-ended
		if len(store.writes) != 1 || store.writes[0] != "blind/x" {
			t.Errorf("written: %v", store.writes)
		}
	})
}

// deafStore cannot be watched.
type deafStore struct{ *fakeStore }

func (s *deafStore) Watch(context.Context, string, func(Entry)) error {
	return errors.New("nobody tells")
}
