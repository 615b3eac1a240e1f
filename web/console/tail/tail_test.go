package tail

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/ledger/history"
	"github.com/yardmaster-dev/yardmaster/test/testlog"
)

// yard is a history in memory, with an event in each message, from position 1 on.
type yard struct {
	mu      sync.Mutex
	queues  []string // of the events
	changed chan struct{}
	err     error
	blocked bool // reads last until their context ends
	reads   int
}

func newYard() *yard { return &yard{changed: make(chan struct{})} }

// record records events of a queue.
func (y *yard) record(queue string, n int) {
	y.mu.Lock()
	defer y.mu.Unlock()
	for range n {
		y.queues = append(y.queues, queue)
	}
	close(y.changed)
	y.changed = make(chan struct{})
}

func (y *yard) applied() (uint64, <-chan struct{}) {
	y.mu.Lock()
	defer y.mu.Unlock()
	return uint64(len(y.queues)), y.changed
}

func (y *yard) source() Source {
	const page = 16
	from := func(ctx context.Context, from uint64) ([]byte, uint64, error) {
		y.mu.Lock()
		defer y.mu.Unlock()
		y.reads++
		if y.blocked {
			y.mu.Unlock()
			<-ctx.Done()
			y.mu.Lock()
			return nil, from, ctx.Err()
		}
		var lines bytes.Buffer
		next := from
		for ; next <= uint64(len(y.queues)) && next < from+page; next++ {
			fmt.Fprintf(&lines, `{"event":"operator.acted","action":"queue.pause","queue":%q,"seq":%d}`+"\n", y.queues[next-1], next)
		}
		return lines.Bytes(), next, y.err
	}
	return Source{
		Since: func(ctx context.Context, _ time.Time) ([]byte, uint64, error) { return from(ctx, 1) },
		From:  from,
		End: func(context.Context) (uint64, error) {
			y.mu.Lock()
			defer y.mu.Unlock()
			return uint64(len(y.queues)) + 1, nil
		},
	}
}

// bubble runs a test with a tail of a yard.
func bubble(t *testing.T, test func(t *testing.T, y *yard, numbers func(f *history.Filter, n int) string)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		y := newYard()
		tail := New(ctx, y.source(), testlog.New(t), y.applied)
		test(t, y, func(f *history.Filter, n int) string {
			events, skipped, err := tail.Recent(ctx, f, n)
			var texts []string
			for _, e := range events {
				texts = append(texts, fmt.Sprint(e.Number))
			}
			if skipped {
				texts = append(texts, "skipped")
			}
			if err != nil {
				texts = append(texts, err.Error())
			}
			return strings.Join(texts, " ")
		})
		cancel()
		synctest.Wait()
	})
}

// The latest events come first, those that a filter selects, and new ones follow.
func TestTail_Recent(t *testing.T) {
	bubble(t, func(t *testing.T, y *yard, numbers func(*history.Filter, int) string) {
		y.record("mail", 3)
		y.record("pdf", 2)
		if got := numbers(&history.Filter{}, 4); got != "5 4 3 2" {
			t.Errorf("events are %s", got)
		}
		if got := numbers(&history.Filter{Queue: "mail"}, 10); got != "3 2 1" {
			t.Errorf("events of mail are %s", got)
		}
		y.record("mail", 40) // more than are read at once
		time.Sleep(pauseBetween)
		synctest.Wait()
		if got := numbers(&history.Filter{}, 2); got != "45 44" {
			t.Errorf("after new events they are %s", got)
		}
	})
}

// A tail that is too far behind continues near the end, without a gap between events.
func TestTail_Behind(t *testing.T) {
	bubble(t, func(t *testing.T, y *yard, numbers func(*history.Filter, int) string) {
		y.record("mail", 3)
		numbers(&history.Filter{}, 1)
		y.record("mail", 1000)
		time.Sleep(pauseBetween)
		synctest.Wait()
		all := strings.Fields(numbers(&history.Filter{}, maxEvents))
		if len(all) != maxBehind+1 || all[0] != "1003" || all[maxBehind-1] != "940" || all[maxBehind] != "skipped" {
			t.Errorf("%d events: %s", len(all), all)
		}
	})
}

// No more than maxEvents are kept.
func TestTail_Bound(t *testing.T) {
	bubble(t, func(t *testing.T, y *yard, numbers func(*history.Filter, int) string) {
		for range 2 + maxEvents/maxBehind {
			y.record("mail", maxBehind)
			numbers(&history.Filter{}, 1)
			time.Sleep(pauseBetween)
			synctest.Wait()
		}
		if all := strings.Fields(numbers(&history.Filter{}, 2*maxEvents)); len(all) != maxEvents+1 || all[maxEvents] != "skipped" {
			t.Errorf("%d events are kept", len(all)-1)
		}
	})
}

// A tail reads only while pages ask for events. A page that asks later gets what is recorded
// then, once it was read.
func TestTail_Idle(t *testing.T) {
	bubble(t, func(t *testing.T, y *yard, numbers func(*history.Filter, int) string) {
		y.record("mail", 1)
		numbers(&history.Filter{}, 1)
		time.Sleep(idle + 2*pauseIdle)
		synctest.Wait()
		reads := y.reads
		y.record("mail", 1)
		time.Sleep(time.Hour)
		if y.reads != reads {
			t.Errorf("%d reads without a page that shows events", y.reads-reads)
		}
		if got := numbers(&history.Filter{}, 9); got != "2 1" {
			t.Errorf("events are %s", got)
		}
	})
}

// What cannot be read is an error, beside the events that were; a history that does not answer
// does not keep a page waiting.
func TestTail_Unreadable(t *testing.T) {
	bubble(t, func(t *testing.T, y *yard, numbers func(*history.Filter, int) string) {
		y.record("mail", 1)
		numbers(&history.Filter{}, 1)
		y.mu.Lock()
		y.err = errors.New("no leader")
		y.mu.Unlock()
		y.record("mail", 1)
		time.Sleep(pauseIdle)
		synctest.Wait()
		if got := numbers(&history.Filter{}, 9); got != "1 no leader" {
			t.Errorf("events are %s", got)
		}
		y.mu.Lock()
		y.err = nil
		y.mu.Unlock()
		time.Sleep(2 * pauseIdle)
		synctest.Wait()
		if got := numbers(&history.Filter{}, 9); got != "2 1" {
			t.Errorf("after the history is readable again, events are %s", got)
		}
	})
	bubble(t, func(t *testing.T, y *yard, numbers func(*history.Filter, int) string) {
		y.blocked = true
		began := time.Now()
		if got := numbers(&history.Filter{}, 1); !strings.Contains(got, "not readable at present") || time.Since(began) != readyTimeout {
			t.Errorf("after %s: %s", time.Since(began), got)
		}
	})
}
