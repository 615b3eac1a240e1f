package node

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

	"yardmaster/internal/testlog"
	"yardmaster/job"
)

// shelf is where a journal stores, in a test.
type shelf struct {
	names  map[string]bool
	lines  map[job.ID][]job.LogLine
	pieces int
	fail   atomic.Bool
}

func (s *shelf) store(_ context.Context, id job.ID, name string, lines []byte) error {
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

// journalTest runs a journal in a bubble; its shelf may be looked at while the
// bubble sleeps.
func journalTest(t *testing.T, test func(*journal, *shelf, *testlog.Recorder)) {
	synctest.Test(t, func(t *testing.T) {
		log, said := testlog.NewRecorder(t)
		s := &shelf{names: map[string]bool{}, lines: map[job.ID][]job.LogLine{}}
		turn := make(chan struct{}, 1) // the shelf is written by many at once
		j := newJournal("n1", 3, func(ctx context.Context, id job.ID, name string, lines []byte) error {
			turn <- struct{}{}
			defer func() { <-turn }()
			return s.store(ctx, id, name, lines)
		}, log)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- j.run(ctx) }()
		test(j, s, said)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if j.bytes != 0 || len(j.of) != 0 || len(j.pages) != 0 {
			t.Errorf("%d bytes of %d jobs are left", j.bytes, len(j.of))
		}
	})
}

func line(n byte, text string) job.LogLine {
	return job.LogLine{Job: job.ID{n}, N: 1, Level: "info", Stream: job.LogStdout, Text: text}
}

// waiting is how many bytes of lines are not stored.
func waiting(j *journal) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.bytes
}

func TestJournal_Gathers(t *testing.T) {
	journalTest(t, func(j *journal, s *shelf, _ *testlog.Recorder) {
		for range 10 {
			j.Log(line(1, "a"))
			j.Log(line(2, "b"))
		}
		time.Sleep(journalEvery)
		synctest.Wait()
		if s.pieces != 2 || len(s.lines[job.ID{1}]) != 10 || len(s.lines[job.ID{2}]) != 10 {
			t.Errorf("%d messages, %v", s.pieces, s.lines)
		}
		if got := s.lines[job.ID{1}][0]; got.Node != "n1" || got.Text != "a" {
			t.Errorf("line is %+v", got)
		}
		j.Log(line(1, strings.Repeat("x", journalMessage)))
		j.Log(line(1, "behind a long one"))
	})
}

// A job that says too much loses its latest lines, and its log says how many; a
// neighbour loses none.
func TestJournal_Bounds(t *testing.T) {
	journalTest(t, func(j *journal, s *shelf, said *testlog.Recorder) {
		const many = 1000
		for range many {
			j.Log(line(1, strings.Repeat("x", 1000)))
		}
		j.Log(line(2, "neighbour"))
		if n := waiting(j); n > journalOfJob+1000 {
			t.Errorf("%d bytes wait", n)
		}
		time.Sleep(journalEvery)
		synctest.Wait()
		loud := s.lines[job.ID{1}]
		last := loud[len(loud)-1]
		if len(s.lines[job.ID{2}]) != 1 || last.Dropped != many-(len(loud)-1) || last.Text != "" || last.N != 1 {
			t.Errorf("of %d lines %d are kept; the last is %+v", many, len(loud)-1, last)
		}
		if told := said.Messages(slog.LevelWarn); len(told) != 1 {
			t.Errorf("told %q", told)
		}
		for n := range 40 { // more than all jobs together may have waiting
			for range 250 {
				j.Log(line(byte(n+3), strings.Repeat("x", 1000)))
			}
		}
		if n := waiting(j); n > journalBytes {
			t.Errorf("%d bytes wait", n)
		}
	})
}

// Lines wait while the stream has no leader, in their order; after that they
// are given up, and the journal goes on.
func TestJournal_NoLeader(t *testing.T) {
	journalTest(t, func(j *journal, s *shelf, said *testlog.Recorder) {
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
			t.Errorf("stored are %+v", got)
		}
		s.fail.Store(true)
		j.Log(line(1, "lost"))
		time.Sleep(journalPatience + 5*time.Second)
		synctest.Wait()
		s.fail.Store(false)
		j.Log(line(1, "four"))
		time.Sleep(time.Second)
		synctest.Wait()
		if got := s.lines[job.ID{1}]; len(got) != 3 || got[2].Text != "four" {
			t.Errorf("stored are %+v", got)
		}
		if told := said.Messages(slog.LevelWarn); len(told) != 1 {
			t.Errorf("told %q", told)
		}
	})
}

// What is lost is counted once, in however many messages it would have been
// stored.
func TestJournal_CountsWhatIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, _ := testlog.NewRecorder(t)
		j := newJournal("n1", 3, func(context.Context, job.ID, string, []byte) error { return errors.New("no leader") }, log)
		for range 4 {
			j.Log(line(1, strings.Repeat("x", journalMessage/2)))
		}
		j.toldAt = time.Now().Add(time.Hour) // till then the count stands
		j.flush(t.Context())
		if j.dropped != 4 {
			t.Errorf("%d lines are counted as lost", j.dropped)
		}
	})
}

// What is said just before the node stops is stored.
func TestJournal_LastWords(t *testing.T) {
	var kept *shelf
	journalTest(t, func(j *journal, s *shelf, _ *testlog.Recorder) {
		kept = s
		for n := range 2 * journalAtOnce {
			j.Log(job.LogLine{Job: job.ID{byte(n >> 8), byte(n)}, Text: "last"})
		}
	})
	if len(kept.lines) != 2*journalAtOnce {
		t.Errorf("%d of %d are stored", len(kept.lines), 2*journalAtOnce)
	}
}
