package outbox

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// slowStreams are streams that store a batch a second after it was sent, in the order in
// which they were sent. They refuse the first message with an ID of refused.
type slowStreams struct {
	mu      sync.Mutex
	last    time.Time // when the last batch that was sent is stored
	stored  [3][]Batch
	refused map[string]bool
}

func (s *slowStreams) LastPublished(_ context.Context, stream Stream) (seq, number uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.stored[stream] {
		seq, number = seq+1, b.First+b.Count-1
	}
	return seq, number, nil
}

func (s *slowStreams) Append(stream Stream, b Batch, expect uint64, done func(uint64, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := time.Now().Add(time.Second)
	if !at.After(s.last) {
		at = s.last.Add(time.Microsecond)
	}
	s.last = at
	time.AfterFunc(time.Until(at), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		stored := s.stored[stream]
		if uint64(len(stored)) != expect || s.refused[b.ID] {
			delete(s.refused, b.ID)
			done(0, errors.New("refused"))
			return
		}
		s.stored[stream] = append(stored, b)
		done(expect+1, nil)
	})
}

func (*slowStreams) HasSubscribers(string, string) bool { return false }
func (*slowStreams) PublishLive(_, _ string, _ []byte)  {}

// TestRun_DeadLettersOfSlowStream checks that dead letters do not wait for each other if
// their stream is slow, and that all are stored once and in order if one is refused.
func TestRun_DeadLettersOfSlowStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const count = 192
		l, at := ledger.New(), time.Now()
		ingest := &ledger.Ingest{Identity: "lane", To: count, CreateQueues: true}
		for seq := uint64(1); seq <= count; seq++ {
			id := job.RecordID("lane", job.Position{Seq: seq}, at)
			ingest.Rejected = append(ingest.Rejected, ledger.Rejection{ID: id, Queue: "mail", Seq: seq, Accepted: at, Reason: "no JSON"})
		}
		for i, c := range []ledger.Command{&ledger.Lead{Owner: "n1", Until: at.Add(time.Hour)}, &ledger.Bootstrap{Lanes: []string{"lane"}}, ingest} {
			epoch := uint64(min(i, 1)) // 1, the index of the entry with Lead, from the second entry on
			if r := l.Apply(ledger.Stamp{Index: uint64(i + 1), Term: 1, At: at, Epoch: epoch}, []ledger.Command{c})[0]; r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		letters := l.DeadLettersAfter(0)
		if len(letters) != count {
			t.Fatalf("%d dead letters, want %d", len(letters), count)
		}
		s := &slowStreams{refused: map[string]bool{"dead/" + job.RequestID(letters[5].Job, letters[5].N): true}}
		ctx, cancel := context.WithCancel(t.Context())
		o := New(Config{
			Ledger: fixedLedger{l}, Streams: s, Log: slog.New(slog.DiscardHandler), Post: func(func()) {}, AwaitStreams: func(context.Context) {},
			LoadBody: func(context.Context, job.Position, job.ID) ([]byte, error) {
				time.Sleep(time.Second)
				return []byte("{}"), nil
			},
			SetProblem: func(Stream, error) {},
		})
		ended := make(chan error)
		go func() { ended <- o.Run(ctx, 1) }()
		time.Sleep(20 * time.Second) // one by one they would take minutes
		cancel()
		<-ended
		stored := s.stored[DeadLetters]
		if len(stored) != count {
			t.Errorf("%d dead letters are stored, want %d", len(stored), count)
		}
		for i := range stored {
			if stored[i].First != uint64(i+1) {
				t.Fatalf("message %d is dead letter %d", i+1, stored[i].First)
			}
		}
	})
}
