package deadletters

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// storedLetters is a stream of dead letters in memory.
type storedLetters struct {
	Reader
	first, last uint64
	letters     []streams.Batch
	read        int // letters that were read
}

func (s *storedLetters) add(n int, of func(i int) api.DeadLetterMessage) {
	for i := range n {
		s.last++
		id := job.ID{byte(s.last >> 16), byte(s.last >> 8), byte(s.last)}
		m := of(i)
		m.ID, m.Failed = id.String(), time.Unix(int64(s.last), 0).UTC()
		body, _ := json.Marshal(&m)
		s.letters = append(s.letters, streams.Batch{Seq: s.last, First: s.last, ID: "dead/" + job.RequestID(id, 1), Body: body})
	}
}

func (s *storedLetters) remove(_ context.Context, seq uint64) error {
	s.letters = slices.DeleteFunc(s.letters, func(b streams.Batch) bool { return b.Seq == seq })
	if len(s.letters) > 0 {
		s.first = s.letters[0].Seq
	} else {
		s.first = s.last + 1
	}
	return nil
}

func (s *storedLetters) LastDeadLetter(context.Context) (uint64, error) { return s.last, nil }

func (s *storedLetters) DeadLetters(_ context.Context, _ string, from, until uint64, yield func(streams.Batch) bool) error {
	for _, b := range s.letters {
		if b.Seq >= from && b.Seq <= until {
			if s.read++; !yield(b) {
				break
			}
		}
	}
	return nil
}

func (s *storedLetters) DeadLetter(_ context.Context, seq uint64) (streams.Batch, error) {
	for _, b := range s.letters {
		if b.Seq == seq {
			return b, nil
		}
	}
	return streams.Batch{}, streams.ErrNotStored
}

func (s *storedLetters) LetterState(context.Context, bool) (streams.LetterState, error) {
	return streams.NewLetterState(s.first, s.last, s.letters), nil
}

// letterServer returns a server of a stream of dead letters.
func letterServer(s *storedLetters) *Server {
	state := ledger.New()
	return New(Config{Reader: s, Remove: s.remove, View: func(read func(*ledger.Ledger)) { read(state) }})
}

func askStats(t *testing.T, s *Server, q api.DeadLetterRequest) *api.DeadLetterStats {
	t.Helper()
	req, err := newRequest(q)
	if err != nil {
		t.Fatal(err)
	}
	stats, err := s.stats(t.Context(), req)
	if err != nil || stats.Next != 0 {
		t.Fatal(stats, err)
	}
	return stats
}

