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

// fakeStore holds boards in memory. Writes complete a millisecond later.
type fakeStore struct {
	mu       sync.Mutex
	rev      uint64
	rows     map[string]Entry // by board and key
	watchers map[string]func(Entry)
	writes   []string // completed writes, as "board/key"
	watches  int
	lostAcks int    // number of acknowledgements to lose
	err      error  // fails all writes
	missing  bool   // Ensure finds a missing board
	perBoard string // the board whose writes fail; "": all
}

func newFakeStore() *fakeStore {
	return &fakeStore{rows: map[string]Entry{}, watchers: map[string]func(Entry){}}
}

func (s *fakeStore) Ensure(context.Context) (made bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	made, s.missing = s.missing, false
	return made, nil
}

func (s *fakeStore) Watch(ctx context.Context, board string, fn func(Entry)) error {
	s.mu.Lock()
	s.watches++
	for at, e := range s.rows {
		if strings.HasPrefix(at, board+"/") {
			fn(e)
		}
	}
	fn(Entry{})
	s.watchers[board] = fn
	s.mu.Unlock()
	<-ctx.Done()
	return nil
}

// write stores an entry unconditionally.
func (s *fakeStore) write(board string, e Entry) uint64 {
	s.rev++
	e.Revision = s.rev
	s.rows[board+"/"+e.Key] = e
	s.writes = append(s.writes, board+"/"+e.Key)
	if fn := s.watchers[board]; fn != nil {
		fn(e)
	}
	return s.rev
}

func (s *fakeStore) writeOutside(board, key, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.write(board, Entry{Key: key, Value: []byte(value)})
}

func (s *fakeStore) Put(board, key string, value []byte, last uint64, done func(uint64, error)) {
	s.complete(board, Entry{Key: key, Value: value}, last, done)
}

func (s *fakeStore) Remove(board, key string, last uint64, done func(uint64, error)) {
	s.complete(board, Entry{Key: key, Deleted: true}, last, done)
}

func (s *fakeStore) complete(board string, e Entry, last uint64, done func(uint64, error)) {
	time.AfterFunc(time.Millisecond, func() {
		s.mu.Lock()
		var rev uint64
		err := s.err
		if s.perBoard != "" && s.perBoard != board {
			err = nil
		}
		if err == nil {
			if last > 0 && s.rows[board+"/"+e.Key].Revision != last {
				err = ErrConflict
			} else {
				rev = s.write(board, e)
			}
		}
		if err == nil && s.lostAcks > 0 {
			s.lostAcks--
			err = errors.New("no answer")
		}
		s.mu.Unlock()
		done(rev, err)
	})
}

// fakeSource provides rows with two numbers.
type fakeSource struct {
	mu       sync.Mutex
	stable   map[string]map[string]uint64
	volatile map[string]map[string]uint64
}

func (f *fakeSource) set(board, key string, stable, volatile uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stable == nil {
		f.stable, f.volatile = map[string]map[string]uint64{}, map[string]map[string]uint64{}
	}
	if f.stable[board] == nil {
		f.stable[board], f.volatile[board] = map[string]uint64{}, map[string]uint64{}
	}
	f.stable[board][key], f.volatile[board][key] = stable, volatile
}

func (f *fakeSource) remove(board, key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.stable[board], key)
}

func (f *fakeSource) Rows(_ context.Context, board string) (rows []Row, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, stable := range f.stable[board] {
		rows = append(rows, Row{key, stable, f.volatile[board][key]})
	}
	return rows, true
}

func (f *fakeSource) Values(board string, keys []string) ([]any, Version) {
	f.mu.Lock()
	defer f.mu.Unlock()
	facts := make([]any, len(keys))
	for i, key := range keys {
		if stable, ok := f.stable[board][key]; ok {
			facts[i] = map[string]uint64{"stable": stable, "volatile": f.volatile[board][key]}
		}
	}
	return facts, Version{Epoch: 7, Index: 9, At: time.Unix(0, 0)}
}

// harness is a running updater with its fakes, in simulated time.
type harness struct {
	t      *testing.T
	store  *fakeStore
	source *fakeSource
	logs   *logBuffer
	stop   func()
}

// logBuffer is a log that may be read while it is written.
type logBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (w *logBuffer) Write(text []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(text)
}

func (w *logBuffer) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

func runHarness(t *testing.T, boards []Board, test func(h *harness)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := &harness{t: t, store: newFakeStore(), source: &fakeSource{}, logs: &logBuffer{}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		h.stop = func() { cancel(); <-ended }
		test(&harness{t, h.store, h.source, h.logs, func() {}}) // the rows before the start
		go func() {
			defer close(ended)
			New(boards, h.source, h.store, slog.New(slog.NewTextHandler(h.logs, nil))).Run(ctx)
		}()
		h.advance(0)
		test(h)
		h.stop()
	})
}

// advance waits for seconds of simulated time.
func (h *harness) advance(seconds int) {
	time.Sleep(time.Duration(seconds)*time.Second + 300*time.Millisecond) // simulated time
	synctest.Wait()
}

// takeWrites returns the writes since its last call.
func (h *harness) takeWrites() []string {
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	w := h.store.writes
	h.store.writes = nil
	return w
}

func (h *harness) wantRow(at, want string) {
	h.t.Helper()
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	e, ok := h.store.rows[at]
	if got := string(withoutVersion(e.Value)); !ok || e.Deleted || got != want {
		h.t.Errorf("%s is %q (deleted %t), want %q", at, e.Value, e.Deleted, want)
	}
}

func (h *harness) wantLogged(word string, times int) {
	h.t.Helper()
	if n := strings.Count(h.logs.String(), word); n != times {
		h.t.Errorf("the log contains %q %d times, want %d:\n%s", word, n, times, h.logs)
	}
}

// running reports whether the updater runs; before that, tests set up existing
// rows.
func (h *harness) running() bool {
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	return h.store.watches > 0
}

// unwatchableStore is a store whose watches fail.
type unwatchableStore struct{ *fakeStore }

func (s *unwatchableStore) Watch(context.Context, string, func(Entry)) error {
	return errors.New("watch fails")
}
