package board

import (
	"context"
	"errors"
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
	unmade   bool   // Ensure has something to make
	perBoard string // the board that is down; "": all
}

func newFakeStore() *fakeStore {
	return &fakeStore{rows: map[string]Entry{}, heard: map[string]func(Entry){}}
}

func (s *fakeStore) Ensure(context.Context) (made bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	made, s.unmade = s.unmade, false
	return made, nil
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
	words  *words
	stop   func()
}

// words are a log that is read while it is written.
type words struct {
	mu   sync.Mutex
	text strings.Builder
}

func (w *words) Write(text []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(text)
}

func (w *words) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

func inHouse(t *testing.T, boards []Board, test func(h *house)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := &house{t: t, store: newFakeStore(), source: &fakeSource{}, words: &words{}}
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
func (h *house) began() bool {
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	return h.store.watches > 0
}

// deafStore cannot be watched.
type deafStore struct{ *fakeStore }

func (s *deafStore) Watch(context.Context, string, func(Entry)) error {
	return errors.New("nobody tells")
}