// pagesOf returns the numbers of all letters that a request lists.
func pagesOf(t *testing.T, s *Server, q api.DeadLetterRequest) (numbers []uint64) {
	t.Helper()
	for {
		req, err := newRequest(q)
		if err != nil {
			t.Fatal(err)
		}
		page, err := s.list(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range page.Letters {
			numbers = append(numbers, l.Number)
		}
		if page.Next == 0 {
			return numbers
		}
		q.From, q.Until = page.Next, page.Until
	}
}

// Letters are listed newest first, counted exactly, and grouped by type and code; a page does not read the
// whole stream, and what is added or removed counts at once.
func TestServer_NewestFirst(t *testing.T) {
	stored := &storedLetters{first: 1}
	stored.add(5000, func(i int) api.DeadLetterMessage {
		return api.DeadLetterMessage{Queue: fmt.Sprint("q", i%2), Function: "send", Reason: "no route", Error: &job.Fault{Message: "no route", Type: "fail", Code: fmt.Sprint("E", i%5)}}
	})
	s := letterServer(stored)
	req, _ := newRequest(api.DeadLetterRequest{Limit: 50})
	page, err := s.list(t.Context(), req)
	if err != nil || len(page.Letters) != 50 || page.Letters[0].Number != 5000 || page.Letters[49].Number != 4951 || page.Next != 4950 {
		t.Fatalf("%d letters, next %d, %v", len(page.Letters), page.Next, err)
	}
	if stored.read > 1000 {
		t.Errorf("the first page has read %d letters", stored.read)
	}
	stats := askStats(t, s, api.DeadLetterRequest{Queue: "q1", Error: "e3"})
	if stats.Count != 500 || len(stats.Groups) != 1 || stats.Groups[0] != (api.DeadLetterGroup{Type: "fail", Code: "E3", Count: 500}) || stats.Errors["fail"] != 500 {
		t.Errorf("%+v", stats)
	}
	if stats = askStats(t, s, api.DeadLetterRequest{}); stats.Count != 5000 || len(stats.Groups) != 5 || stats.Queues["q0"] != 2500 {
		t.Errorf("%+v", stats)
	}
	read := stored.read
	_ = stored.remove(t.Context(), 3000)
	_ = stored.remove(t.Context(), 1)
	stored.add(1, func(int) api.DeadLetterMessage { return api.DeadLetterMessage{Queue: "new", Reason: "timeout: x"} })
	if stats = askStats(t, s, api.DeadLetterRequest{}); stats.Count != 4999 || stats.Queues["new"] != 1 || !stats.Oldest.Equal(time.Unix(2, 0)) {
		t.Errorf("%+v", stats)
	}
	if stored.read != read+1 {
		t.Errorf("%d letters were read again", stored.read-read)
	}
	oldest := pagesOf(t, s, api.DeadLetterRequest{Order: api.OrderOldest, Limit: 999})
	newest := pagesOf(t, s, api.DeadLetterRequest{Limit: 999})
	if slices.Reverse(newest); len(oldest) != 4999 || !slices.Equal(oldest, newest) {
		t.Errorf("%d letters oldest first, %d newest first", len(oldest), len(newest))
	}
}

// Whatever is added and removed between requests, the directory has what the stream has.
func TestDirectory_Random(t *testing.T) {
	for seed := range uint64(6) {
		random := rand.New(rand.NewPCG(seed, 1))
		stored := &storedLetters{first: 1}
		s := letterServer(stored)
		for range 60 {
			switch random.IntN(4) {
			case 0:
				stored.add(random.IntN(700), func(int) api.DeadLetterMessage { return api.DeadLetterMessage{Queue: "q", Reason: "no"} })
			case 1:
				for range random.IntN(40) {
					if n := len(stored.letters); n > 0 {
						_ = stored.remove(t.Context(), stored.letters[random.IntN(n)].Seq)
					}
				}
			case 2: // retention
				for range min(random.IntN(300), len(stored.letters)) {
					_ = stored.remove(t.Context(), stored.letters[0].Seq)
				}
			case 3:
				if stats := askStats(t, s, api.DeadLetterRequest{}); stats.Count != len(stored.letters) {
					t.Fatalf("seed %d: %d counted, %d stored", seed, stats.Count, len(stored.letters))
				}
			}
			want := make([]uint64, 0, 30)
			for i := len(stored.letters) - 1; i >= 0 && len(want) < 30; i-- {
				want = append(want, stored.letters[i].Seq)
			}
			req, _ := newRequest(api.DeadLetterRequest{Limit: 30})
			page, err := s.list(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			got := make([]uint64, 0, 30)
			for _, l := range page.Letters {
				got = append(got, l.Number)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d: %v, want %v", seed, got, want)
			}
		}
	}
}

// A letter that is named by its number is read alone, also while the directory is not complete.
func TestServer_ShowReadsOneLetter(t *testing.T) {
	stored := &storedLetters{first: 1}
	stored.add(5000, func(int) api.DeadLetterMessage { return api.DeadLetterMessage{Queue: "q", Reason: "no"} })
	s := letterServer(stored)
	req, err := newRequest(api.DeadLetterRequest{Letters: []uint64{1}})
	if err != nil {
		t.Fatal(err)
	}
	if l, err := s.show(t.Context(), req); err != nil || l.Number != 1 {
		t.Fatal(l, err)
	}
	if stored.read > 0 {
		t.Errorf("%d letters were read besides the one", stored.read)
	}
	for _, number := range []uint64{0, 6000} {
		req.Letters = []uint64{number}
		if l, err := s.show(t.Context(), req); err == nil {
			t.Errorf("letter %d is %+v", number, l)
		}
	}
}
