package cluster

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"yardmaster/internal/backoff"
)

// How copies are watched.
const (
	copiesEvery = 5 * time.Second
	standsFor   = 20 * time.Second // without a message, while the leader has more
)

// standstill notes which of this node's copies get nothing while their leaders
// have more. It goes by messages and not by Raft's entries: a copy whose server
// writes its log and fails to apply it has all entries.
type standstill struct {
	c            *Cluster
	every, after time.Duration

	mu     sync.Mutex
	copies map[string]standing // by stream, those that lacked something at the last look
}

// standing is a copy that lacks messages.
type standing struct {
	last  uint64    // its last message
	since time.Time // it has been the last, while there were more
}

// run looks until ctx ends.
func (s *standstill) run(ctx context.Context) {
	for backoff.Sleep(ctx, s.every) == nil {
		s.look(ctx)
	}
}

// look compares this node's copies with what their leaders have. What cannot be
// compared now begins anew: a copy that was cut off is not late yet.
func (s *standstill) look(ctx context.Context) {
	led, err := s.c.lastOfLeaders(ctx)
	var mine map[string]uint64
	if err == nil {
		mine, err = s.c.lastOfCopies() // after the leaders', so that it is no less
	}
	s.note(led, mine, time.Now())
}

// note keeps what copies lack; nil is what nobody could say.
func (s *standstill) note(led, mine map[string]uint64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.copies
	s.copies = make(map[string]standing)
	for stream, has := range led {
		last := mine[stream] // none: the copy is just being made, or never
		if last >= has {
			continue
		}
		was, known := before[stream]
		if !known || was.last != last {
			was = standing{last, now}
		}
		s.copies[stream] = was
	}
}

// standing lists the streams whose copy here stands still.
func (s *standstill) standing(now time.Time) (streams []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for stream, c := range s.copies {
		if now.Sub(c.since) >= s.after {
			streams = append(streams, stream)
		}
	}
	slices.Sort(streams)
	return streams
}

// Standstill lists the streams whose copy on this node lacks messages and has
// got none for 20 s, by name.
func (c *Cluster) Standstill() []string { return c.copies.standing(time.Now()) }

// lastOfLeaders is the last message of each stream that lies here too and is led
// elsewhere.
func (c *Cluster) lastOfLeaders(ctx context.Context) (map[string]uint64, error) {
	last := make(map[string]uint64)
	err := c.eachPage(ctx, func(page *streamPage) {
		for _, info := range page.Streams {
			g := info.Cluster
			if g == nil || g.Leader == c.cfg.Identity {
				continue
			}
			for _, copied := range copiesOf(g) {
				if copied.Is(c.cfg.Identity) {
					last[info.Config.Name] = info.State.LastSeq
				}
			}
		}
	})
	return last, err
}

// lastOfCopies is the last message of each copy here.
func (c *Cluster) lastOfCopies() (map[string]uint64, error) {
	info, err := c.srv.Jsz(&server.JSzOptions{Account: account, Streams: true})
	if err != nil {
		return nil, err
	}
	last := make(map[string]uint64)
	for _, a := range info.AccountDetails {
		for i := range a.Streams {
			last[a.Streams[i].Name] = a.Streams[i].State.LastSeq
		}
	}
	return last, nil
}
