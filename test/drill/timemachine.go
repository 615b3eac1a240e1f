package drill

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Sightings are what nodes showed of the yard while it worked, each with the number of the
// last event that it showed.
type Sightings struct {
	all  []sighting
	seen atomic.Int64
	done sync.WaitGroup
	stop context.CancelFunc
}

// sighting is what one reply showed.
type sighting struct {
	event    uint64
	node     string
	kind     string           // what was asked for
	queues   []api.Queue      // of queueSighting
	snapshot *ledger.Snapshot // of the other kinds
}

// Kinds of sightings.
const (
	queueSighting    = "queues"
	snapshotSighting = "snapshots"
	capturedSighting = "captured snapshots" // added to the history, by exec
)

// sightRequests are the requests whose replies show the yard at an event, by kind.
var sightRequests = map[string]struct{ request, body string }{
	queueSighting:    {"GET /v1/queues", ""},
	snapshotSighting: {"GET /v1/snapshot", ""},
	capturedSighting: {"POST /v1/exec", `{"command":"CaptureSnapshot"}`},
}

// StartSightings asks random nodes at random moments what they show, until n replies have come. It
// waits for the first state from which later ones are rebuilt; a node that has just restarted
// may show an earlier one, which does not count.
func (h *Harness) StartSightings(n int) *Sightings {
	var first api.State
	h.Until("a state is stored from which later ones are rebuilt", func() error {
		return h.Nodes[0].Ask(h.Ctx, api.Subject("state-at"), api.StateRequest{}, &first)
	})
	ctx, stop := context.WithCancel(h.Ctx)
	s := &Sightings{stop: stop}
	random := rand.New(rand.NewPCG(h.Seed, 46))
	client := &http.Client{Timeout: 5 * time.Second}
	s.done.Go(func() {
		defer client.CloseIdleConnections()
		for len(s.all) < n && backoff.Sleep(ctx, time.Duration(random.IntN(60))*time.Millisecond) == nil {
			node := h.Nodes[random.IntN(len(h.Nodes))]
			kind := []string{queueSighting, snapshotSighting, capturedSighting}[random.IntN(3)]
			if seen, err := node.sight(ctx, client, kind); err == nil && seen.event >= first.Event { // a node that is down shows nothing
				s.all = append(s.all, seen)
				s.seen.Store(int64(len(s.all)))
			}
		}
	})
	return s
}

// Seen returns the number of replies so far.
func (s *Sightings) Seen() int { return int(s.seen.Load()) }

// sight sends one request, and returns what its reply shows.
func (n *Node) sight(ctx context.Context, client *http.Client, kind string) (seen sighting, err error) {
	r := sightRequests[kind]
	reply, err := n.sendHTTP(ctx, client, r.request, []byte(r.body))
	if err != nil {
		return seen, err
	}
	defer reply.Body.Close()
	if reply.StatusCode != http.StatusOK {
		return seen, errors.New(reply.Status)
	}
	seen = sighting{node: n.Name, kind: kind}
	if seen.event, err = strconv.ParseUint(reply.Header.Get(api.HeaderEvent), 10, 64); err != nil {
		return seen, err
	}
	body := json.NewDecoder(reply.Body)
	switch kind {
	case queueSighting:
		var list api.QueueList
		err = body.Decode(&list)
		seen.queues = list.Queues
	case snapshotSighting:
		err = body.Decode(&seen.snapshot)
	}
	return seen, err
}

// RequireSightings waits until all replies have come, rebuilds the state as of the event of each
// from history through a random node, and requires that both are equal.
func (h *Harness) RequireSightings(s *Sightings) {
	s.done.Wait()
	s.stop()
	captured := h.capturedSnapshots(s)
	random := rand.New(rand.NewPCG(h.Seed, 47))
	began, compared := time.Now(), map[string]int{}
	for i := range s.all {
		seen := &s.all[i]
		if seen.kind == capturedSighting {
			seen.snapshot = captured[seen.event]
		}
		var state api.State
		node := h.Nodes[random.IntN(len(h.Nodes))]
		err := node.Ask(h.Ctx, api.Subject("state-at"), api.StateRequest{At: strconv.FormatUint(seen.event, 10)}, &state)
		if err == nil {
			err = seen.compare(&state)
		}
		h.Require(err == nil, "%s of %s at event %d: %v", seen.kind, seen.node, seen.event, err)
		compared[seen.kind]++
	}
	h.Figure("states rebuilt from history and compared with what nodes showed", len(s.all))
	for kind, n := range compared {
		h.Figure("of them "+kind, n)
	}
	h.Figure("time to rebuild and compare a state", time.Since(began)/time.Duration(max(1, len(s.all))))
}

