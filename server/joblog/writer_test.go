package joblog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/test/testlog"
)

// logStore is the store of a Writer in tests.
type logStore struct {
	names  map[string]bool
	lines  map[job.ID][]job.LogLine
	pieces int
	fail   atomic.Bool
}

func (s *logStore) store(_ context.Context, id job.ID, name string, lines []byte) error {
	if s.fail.Load() {
		return errors.New("no leader")
	}
	if s.names[name] {
		return errors.New("name is used twice: " + name)
	}
	s.names[name] = true
	s.pieces++
	for line := range bytes.SplitSeq(bytes.TrimSuffix(lines, []byte("\n")), []byte("\n")) {
		var l job.LogLine
		if err := json.Unmarshal(line, &l); err != nil {
			return err
		}
		s.lines[id] = append(s.lines[id], l)
	}
	return nil
}

// runWriter runs test with a Writer in a synctest bubble. The store may be read while all
// goroutines of the bubble are blocked.
func runWriter(t *testing.T, test func(*Writer, *logStore, *testlog.Recorder)) {
	synctest.Test(t, func(t *testing.T) {
		log, said := testlog.NewRecorder(t)
		s := &logStore{names: map[string]bool{}, lines: map[job.ID][]job.LogLine{}}
		turn := make(chan struct{}, 1) // serializes concurrent stores
		j := New("n1", 3, func(ctx context.Context, id job.ID, name string, lines []byte) error {
			turn <- struct{}{}
			defer func() { <-turn }()
			return s.store(ctx, id, name, lines)
		}, log)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- j.Run(ctx) }()
		test(j, s, said)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if j.bytes != 0 || len(j.byJob) != 0 || len(j.pages) != 0 {
			t.Errorf("%d bytes of %d jobs are left", j.bytes, len(j.byJob))
		}
	})
}

func line(n byte, text string) job.LogLine {
	return job.LogLine{Job: job.ID{n}, N: 1, Level: "info", Stream: job.LogStdout, Text: text}
}

// waiting returns how many bytes of lines are not stored.
func waiting(j *Writer) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.bytes
}

func TestWriter_BatchesLines(t *testing.T) {
	runWriter(t, func(j *Writer, s *logStore, _ *testlog.Recorder) {
		for range 10 {
			j.Log(line(1, "a"))
			j.Log(line(2, "b"))
		}
		time.Sleep(interval)
		synctest.Wait()
		if s.pieces != 2 || len(s.lines[job.ID{1}]) != 10 || len(s.lines[job.ID{2}]) != 10 {
			t.Errorf("%d messages, %v", s.pieces, s.lines)
		}
		if got := s.lines[job.ID{1}][0]; got.Node != "n1" || got.Text != "a" {
			t.Errorf("line is %+v", got)
		}
		j.Log(line(1, strings.Repeat("x", logMessageBytes)))
		j.Log(line(1, "behind a long one"))
	})
}

// A job with too many lines loses its latest ones, and its log contains their number; other
// jobs lose none.
func TestWriter_Bounds(t *testing.T) {
	runWriter(t, func(j *Writer, s *logStore, said *testlog.Recorder) {
		const many = 1000
		for range many {
			j.Log(line(1, strings.Repeat("x", 1000)))
		}
		j.Log(line(2, "neighbour"))
		if n := waiting(j); n > maxPendingJobBytes+1000 {
			t.Errorf("%d bytes wait", n)
		}
		time.Sleep(interval)
		synctest.Wait()
		loud := s.lines[job.ID{1}]
		last := loud[len(loud)-1]
		if len(s.lines[job.ID{2}]) != 1 || last.Dropped != many-(len(loud)-1) || last.Text != "" || last.N != 1 {
			t.Errorf("of %d lines %d are kept; the last is %+v", many, len(loud)-1, last)
		}
		if told := said.Messages(slog.LevelWarn); len(told) != 1 {
			t.Errorf("logged %q", told)
		}
		for n := range 40 { // more than the limit of all jobs together
			for range 250 {
				j.Log(line(byte(n+3), strings.Repeat("x", 1000)))
			}
		}
		if n := waiting(j); n > maxPendingLogBytes {
			t.Errorf("%d bytes wait", n)
		}
	})
}

// Lines are retried in order while the stream has no leader. After logStoreTimeout they are
// dropped, and later lines are stored again.
func TestWriter_NoStreamLeader(t *testing.T) {
	runWriter(t, func(j *Writer, s *logStore, said *testlog.Recorder) {
		s.fail.Store(true)
		j.Log(line(1, "one"))
		time.Sleep(time.Second)
		synctest.Wait()
		j.Log(line(1, "two"))
		time.Sleep(4 * time.Second)
		synctest.Wait()
		s.fail.Store(false)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if got := s.lines[job.ID{1}]; len(got) != 2 || got[0].Text != "one" || got[1].Text != "two" {
			t.Errorf("stored: %+v", got)
		}
		s.fail.Store(true)
		j.Log(line(1, "lost"))
		time.Sleep(logStoreTimeout + 5*time.Second)
		synctest.Wait()
		s.fail.Store(false)
		j.Log(line(1, "four"))
		time.Sleep(time.Second)
		synctest.Wait()
		if got := s.lines[job.ID{1}]; len(got) != 3 || got[2].Text != "four" {
			t.Errorf("stored: %+v", got)
		}
		if told := said.Messages(slog.LevelWarn); len(told) != 1 {
			t.Errorf("logged %q", told)
		}
	})
}

// Each dropped line is counted once, however many messages it would have been stored in.
func TestWriter_CountsDroppedLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, _ := testlog.NewRecorder(t)
		j := New("n1", 3, func(context.Context, job.ID, string, []byte) error { return errors.New("no leader") }, log)
		for range 4 {
			j.Log(line(1, strings.Repeat("x", logMessageBytes/2)))
		}
		j.reportedAt = time.Now().Add(time.Hour) // prevents a report, which resets the count
		j.flush(t.Context())
		if j.dropped != 4 {
			t.Errorf("%d lines are counted as dropped", j.dropped)
		}
	})
}

// Lines logged just before the stop are stored.
func TestWriter_FlushesOnStop(t *testing.T) {
	var kept *logStore
	runWriter(t, func(j *Writer, s *logStore, _ *testlog.Recorder) {
		kept = s
		for n := range 2 * maxLogMessages {
			j.Log(job.LogLine{Job: job.ID{byte(n >> 8), byte(n)}, Text: "last"})
		}
	})
	if len(kept.lines) != 2*maxLogMessages {
		t.Errorf("%d of %d are stored", len(kept.lines), 2*maxLogMessages)
	}
}
