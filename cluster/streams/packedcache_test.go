package streams

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// TestPackedCache checks that a message with several records is read once, also for callers that
// need it at the same time; that a message with one record, and an error, are not kept; and that
// the cache forgets the oldest messages.
func TestPackedCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newPackedCache()
		reads := 0
		load := func(seq uint64, count int, err error) error {
			records, got := c.load(t.Context(), job.Position{Seq: seq}, func() ([]job.Record, error) {
				reads++
				time.Sleep(time.Millisecond)
				return make([]job.Record, count), err
			})
			if got == nil && len(records) != count {
				t.Errorf("%d records of message %d, want %d", len(records), seq, count)
			}
			return got
		}
		wantReads := func(name string, want int) {
			t.Helper()
			if reads != want {
				t.Errorf("%s: %d reads, want %d", name, reads, want)
			}
			reads = 0
		}
		for range 10 {
			go load(1, 2, nil)
		}
		time.Sleep(time.Second)
		_ = load(1, 2, nil)
		wantReads("ten callers, and one later", 1)

		_, _ = load(2, 1, nil), load(2, 1, nil)
		wantReads("one record", 2)

		failed := errors.New("no answer")
		go func() {
			if err := load(3, 0, failed); !errors.Is(err, failed) {
				t.Errorf("failing read: %v", err)
			}
		}()
		synctest.Wait()
		if err := load(3, 2, nil); err != nil { // while the other fails
			t.Errorf("beside a failing read: %v", err)
		}
		wantReads("a failing read and another", 2)

		blocked, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		go func() {
			_, _ = c.load(t.Context(), job.Position{Seq: 4}, func() ([]job.Record, error) { time.Sleep(time.Hour); return nil, failed })
		}()
		synctest.Wait()
		if _, err := c.load(blocked, job.Position{Seq: 4}, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("waiting for a read that hangs: %v", err)
		}

		if !c.forget(job.Position{Seq: 1, Index: 1}) || c.forget(job.Position{Seq: 1}) {
			t.Error("forgetting a message twice")
		}
		_ = load(1, 2, nil)
		wantReads("a message that was forgotten", 1)
		for seq := range uint64(maxCachedMessages) {
			_ = load(100+seq, 2, nil)
		}
		reads = 0
		_ = load(1, 2, nil)
		wantReads("the oldest message", 1)
		c.mu.Lock()
		if len(c.messages) > maxCachedMessages+1 { // one is being read
			t.Errorf("%d messages are kept", len(c.messages))
		}
		c.mu.Unlock()
		time.Sleep(2 * time.Hour)
	})
}