// capturedSnapshots returns the snapshots in the history, by the numbers of their events, once it has those that
// exec has replied with.
func (h *Harness) capturedSnapshots(s *Sightings) (captured map[uint64]*ledger.Snapshot) {
	h.Until("history has each snapshot that exec has captured", func() (err error) {
		if captured, err = h.snapshotsInHistory(); err != nil {
			return err
		}
		for i := range s.all {
			if seen := &s.all[i]; seen.kind == capturedSighting && captured[seen.event] == nil {
				return fmt.Errorf("exec replied with event %d, which is no captured snapshot", seen.event)
			}
		}
		return nil
	})
	return captured
}

func (h *Harness) snapshotsInHistory() (map[uint64]*ledger.Snapshot, error) {
	c, err := cluster.Dial(h.Ctx, h.Nodes[0].URL(), cluster.DialOptions{Name: "drill"})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	captured := make(map[uint64]*ledger.Snapshot)
	return captured, c.History(h.Ctx, time.Time{}, false, func(b streams.Batch) error {
		for line := range bytes.Lines(b.Body) {
			var e struct {
				Seq      uint64
				Event    string
				Snapshot *ledger.Snapshot
			}
			if err := json.Unmarshal(line, &e); err != nil {
				return fmt.Errorf("malformed line of history %q: %w", line, err)
			}
			if e.Event == "SnapshotCaptured" {
				captured[e.Seq] = e.Snapshot
			}
		}
		return nil
	})
}

// pastState is what is compared of a state that was rebuilt from history.
type pastState struct {
	Queues map[string]struct {
		Paused bool           `json:"paused"`
		Counts map[string]int `json:"counts"`
	} `json:"queues"`
	Authority struct {
		Owner       string `json:"owner"`
		LeaseID     string `json:"lease_id"`
		LeasedUntil string `json:"leased_until"`
	} `json:"authority"`
	Backlog ledger.SnapshotBacklog `json:"backlog"`
}

// compare returns an error if a state is not what was seen.
func (s *sighting) compare(state *api.State) error {
	if state.Imbalance != 0 || state.Event != s.event {
		return fmt.Errorf("the state is of event %d with imbalance %d", state.Event, state.Imbalance)
	}
	var past pastState
	if err := json.Unmarshal(state.State, &past); err != nil {
		return err
	}
	if s.snapshot != nil {
		a := &s.snapshot.Authority
		if text(a.Owner) != past.Authority.Owner || text(a.LeaseID) != past.Authority.LeaseID || text(a.LeasedUntil) != past.Authority.LeasedUntil || s.snapshot.Backlog != past.Backlog {
			return fmt.Errorf("it showed authority %s %s until %s and backlog %+v, history has %+v and %+v",
				text(a.Owner), text(a.LeaseID), text(a.LeasedUntil), s.snapshot.Backlog, past.Authority, past.Backlog)
		}
		return nil
	}
	if len(s.queues) != len(past.Queues) {
		return fmt.Errorf("it showed %d queues, history has %d", len(s.queues), len(past.Queues))
	}
	for _, q := range s.queues {
		there, shown := past.Queues[q.Name], maps.Clone(q.Counts)
		maps.DeleteFunc(shown, func(_ string, n int) bool { return n == 0 })
		if there.Paused != (q.State == "paused") || !maps.Equal(shown, there.Counts) {
			return fmt.Errorf("it showed queue %s %s with %v, history has %+v", q.Name, q.State, shown, there)
		}
	}
	return nil
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
