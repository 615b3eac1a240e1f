package deadletters

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/job"
)

// letterStream is a stream of dead letters, by sequence.
type letterStream struct {
	Reader
	numbers map[uint64]uint64 // of the letters
	err     error             // of reads of one letter

	mu      sync.Mutex
	single  int // reads of one letter
	removed []uint64
}

func (s *letterStream) DeadLetters(_ context.Context, _ string, from, until uint64, yield func(streams.Batch) bool) error {
	for seq := from; seq <= until; seq++ {
		if number := s.numbers[seq]; number > 0 && !yield(streams.Batch{Seq: seq, First: number}) {
			break
		}
	}
	return nil
}

func (s *letterStream) NumberedDeadLetter(_ context.Context, number uint64) (streams.Batch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.single++
	for seq, n := range s.numbers {
		if n == number {
			return streams.Batch{Seq: seq, First: n}, s.err
		}
	}
	return streams.Batch{}, streams.ErrNotStored
}

func (s *letterStream) remove(_ context.Context, seq uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removed = append(s.removed, seq)
	return nil
}

// TestRemoveNumbered checks that the letters with the numbers are removed and no others, also when their
// sequences are others, as after a restore, and that close numbers are read together.
func TestRemoveNumbered(t *testing.T) {
	same := map[uint64]uint64{1: 1, 2: 2, 3: 3, 4: 4, 1000: 1000}
	restored := map[uint64]uint64{1: 2, 2: 4, 3: 7, 4: 9}
	for _, c := range []struct {
		name    string
		letters map[uint64]uint64
		numbers []uint64
		removed []uint64
		single  int // most reads of one letter
	}{
		{"close", same, []uint64{2, 4, 3}, []uint64{2, 3, 4}, 0},
		{"one is gone", same, []uint64{3, 4, 5}, []uint64{3, 4}, 1},
		{"far apart", same, []uint64{1, 1000}, []uint64{1, 1000}, 2},
		{"restored", restored, []uint64{2, 7}, []uint64{1, 3}, 2},
		{"none", same, nil, nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			letters := &letterStream{numbers: c.letters}
			s := New(Config{Reader: letters, Remove: letters.remove})
			if err := s.RemoveNumbered(t.Context(), c.numbers); err != nil {
				t.Fatal(err)
			}
			slices.Sort(letters.removed)
			if diff := cmp.Diff(c.removed, letters.removed); diff != "" {
				t.Errorf("removed (-want +got)\n%s", diff)
			}
			if letters.single > c.single {
				t.Errorf("%d letters were read by themselves", letters.single)
			}
		})
	}
}

// TestCreate_NoAnswer checks that a letter that cannot be read now is a reason to try again, and not to pass the
// job over.
func TestCreate_NoAnswer(t *testing.T) {
	letters := &letterStream{numbers: map[uint64]uint64{1: 1}, err: embedded.ErrNoAnswer}
	_, err := New(Config{Reader: letters}).Create(t.Context(), &NewJob{DeadLetter: 1})
	if _, unavailable := errors.AsType[*job.UnavailableError](err); !unavailable {
		t.Errorf("Create fails with %v", err)
	}
}
