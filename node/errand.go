package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
)

// errandAnswer is how long a question about an errand waits for what it asks:
// who asks hears within this time, and so knows that the node lives.
const errandAnswer = 2 * time.Second

// errand is what a client has a node do over many questions: the making of a
// backup, or a restore. It ends when nobody asks any more.
type errand struct {
	id   string
	idle time.Duration // without a question; then whoever asked has gone
	ctx  context.Context
	stop context.CancelFunc

	mu    sync.Mutex
	asked time.Time
	step  *step  // the last that was begun
	what  string // it does
}

// step is a part of an errand that may take longer than an answer.
type step struct {
	ended chan struct{}
	err   error // once it has ended
}

func newErrand(ctx context.Context, idle time.Duration) *errand {
	work, stop := context.WithCancel(ctx)
	return &errand{id: uuid.NewString(), idle: idle, ctx: work, stop: stop, asked: time.Now()}
}

// touch notes that somebody asks.
func (e *errand) touch() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked = time.Now()
}

// over tells that nobody asks any more.
func (e *errand) over(now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return now.Sub(e.asked) > e.idle
}

// say notes what the errand is about just now, for who asks meanwhile.
func (e *errand) say(format string, v ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.what = fmt.Sprintf(format, v...)
}

// said is what it is about.
func (e *errand) said() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.what
}

// last is the step that was begun last, nil if there was none.
func (e *errand) last() *step {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.step
}

// begin begins a step, if none is under way; start runs it beside.
func (e *errand) begin(start func(func() error), do func(context.Context) error) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.step != nil && !e.step.over() {
		return false
	}
	s := &step{ended: make(chan struct{})}
	e.step = s
	start(func() error {
		defer close(s.ended)
		s.err = do(e.ctx)
		return nil
	})
	return true
}

func (s *step) over() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// wait waits for a step's end, as long as an answer may take. more tells that it
// is still under way.
func (s *step) wait(ctx context.Context) (more bool, err error) {
	late := time.NewTimer(errandAnswer)
	defer late.Stop()
	select {
	case <-s.ended:
		return false, s.err
	case <-late.C:
	case <-ctx.Done():
	}
	return true, nil
}
