package board

import (
	"bytes"
	"cmp"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// panel is what the keeper knows of one board.
type panel struct {
	board Board
	log   *slog.Logger
	wake  chan<- struct{}

	mu    sync.Mutex
	known bool // all that stood there at the beginning is heard
	rows  map[string]*shown
}

// shown is a row as it stands on its board, as far as the keeper knows.
type shown struct {
	rev          uint64
	gone         bool
	solid, fluid uint64
	found        []byte    // what another tenure left, not yet compared; nil: none
	strange      bool      // another hand wrote it
	wroteAt      time.Time // by this keeper
	sent         []byte    // a value on its way, or of which nobody knows whether it arrived
	flying       bool
	echo         Entry // heard while flying
}

func newPanel(b Board, log *slog.Logger, wake chan<- struct{}) *panel {
	return &panel{board: b, log: log, wake: wake, rows: map[string]*shown{}}
}

// hear takes what stands in the store.
func (p *panel) hear(e Entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.Key == "" {
		p.known = true
		p.stir()
		return
	}
	s := p.rows[e.Key]
	if s == nil {
		s = &shown{}
		p.rows[e.Key] = s
	}
	if e.Rev <= s.rev {
		return
	}
	if s.flying { // perhaps it is that very write
		if e.Rev > s.echo.Rev {
			s.echo = e
		}
		return
	}
	p.take(s, e)
}

// take believes an entry that did not come by an acknowledgement.
func (p *panel) take(s *shown, e Entry) {
	s.rev, s.gone = e.Rev, e.Gone
	s.solid, s.fluid, s.found = 0, 0, nil
	switch {
	case !p.known || s.sent != nil && bytes.Equal(s.sent, e.Value):
		s.found = e.Value
	default:
		s.strange = true
		p.log.Warn("a board was written by another hand, and is put right", "bucket", p.board.Name, "key", e.Key, "revision", e.Rev)
		p.stir()
	}
	s.sent = nil
}

func (p *panel) stir() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// wish is a row to be written or removed.
type wish struct {
	Row
	remove  bool
	compare bool // it may be true as it stands
	urgency int  // 0 first
	wroteAt time.Time
}

// wishes lists the rows that are not shown as they are, the most urgent first.
func (p *panel) wishes(rows []Row, now time.Time) []wish {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.known && !p.board.Blind {
		return nil
	}
	var wanted []wish
	present := make(map[string]bool, len(rows))
	for _, r := range rows {
		present[r.Key] = true
		s := p.rows[r.Key]
		w := wish{Row: r}
		if s != nil {
			w.wroteAt = s.wroteAt
		}
		switch {
		case s == nil:
		case s.flying || now.Sub(s.wroteAt) < rowEvery:
			continue
		case s.gone, s.strange:
		case s.found != nil:
			w.compare, w.urgency = !p.board.Blind, 1
		case s.solid != r.Solid:
		case s.fluid != r.Fluid && now.Sub(s.wroteAt) >= p.board.Pace:
			w.urgency = 2
		default:
			continue
		}
		wanted = append(wanted, w)
	}
	for key, s := range p.rows {
		switch {
		case !p.known || present[key] || s.flying || now.Sub(s.wroteAt) < rowEvery:
		case !s.gone:
			wanted = append(wanted, wish{Row: Row{Key: key}, remove: true})
		case now.Sub(s.wroteAt) > forgetAfter:
			delete(p.rows, key)
		}
	}
	slices.SortFunc(wanted, func(a, b wish) int {
		return cmp.Or(cmp.Compare(a.urgency, b.urgency), a.wroteAt.Compare(b.wroteAt), cmp.Compare(a.Key, b.Key))
	})
	return wanted
}

// holds tells that a row that was found shows these facts, and believes it.
func (p *panel) holds(w *wish, facts []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.rows[w.Key]
	if s == nil || s.found == nil || !bytes.Equal(factsOf(s.found), facts) {
		return false
	}
	s.solid, s.fluid, s.found = w.Solid, w.Fluid, nil
	return true
}

// begin notes that a row is being written, and gives the revision that it must
// still have; 0 for a row that is not there, whose marker may have gone unseen.
func (p *panel) begin(w *wish, value []byte) (last uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.rows[w.Key]
	if s == nil {
		s = &shown{}
		p.rows[w.Key] = s
	}
	s.flying, s.sent = true, value
	if s.gone {
		return 0
	}
	return s.rev
}

// end notes what became of a write.
func (p *panel) end(w *wish, rev uint64, err error, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.rows[w.Key]
	echo := s.echo
	s.flying, s.echo, s.wroteAt = false, Entry{}, now
	if err == nil {
		s.rev, s.gone, s.strange, s.sent, s.found = rev, w.remove, false, nil, nil
		s.solid, s.fluid = w.Solid, w.Fluid
	}
	if echo.Rev > s.rev {
		p.take(s, echo)
	}
}
