package board

import (
	"bytes"
	"cmp"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// boardState is the updater's view of one board.
type boardState struct {
	board Board
	log   *slog.Logger
	wake  chan<- struct{}

	mu     sync.Mutex
	synced bool // all initial rows were received
	rows   map[string]*rowState
}

// rowState is the updater's view of one row.
type rowState struct {
	rev              uint64    // the latest known
	deleted          bool      // removed by the write with rev
	stable, volatile uint64    // hashes of what this updater wrote; see Row
	found            []byte    // value written by another tenure, not compared yet; nil: none
	conflicting      bool      // written by another client
	wroteAt          time.Time // last write by this updater
	sent             []byte    // value of a write that is in flight, or whose result is unknown
	inFlight         bool
	echo             Entry // entry received while a write was in flight
}

func newBoardState(b Board, log *slog.Logger, wake chan<- struct{}) *boardState {
	return &boardState{board: b, log: log, wake: wake, rows: map[string]*rowState{}}
}

// receive handles an entry of the watch. It ignores writes that are known already, and
// keeps one that arrives while the updater writes the row, until endWrite.
func (bs *boardState) receive(e Entry) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	if e.Key == "" {
		bs.synced = true
		bs.notify()
		return
	}
	s := bs.rows[e.Key]
	if s == nil {
		s = &rowState{}
		bs.rows[e.Key] = s
	}
	if e.Revision <= s.rev {
		return
	}
	if s.inFlight { // it may be the write in flight
		if e.Revision > s.echo.Revision {
			s.echo = e
		}
		return
	}
	bs.apply(s, e)
}

// apply updates a row from an entry of the watch. The value is to be compared, as found,
// if the entry is an initial row, or a write of this updater whose result was lost. Any
// other entry is a write of another client, which is to be overwritten. The caller holds
// bs.mu.
func (bs *boardState) apply(s *rowState, e Entry) {
	s.rev, s.deleted = e.Revision, e.Deleted
	s.stable, s.volatile, s.found = 0, 0, nil
	if !bs.synced || s.sent != nil && bytes.Equal(s.sent, e.Value) {
		s.found = e.Value
	} else {
		s.conflicting = true
		bs.log.Warn("board row written by another client, overwriting it", "bucket", bs.board.Name, "key", e.Key, "revision", e.Revision)
		bs.notify()
	}
	s.sent = nil
}

// notify makes the updater begin a pass soon. It does not block.
func (bs *boardState) notify() {
	select {
	case bs.wake <- struct{}{}:
	default:
	}
}

// pendingWrite is a row to be written or removed.
type pendingWrite struct {
	Row
	remove  bool
	compare bool // the stored value may be correct already; see confirm
	urgency int  // 0 is the most urgent
	wroteAt time.Time
}

// pendingWrites returns the rows that must be written, because they differ from rows,
// and those that must be removed, because rows does not have them. The most urgent come
// first. There are none before the initial rows were received, unless the board's
// SkipWatch is set.
func (bs *boardState) pendingWrites(rows []Row, now time.Time) []pendingWrite {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	if !bs.synced && !bs.board.SkipWatch {
		return nil
	}
	var writes []pendingWrite
	present := make(map[string]bool, len(rows))
	for _, r := range rows {
		present[r.Key] = true
		s := bs.rows[r.Key]
		w := pendingWrite{Row: r}
		if s != nil {
			w.wroteAt = s.wroteAt
		}
		switch {
		case s == nil: // not stored
		case s.inFlight || now.Sub(s.wroteAt) < minRowInterval:
			continue
		case s.deleted, s.conflicting:
		case s.found != nil:
			w.compare, w.urgency = !bs.board.SkipWatch, 1
		case s.stable != r.Stable:
		case s.volatile != r.Volatile && now.Sub(s.wroteAt) >= bs.board.Interval:
			w.urgency = 2
		default:
			continue
		}
		writes = append(writes, w)
	}
	for key, s := range bs.rows {
		switch {
		case !bs.synced || present[key] || s.inFlight || now.Sub(s.wroteAt) < minRowInterval:
		case !s.deleted:
			writes = append(writes, pendingWrite{Row: Row{Key: key}, remove: true})
		case now.Sub(s.wroteAt) > forgetAfter:
			delete(bs.rows, key)
		}
	}
	slices.SortFunc(writes, func(a, b pendingWrite) int {
		return cmp.Or(cmp.Compare(a.urgency, b.urgency), a.wroteAt.Compare(b.wroteAt), cmp.Compare(a.Key, b.Key))
	})
	return writes
}

// confirm reports whether the row that another tenure wrote has the given value, apart
// from its version, and then records that it needs no write.
func (bs *boardState) confirm(w *pendingWrite, value []byte) bool {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	s := bs.rows[w.Key]
	if s == nil || s.found == nil || !bytes.Equal(withoutVersion(s.found), value) {
		return false
	}
	s.stable, s.volatile, s.found = w.Stable, w.Volatile, nil
	return true
}

// beginWrite records that value is being written to a row, and returns the revision on
// which the write is conditional: 0, for none, if the row does not exist, because its
// deletion marker may have been missed.
func (bs *boardState) beginWrite(w *pendingWrite, value []byte) (last uint64) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	s := bs.rows[w.Key]
	if s == nil {
		s = &rowState{}
		bs.rows[w.Key] = s
	}
	s.inFlight, s.sent = true, value
	if s.deleted {
		return 0
	}
	return s.rev
}

// endWrite records the result of a write: the row's new revision, or an error. Then it
// applies what the watch has received meanwhile, unless it was this write.
func (bs *boardState) endWrite(w *pendingWrite, rev uint64, err error, now time.Time) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	s := bs.rows[w.Key]
	echo := s.echo
	s.inFlight, s.echo, s.wroteAt = false, Entry{}, now
	if err == nil {
		s.rev, s.deleted, s.conflicting, s.sent, s.found = rev, w.remove, false, nil, nil
		s.stable, s.volatile = w.Stable, w.Volatile
	}
	if echo.Revision > s.rev {
		bs.apply(s, echo)
	}
}
