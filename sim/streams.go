package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"yardmaster/job"
	"yardmaster/scheduler"
)

var (
	errDown = errors.New("the stream has no leader")
	errGone = errors.New("the record is gone")
)

// lanes play the streams that jobs come in by. They lose nothing that they
// have acknowledged.
type lanes struct {
	y     *yard
	made  bool
	lanes [members]lane
	tails map[*life]func(job.Record)
	keys  map[string]job.Position // what has been stored under which key, by lane
}

type lane struct {
	identity string
	first    uint64
	records  []job.Record
	down     time.Time // until then
	cut      uint64    // its end is lost, and this is what is left of it; 0: nothing is lost
}

// end is the last sequence that the lane has.
func (l *lane) end() uint64 {
	if l.cut > 0 {
		return l.cut
	}
	return uint64(len(l.records))
}

func newLanes(y *yard) *lanes {
	s := &lanes{y: y, tails: map[*life]func(job.Record){}, keys: map[string]job.Position{}}
	for i := range s.lanes {
		s.lanes[i].first = 1
	}
	return s
}

func (s *lanes) heal() {
	for i := range s.lanes {
		s.lanes[i].down = time.Time{}
	}
}

func (s *lanes) isDown(number uint8) bool { return s.lanes[number].down.After(time.Now()) }

// store appends a record, unless it has one of that key. Who asked hears of it
// by done, unless the answer is lost.
func (s *lanes) store(number uint8, queue, key string, body []byte) (r job.Record, fresh bool) {
	name := fmt.Sprintf("%d/%s", number, key)
	lane := &s.lanes[number]
	if at, ok := s.keys[name]; ok && !s.y.chance("forgotten "+name, 500) {
		return lane.records[at.Seq-1], false
	}
	r = job.Record{
		Position: job.Position{Lane: number, Seq: uint64(len(lane.records)) + 1},
		Queue:    queue, Key: key, Stored: s.clock(number), Body: body,
	}
	lane.records = append(lane.records, r)
	s.keys[name] = r.Position
	s.y.judge.stored(&r)
	for _, n := range s.y.nodes {
		if fn := s.tails[n.life]; fn != nil && n.life.up {
			key := fmt.Sprintf("tail %s %d@%d", n.life.id, number, r.Seq)
			if !s.y.mishaps() || !s.y.chance(key, 100) {
				s.y.after(s.y.delay(key, time.Millisecond, 400*time.Millisecond), key, func() {
					if n.life.up {
						fn(r)
					}
				})
			}
		}
	}
	return r, true
}

// clock is the time that a lane's records bear: its leader's. A clock that is
// further ahead would keep delayed jobs for longer than a story lasts, as asked.
func (s *lanes) clock(number uint8) time.Time {
	return time.Now().Add(min(s.y.net.skew[nodeName(int(number))], clockAhead))
}

const clockAhead = 3 * time.Second

