package top

import (
	"cmp"
	"slices"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
)

// state is what a person sees and has chosen.
type state struct {
	width, height int  // of the terminal; 0: unlimited
	plain         bool // no colours and no keys

	window   string
	queue    string // that is shown; "" means all
	selected string // queue under the cursor; "": the first one
	top      int    // first row of the table that is shown
	sort     int    // index of a column
	reversed bool
	help     bool

	overview    *api.Overview // the last one; nil: there is none yet
	explanation *api.QueueExplanation
	err         error // why the last request failed
}

// windows lists the windows that a key selects.
var windows = []string{"15m", "1h", "24h"}

func newState(window string) *state { return &state{window: window, sort: sortDefault} }

func (s *state) request() request { return request{s.window, s.queue} }

// receive takes an answer. One to an earlier request is not shown.
func (s *state) receive(a answer) {
	if a.request != s.request() {
		return
	}
	if s.err = a.err; a.err == nil {
		s.overview, s.explanation = a.overview, a.explanation
	}
}

// press handles a key and reports whether it ends the program.
func (s *state) press(key string) (quit bool) {
	if s.help && key != "q" && key != "ctrl+c" {
		s.help = false
		return false
	}
	switch key {
	case "q", "ctrl+c":
		return true
	case "?", "h":
		s.help = true
	case "w":
		s.window = windows[(slices.Index(windows, s.window)+1)%len(windows)]
	case "esc", "backspace", "left":
		if s.queue != "" {
			s.show("")
		}
	case "enter", "right":
		if row := s.selectedRow(); s.queue == "" && row >= 0 {
			s.show(s.rows()[row].Name)
		}
	case "s", ">", "S", "<":
		step := 1
		if key == "S" || key == "<" {
			step = len(columns) - 1
		}
		s.sort, s.reversed = (s.sort+step)%len(columns), false
	case "r":
		s.reversed = !s.reversed
	default:
		s.move(key)
	}
	return false
}

// show shows a queue, "" for all of them. Until the answer, the present numbers stay.
func (s *state) show(queue string) {
	s.queue, s.explanation = queue, nil
	if queue != "" {
		s.selected = queue
	}
}

// move moves the cursor.
func (s *state) move(key string) {
	page := max(1, s.height/2)
	steps := map[string]int{
		"down": 1, "j": 1, "up": -1, "k": -1, "pgdown": page, "ctrl+d": page, "pgup": -page, "ctrl+u": -page,
		"home": -1 << 20, "g": -1 << 20, "end": 1 << 20, "G": 1 << 20,
	}
	rows := s.rows()
	if step, ok := steps[key]; ok && len(rows) > 0 {
		s.selected = rows[max(0, min(len(rows)-1, s.selectedRow()+step))].Name
	}
}

// rows returns the queues in the order of the table.
func (s *state) rows() []*api.OverviewQueue {
	if s.overview == nil {
		return nil
	}
	var rows []*api.OverviewQueue
	for i := range s.overview.Queues {
		if q := &s.overview.Queues[i]; q.Name != job.SystemQueue || q.Totals.Accepted > 0 {
			rows = append(rows, q)
		}
	}
	c := &columns[s.sort]
	slices.SortStableFunc(rows, func(a, b *api.OverviewQueue) int {
		order := cmp.Compare(c.value(b), c.value(a))
		if order == 0 {
			order = cmp.Compare(a.Name, b.Name)
		}
		if s.reversed {
			order = -order
		}
		return order
	})
	return rows
}

// selectedRow returns the row of the cursor, -1 without rows.
func (s *state) selectedRow() int {
	rows := s.rows()
	if len(rows) == 0 {
		return -1
	}
	return max(0, slices.IndexFunc(rows, func(q *api.OverviewQueue) bool { return q.Name == s.selected }))
}
