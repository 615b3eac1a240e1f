package board

import (
	"bytes"
	"cmp"
	"log/slog"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/internal/wakeup"
)

// boardState is the updater's view of one board.
type boardState struct {
	board Board
	log   *slog.Logger
	wake  chan<- struct{} // makes the updater begin a pass soon

	mu     crash.Mutex
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
	unconfirmed      []byte    // value of a write that is in flight, or whose result is unknown; nil: none
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
		wakeup.Send(bs.wake)
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
	ownWrite := s.unconfirmed != nil && bytes.Equal(s.unconfirmed, e.Value)
	if !bs.synced || ownWrite {
		s.found = e.Value
	} else {
		s.conflicting = true
		bs.log.Warn("board row written by another client, overwriting it", "bucket", bs.board.Name, "key", e.Key, "revision", e.Revision)
		wakeup.Send(bs.wake)
	}
	s.unconfirmed = nil
}

// pendingWrite is a row to be written or removed.
type pendingWrite struct {
	Row
	remove  bool
	compare bool // the stored value may be correct already; see confirm
	urgency int  // 0 is the most urgent
	wroteAt time.Time
}

// pendingWrites returns the writes that make the stored board equal to rows, the most
// urgent first: a write of each row that differs, and the removal of each stored row that
// rows does not have. A row that was written less than minRowInterval ago, or is being
// written, is left to a later call. Before the initial rows were received there are no
// writes, unless the board's SkipWatch is set, and in any case no removals.
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
		case s != nil && s.busy(now):
			continue
		case s == nil || s.deleted || s.conflicting: // not stored, or not as this updater wrote it
			w.urgency = 0
		case s.found != nil:
			w.compare, w.urgency = !bs.board.SkipWatch, 1
		case s.stable != r.Stable:
			w.urgency = 0
		case s.volatile != r.Volatile && now.Sub(s.wroteAt) >= bs.board.Interval:
			w.urgency = 2
		default:
			continue
		}
		writes = append(writes, w)
	}
	for key, s := range bs.rows {
		switch {
		case !bs.synced || present[key] || s.busy(now):
			continue
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

// busy reports whether the row is being written or was written too recently.
func (s *rowState) busy(now time.Time) bool {
	return s.inFlight || now.Sub(s.wroteAt) < minRowInterval
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

// beginWrite records that value is being written to a row, until endWrite. It returns the
// revision that the stored row must have for the write to succeed. If the row is not
// stored, that is 0, which makes the write unconditional: the last revision would be that
// of a deletion marker, which the watch may have missed.
func (bs *boardState) beginWrite(w *pendingWrite, value []byte) (expected uint64) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	s := bs.rows[w.Key]
	if s == nil {
		s = &rowState{}
		bs.rows[w.Key] = s
	}
	s.inFlight, s.unconfirmed = true, value
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
		s.rev, s.deleted, s.conflicting, s.unconfirmed, s.found = rev, w.remove, false, nil, nil
		s.stable, s.volatile = w.Stable, w.Volatile
	}
	if echo.Revision > s.rev {
		bs.apply(s, echo)
	}
}