// called runs do in its turn after a while, and returns what it gives.
func called[T any](ctx context.Context, l *life, key string, wait time.Duration, do func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	answered := make(chan answer, 1)
	var none T
	if ctx.Err() != nil {
		return none, ctx.Err()
	}
	l.y.after(wait, key, func() {
		value, err := do()
		answered <- answer{value, err}
	})
	select {
	case a := <-answered:
		return a.value, a.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// lanesOf are the lanes as a node's scheduler sees them.
type lanesOf struct{ *life }

// wait is how long a lane takes to answer.
func (s lanesOf) wait(key string) time.Duration {
	return s.y.delay(key, 2*time.Millisecond, time.Second)
}

// ask asks a lane something, which fails while the lane is down.
func (s *lanes) ask(l *life, number uint8, key string) error {
	switch {
	case !l.up || s.y.net.alone(l):
		return errNoAnswer
	case s.isDown(number):
		return errDown
	case s.y.mishaps() && s.y.chance("fails "+key, 20):
		return errNoAnswer
	}
	return nil
}

// alone tells that a node reaches no other.
func (n *net) alone(l *life) bool {
	for _, other := range n.y.nodes {
		if other != l.node && n.both(l.node, other) {
			return false
		}
	}
	return true
}

// Ensure is scheduler.Lanes'.
func (s lanesOf) Ensure(ctx context.Context, identities []string, create bool) error {
	key := "ensure " + s.id
	_, err := called(ctx, s.life, key, s.wait(key), func() (bool, error) {
		if err := s.y.lanes.ask(s.life, 0, key); err != nil {
			return false, err
		}
		if s.y.lanes.made {
			return true, nil
		}
		if !create {
			s.y.fail("%s: the streams should have been made", s.id)
		}
		s.y.lanes.made = true
		for i, identity := range identities {
			s.y.lanes.lanes[i].identity = identity
		}
		return true, nil
	})
	return err
}

// recordBytes makes records large enough that lanes are purged.
const recordBytes = 8 << 20

// Info is scheduler.Lanes'.
func (s lanesOf) Info(ctx context.Context, number uint8) (scheduler.Lane, error) {
	key := fmt.Sprintf("info %s %d", s.id, number)
	return called(ctx, s.life, key, s.wait(key), func() (scheduler.Lane, error) {
		if err := s.y.lanes.ask(s.life, number, key); err != nil {
			return scheduler.Lane{}, err
		}
		lane := &s.y.lanes.lanes[number]
		if lane.identity == "" {
			return scheduler.Lane{}, errDown
		}
		last := lane.end()
		return scheduler.Lane{
			Identity: lane.identity, Leader: nodeName(int(number)), First: lane.first, Last: last, Bytes: (last + 1 - lane.first) * recordBytes,
		}, nil
	})
}

// Read is scheduler.Lanes'. The replica that answers may not have the last
// records yet.
func (s lanesOf) Read(ctx context.Context, number uint8, from uint64, most int) ([]job.Record, error) {
	key := fmt.Sprintf("read %s %d@%d", s.id, number, from)
	return called(ctx, s.life, key, s.wait(key), func() ([]job.Record, error) {
		if err := s.y.lanes.ask(s.life, number, key); err != nil {
			return nil, err
		}
		lane := &s.y.lanes.lanes[number]
		last := lane.end()
		if s.y.mishaps() && s.y.chance("lags "+key, 200) {
			last -= min(last, uint64(s.y.pick("by "+key, 4)))
		}
		switch {
		case from < lane.first:
			return nil, errGone
		case from > last:
			return nil, nil
		}
		return slices.Clone(lane.records[from-1 : min(from-1+uint64(most), last)]), nil
	})
}

// Tail is scheduler.Lanes'.
func (s lanesOf) Tail(ctx context.Context, fn func(job.Record)) error {
	key := "listen " + s.id
	_, err := called(ctx, s.life, key, s.wait(key), func() (bool, error) {
		s.y.lanes.tails[s.life] = fn
		return true, nil
	})
	if err != nil {
		return err
	}
	<-ctx.Done()
	s.y.after(0, "deaf "+s.id, func() { delete(s.y.lanes.tails, s.life) })
	return nil
}

// Load is scheduler.Lanes'.
func (s lanesOf) Load(ctx context.Context, at job.Position, _ job.ID) ([]byte, error) {
	body, err := s.y.lanes.load(ctx, s.life, at)
	if errors.Is(err, errGone) {
		err = scheduler.ErrRecordGone
	}
	return body, err
}

func (s *lanes) load(ctx context.Context, l *life, at job.Position) ([]byte, error) {
	key := fmt.Sprintf("load %s %d@%d", l.id, at.Lane, at.Seq)
	return called(ctx, l, key, s.y.delay(key, 2*time.Millisecond, time.Second), func() ([]byte, error) {
		if err := s.ask(l, at.Lane, key); err != nil {
			return nil, err
		}
		lane := &s.lanes[at.Lane]
		if at.Seq < lane.first || at.Seq > lane.end() {
			return nil, errGone
		}
		return lane.records[at.Seq-1].Body, nil
	})
}

// Publish is scheduler.Lanes'; only cron entries publish.
func (s lanesOf) Publish(queue, record string, at time.Time, body []byte, done func(job.Position, bool, error)) {
	key := fmt.Sprintf("publish %s %s", s.id, record)
	number := uint8(s.y.pick(key, members))
	s.y.after(s.wait(key), key, func() {
		lanes := s.y.lanes
		if err := lanes.ask(s.life, number, key); err != nil || lanes.lanes[number].cut > 0 {
			done(job.Position{}, false, errDown)
			return
		}
		r, fresh := lanes.store(number, queue, record, body)
		s.y.tell("%s stores a tick as %d@%d, fresh %t", s.id, number, r.Seq, fresh)
		if s.y.mishaps() && s.y.chance("unanswered "+key, 100) {
			done(job.Position{}, false, errNoAnswer)
			return
		}
		done(r.Position, fresh, nil)
	})
}

// Purge is scheduler.Lanes'.
func (s lanesOf) Purge(ctx context.Context, number uint8, below uint64) error {
	key := fmt.Sprintf("purge %s %d", s.id, number)
	_, err := called(ctx, s.life, key, s.wait(key), func() (bool, error) {
		if err := s.y.lanes.ask(s.life, number, key); err != nil {
			return false, err
		}
		lane := &s.y.lanes.lanes[number]
		lane.first = max(lane.first, min(below, lane.end()))
		s.y.tell("%s purges lane %d below %d", s.id, number, below)
		return true, nil
	})
	return err
}

// PurgeBlobs is scheduler.Lanes'.
func (s lanesOf) PurgeBlobs(context.Context, time.Time) error { return nil }

// tales play the streams of history: each stores what follows on what it has.
type tales struct {
	y       *yard
	stories [3][]scheduler.Tale
	down    [3]time.Time
	order   [3]time.Time // a connection keeps the order of what goes over it
}

func newTales(y *yard) *tales { return &tales{y: y} }

func (s *tales) isDown(story scheduler.Story) bool {
	return s.y.storms() && s.down[story].After(time.Now())
}

// end is what a stream ends with.
func (s *tales) ends(story scheduler.Story) (seq, number uint64) {
	if tales := s.stories[story]; len(tales) > 0 {
		last := &tales[len(tales)-1]
		return uint64(len(tales)), last.First + last.Count - 1
	}
	return 0, 0
}

// text is all of history, as it was told.
func (s *tales) text() string {
	var b strings.Builder
	for _, t := range s.stories[scheduler.History] {
		b.Write(t.Body)
	}
	return b.String()
}

// talesOf are the streams of history as a node's scheduler sees them.
type talesOf struct{ *life }

// LastTold is scheduler.Tales'.
func (t talesOf) LastTold(ctx context.Context, story scheduler.Story) (seq, number uint64, err error) {
	key := fmt.Sprintf("told %s %s", t.id, story)
	ends, err := called(ctx, t.life, key, t.y.delay(key, 2*time.Millisecond, time.Second), func() ([2]uint64, error) {
		if !t.up || t.y.net.alone(t.life) || t.y.tales.isDown(story) {
			return [2]uint64{}, errNoAnswer
		}
		seq, number := t.y.tales.ends(story)
		return [2]uint64{seq, number}, nil
	})
	return ends[0], ends[1], err
}

var errElsewhere = errors.New("the stream ends elsewhere")

// Append is scheduler.Tales'.
func (t talesOf) Append(story scheduler.Story, tale scheduler.Tale, expect uint64, done func(uint64, error)) {
	y := t.y
	key := fmt.Sprintf("append %s %s %d", t.id, story, tale.First)
	at := time.Now().Add(y.delay(key, 2*time.Millisecond, time.Second))
	y.mu.Lock()
	if last := y.tales.order[story]; at.Before(last) {
		at = last.Add(time.Microsecond)
	}
	y.tales.order[story] = at
	y.mu.Unlock()
	y.at(at, key, func() {
		s := y.tales
		seq, number := s.ends(story)
		switch {
		case !t.up || y.net.alone(t.life) || s.isDown(story) || y.mishaps() && y.chance("refused "+key, 20):
			done(0, errNoAnswer)
			return
		case expect != seq:
			done(0, errElsewhere)
			return
		case tale.First != number+1:
			y.fail("%s: %s goes from %d to %d", t.id, story, number, tale.First)
		}
		s.stories[story] = append(s.stories[story], tale)
		y.tell("%s tells %s %d to %d", t.id, story, tale.First, tale.First+tale.Count-1)
		if y.mishaps() && y.chance("unanswered "+key, 20) {
			done(0, errNoAnswer)
			return
		}
		done(seq+1, nil)
	})
}

// Watched is scheduler.Tales'.
func (talesOf) Watched(string, string) bool { return false }

// Live is scheduler.Tales'.
func (talesOf) Live(string, string, []byte) {}
