package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger/history"
	"github.com/yardmaster-dev/yardmaster/scheduler"
	"github.com/yardmaster-dev/yardmaster/scheduler/outbox"
)

var (
	errDown = errors.New("the stream has no leader")
	errGone = errors.New("the record is gone")
)

// lanes simulates the lanes. They never lose acknowledged records, apart from
// truncate.
type lanes struct {
	sim   *simulation
	made  bool // the streams exist
	lanes [members]lane
	tight bool // lanes are always nearly full
	tails map[*process]func(job.Record)
	keys  map[string]job.Position // stored records, by "lane/key"

	relocated lane // the stream of relocated records

	bodies map[string]largeBody // by name
}

// largeBody is a body that is stored outside of its record.
type largeBody struct {
	scheduler.StoredBody
	text []byte
}

// lane is one simulated lane; messages[0] has the sequence 1.
type lane struct {
	identity    string
	first       uint64 // lower records are purged
	messages    [][]job.Record
	waiting     []waitingRecord // that become the next message
	downUntil   time.Time
	truncatedTo uint64 // last sequence of a truncated lane; 0: it is not truncated
	damaged     bool   // it is or was truncated
}

// record returns the record at a position of the lane.
func (l *lane) record(at job.Position) (r job.Record, ok bool) {
	message := l.messages[at.Seq-1]
	if int(at.Index) >= len(message) {
		return r, false
	}
	return message[at.Index], true
}

// end returns the lane's last sequence.
func (l *lane) end() uint64 {
	if l.truncatedTo > 0 {
		return l.truncatedTo
	}
	return uint64(len(l.messages))
}

func newLanes(sim *simulation) *lanes {
	s := &lanes{sim: sim, tails: map[*process]func(job.Record){}, keys: map[string]job.Position{}, bodies: map[string]largeBody{}}
	for i := range s.lanes {
		s.lanes[i].first = 1
	}
	s.relocated.first = 1
	s.tight = sim.chance("tight lanes", 500)
	return s
}

func (s *lanes) heal() {
	for i := range s.lanes {
		s.lanes[i].downUntil = time.Time{}
	}
}

// lane returns a lane or, for [job.RelocatedLane], the stream of relocated records.
func (s *lanes) lane(number uint8) *lane {
	if number == job.RelocatedLane {
		return &s.relocated
	}
	return &s.lanes[number]
}

func (s *lanes) isDown(number uint8) bool { return s.lane(number).downUntil.After(time.Now()) }

// clock returns the timestamp of a lane's records: its leader's time.
func (s *lanes) clock(number uint8) time.Time {
	return time.Now().Add(s.sim.clocks.members[number].ahead)
}

// callAfter calls do as an event after wait, and returns its results.
func callAfter[T any](ctx context.Context, proc *process, key string, wait time.Duration, do func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	answered := make(chan answer, 1)
	var none T
	if ctx.Err() != nil {
		return none, ctx.Err()
	}
	proc.sim.after(wait, key, func() {
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

// lanesView implements scheduler.Lanes for one process.
type lanesView struct{ *process }

// requestTime returns how long a stream takes to answer.
func (sim *simulation) requestTime(key string) time.Duration {
	return sim.delay(key, 2*time.Millisecond, time.Second)
}

// askLane calls do as an event after the time that a lane takes to answer, and returns
// its results, or an error if the request of the process fails.
func askLane[T any](ctx context.Context, proc *process, number uint8, key string, do func(*lane) (T, error)) (T, error) {
	sim := proc.sim
	return callAfter(ctx, proc, key, sim.requestTime(key), func() (answer T, err error) {
		if err := sim.lanes.checkAvailable(proc, number, key); err != nil {
			return answer, err
		}
		return do(sim.lanes.lane(number))
	})
}

// checkAvailable returns an error if a request of a process to a lane fails.
func (s *lanes) checkAvailable(proc *process, number uint8, key string) error {
	switch {
	case !proc.up || s.sim.net.isolated(proc):
		return errNoAnswer
	case s.isDown(number):
		return errDown
	case s.sim.minorFaultsActive() && s.sim.chance("fails "+key, 20):
		return errNoAnswer
	}
	return nil
}

// isolated reports whether a node reaches no other.
func (n *network) isolated(proc *process) bool {
	for _, other := range n.sim.nodes {
		if other != proc.node && n.connected(proc.node, other) {
			return false
		}
	}
	return true
}

// Ensure implements scheduler.Lanes.
func (v lanesView) Ensure(ctx context.Context, identities []string, created uint8) error {
	key := "ensure " + v.id
	_, err := askLane(ctx, v.process, 0, key, func(*lane) (bool, error) {
		if v.sim.lanes.made {
			return true, nil
		}
		if created > 0 {
			v.sim.fail("%s: the streams should exist", v.id)
		}
		v.sim.lanes.made = true
		for i, identity := range identities {
			v.sim.lanes.lanes[i].identity = identity
		}
		return true, nil
	})
	return err
}

// recordBytes is the reported size of a record, large enough that lanes are purged.
const recordBytes = 8 << 20

// Info implements scheduler.Lanes.
func (v lanesView) Info(ctx context.Context, number uint8) (scheduler.LaneInfo, error) {
	key := fmt.Sprintf("info %s %d", v.id, number)
	return askLane(ctx, v.process, number, key, func(lane *lane) (scheduler.LaneInfo, error) {
		if lane.identity == "" && number != job.RelocatedLane {
			return scheduler.LaneInfo{}, errDown
		}
		last := lane.end()
		info := scheduler.LaneInfo{
			Identity: lane.identity, First: lane.first, Last: last, Bytes: (last + 1 - lane.first) * recordBytes,
		}
		if v.sim.lanes.tight {
			info.MaxBytes = info.Bytes / 4 * 5
		}
		return info, nil
	})
}

// Read implements scheduler.Lanes. The replica that answers may lack the last records.
func (v lanesView) Read(ctx context.Context, number uint8, from uint64, limit int) ([]job.Record, error) {
	key := fmt.Sprintf("read %s %d@%d", v.id, number, from)
	return askLane(ctx, v.process, number, key, func(lane *lane) ([]job.Record, error) {
		last := lane.end()
		if v.sim.minorFaultsActive() && v.sim.chance("lags "+key, 200) {
			last -= min(last, uint64(v.sim.intn("by "+key, 4)))
		}
		switch {
		case from < lane.first:
			return nil, errGone
		case from > last:
			return nil, nil
		}
		return slices.Concat(lane.messages[from-1 : min(from-1+uint64(limit), last)]...), nil
	})
}

// Tail implements scheduler.Lanes.
func (v lanesView) Tail(ctx context.Context, fn func(job.Record)) error {
	key := "listen " + v.id
	_, err := callAfter(ctx, v.process, key, v.sim.requestTime(key), func() (bool, error) {
		v.sim.lanes.tails[v.process] = fn
		return true, nil
	})
	if err != nil {
		return err
	}
	<-ctx.Done()
	v.sim.after(0, "deaf "+v.id, func() { delete(v.sim.lanes.tails, v.process) })
	return nil
}

// Load implements scheduler.Lanes.
func (v lanesView) Load(ctx context.Context, pos job.Position, id job.ID) ([]byte, error) {
	r, err := v.sim.lanes.load(ctx, v.process, pos, id, true)
	if errors.Is(err, errGone) {
		err = scheduler.ErrRecordGone
	}
	return r.Body, err
}

// load returns the record at a position, which must be that of the job. With resolve it
// has a large body itself instead of the reference.
func (s *lanes) load(ctx context.Context, proc *process, pos job.Position, id job.ID, resolve bool) (job.Record, error) {
	key := fmt.Sprintf("load %s %d@%d.%d", proc.id, pos.Lane, pos.Seq, pos.Index)
	return askLane(ctx, proc, pos.Lane, key, func(lane *lane) (job.Record, error) {
		if pos.Seq < lane.first || pos.Seq > lane.end() {
			return job.Record{}, errGone
		}
		r, ok := lane.record(pos)
		if !ok {
			return r, errGone
		}
		if pos.Relocated() && r.Owner != id {
			s.sim.fail("%s: the relocated record %d of job %s is that of job %s", proc.id, pos.Seq, id, r.Owner)
		}
		if !resolve {
			return r, nil
		}
		var err error
		r.Body, err = s.resolve(&r)
		return r, err
	})
}

// resolve returns the body of a record, which may refer to a large one. It fails the run
// if that was removed although the newest ledger says that a job needs it.
func (s *lanes) resolve(r *job.Record) ([]byte, error) {
	if !bytes.HasPrefix(r.Body, []byte(`{"blob"`)) {
		return r.Body, nil
	}
	var reference struct{ Blob job.Blob }
	if err := json.Unmarshal(r.Body, &reference); err != nil {
		return nil, err
	}
	body, ok := s.bodies[reference.Blob.Name]
	if ok {
		return body.text, nil
	}
	newest := s.sim.nodes[0].process.ledger
	for _, n := range s.sim.nodes {
		if n.process.ledger.Index() > newest.Index() {
			newest = n.process.ledger
		}
	}
	if newest.NeedsBody(reference.Blob.Owner()) {
		s.sim.fail("body %s was removed, and a job needs it", reference.Blob.Name)
	}
	return nil, errGone
}

// storeLarge stores a body outside of its record, and returns the record's body.
func (s *lanes) storeLarge(owner job.ID, body []byte) []byte {
	at := time.Now()
	name := fmt.Sprintf("%s.%d", owner, at.UnixNano())
	s.bodies[name] = largeBody{scheduler.StoredBody{Name: name, Owner: owner, Stored: at}, body}
	reference, _ := json.Marshal(job.Blob{Name: name, Chunks: 1, Size: int64(len(body)), SHA256: strings.Repeat("0", 64)})
	return fmt.Appendf(nil, `{"blob":%s,%s`, reference, body[1:])
}

// AttemptError implements scheduler.Lanes: no errors are kept.
func (v lanesView) AttemptError(context.Context, job.ID, uint32) (*job.AttemptError, error) {
	return nil, errors.New("not stored")
}

// Publish implements scheduler.Lanes. The scheduler publishes only jobs of ticks.
func (v lanesView) Publish(queue, record string, at time.Time, body []byte, done func(error)) {
	key := fmt.Sprintf("publish %s %s", v.id, record)
	number := uint8(v.sim.intn(key, members))
	v.sim.after(v.sim.requestTime(key), key, func() {
		lanes := v.sim.lanes
		if err := lanes.checkAvailable(v.process, number, key); err != nil || lanes.lanes[number].truncatedTo > 0 {
			done(errDown)
			return
		}
		r, fresh := lanes.store(number, queue, record, body)
		v.sim.trace("%s stores a tick as %d@%d, fresh %t", v.id, number, r.Seq, fresh)
		if v.sim.minorFaultsActive() && v.sim.chance("unanswered "+key, 100) {
			done(errNoAnswer)
			return
		}
		done(nil)
	})
}

// Purge implements scheduler.Lanes.
func (v lanesView) Purge(ctx context.Context, number uint8, below uint64) error {
	key := fmt.Sprintf("purge %s %d", v.id, number)
	_, err := askLane(ctx, v.process, number, key, func(lane *lane) (bool, error) {
		lane.first = max(lane.first, min(below, lane.end()))
		v.sim.trace("%s purges lane %d below %d", v.id, number, below)
		return true, nil
	})
	return err
}

// Bodies implements scheduler.Lanes.
func (v lanesView) Bodies(ctx context.Context) ([]scheduler.StoredBody, error) {
	return askLane(ctx, v.process, 0, "bodies "+v.id, func(*lane) (stored []scheduler.StoredBody, _ error) {
		for _, name := range slices.Sorted(maps.Keys(v.sim.lanes.bodies)) {
			stored = append(stored, v.sim.lanes.bodies[name].StoredBody)
		}
		return stored, nil
	})
}

// DeadLetterBodies implements scheduler.Lanes. No dead letter is ever removed.
func (v lanesView) DeadLetterBodies(ctx context.Context) (map[job.ID]bool, error) {
	return askLane(ctx, v.process, 0, "letters "+v.id, func(*lane) (map[job.ID]bool, error) {
		owners := map[job.ID]bool{}
		for i := range v.sim.history.batches[outbox.DeadLetters] {
			owners[v.sim.history.batches[outbox.DeadLetters][i].BlobOwner] = true
		}
		return owners, nil
	})
}

// Served implements scheduler.Lanes.
func (v lanesView) Served(context.Context, uint8) bool { return true }

// BodySpace implements scheduler.Lanes. There is always space.
func (v lanesView) BodySpace(context.Context) (used, limit uint64, err error) { return 0, 0, nil }

// RemoveDeadLettersOf implements scheduler.Lanes.
func (v lanesView) RemoveDeadLettersOf(context.Context, job.ID) error { return nil }

// ApplyRetention implements scheduler.Lanes.
func (v lanesView) ApplyRetention(context.Context, job.Retention) error { return nil }

// EvictDeadLetters implements scheduler.Lanes.
func (v lanesView) EvictDeadLetters(context.Context, string, time.Time, int64) error { return nil }

// RemoveBody implements scheduler.Lanes.
func (v lanesView) RemoveBody(ctx context.Context, name string) error {
	_, err := askLane(ctx, v.process, 0, "free "+name, func(*lane) (bool, error) {
		delete(v.sim.lanes.bodies, name)
		v.sim.trace("%s frees body %s", v.id, name)
		return true, nil
	})
	return err
}

// historyStreams simulates the streams of the outbox.
type historyStreams struct {
	sim     *simulation
	batches [3][]outbox.Batch
	down    [3]time.Time // until when a stream refuses requests
	order   [3]time.Time // time of the last scheduled Append: appends keep their order
}

func (s *historyStreams) isDown(stream outbox.Stream) bool {
	return s.sim.faultsActive() && s.down[stream].After(time.Now())
}

// last returns a stream's last sequence and the number of its last item.
func (s *historyStreams) last(stream outbox.Stream) (seq, number uint64) {
	if batches := s.batches[stream]; len(batches) > 0 {
		last := &batches[len(batches)-1]
		return uint64(len(batches)), last.First + last.Count - 1
	}
	return 0, 0
}

// published returns the events of the history stream, in the contract's form.
func (s *historyStreams) published() string {
	var bodies []byte
	for _, batch := range s.batches[outbox.History] {
		bodies = append(bodies, batch.Body...)
	}
	lines, err := history.Expand(bodies)
	if err != nil {
		s.sim.fail("%v", err)
	}
	return string(lines)
}

// historyView implements outbox.Streams for one process.
type historyView struct{ *process }

// LastPublished implements outbox.Streams.
func (v historyView) LastPublished(ctx context.Context, stream outbox.Stream) (seq, number uint64, err error) {
	key := fmt.Sprintf("told %s %s", v.id, stream)
	ends, err := callAfter(ctx, v.process, key, v.sim.requestTime(key), func() ([2]uint64, error) {
		if !v.up || v.sim.net.isolated(v.process) || v.sim.history.isDown(stream) {
			return [2]uint64{}, errNoAnswer
		}
		seq, number := v.sim.history.last(stream)
		return [2]uint64{seq, number}, nil
	})
	return ends[0], ends[1], err
}

var errWrongLast = errors.New("the stream ends elsewhere")

// Append implements outbox.Streams. It fails the run if a batch does not follow the
// stream's last item.
func (v historyView) Append(stream outbox.Stream, batch outbox.Batch, expect uint64, done func(uint64, error)) {
	sim := v.sim
	key := fmt.Sprintf("append %s %s %d", v.id, stream, batch.First)
	at := time.Now().Add(sim.requestTime(key))
	sim.mu.Lock()
	if last := sim.history.order[stream]; at.Before(last) {
		at = last.Add(time.Microsecond)
	}
	sim.history.order[stream] = at
	sim.mu.Unlock()
	sim.schedule(at, key, func() {
		s := sim.history
		seq, number := s.last(stream)
		switch {
		case !v.up || sim.net.isolated(v.process) || s.isDown(stream) || sim.minorFaultsActive() && sim.chance("refused "+key, 20):
			done(0, errNoAnswer)
			return
		case expect != seq:
			done(0, errWrongLast)
			return
		case batch.First != number+1:
			sim.fail("%s: %s goes from %d to %d", v.id, stream, number, batch.First)
		}
		s.batches[stream] = append(s.batches[stream], batch)
		sim.trace("%s publishes %s %d to %d", v.id, stream, batch.First, batch.First+batch.Count-1)
		if sim.minorFaultsActive() && sim.chance("unanswered "+key, 20) {
			done(0, errNoAnswer)
			return
		}
		done(seq+1, nil)
	})
}

// HasSubscribers implements outbox.Streams.
func (historyView) HasSubscribers(string, string) bool { return false }

// PublishLive implements outbox.Streams.
func (historyView) PublishLive(string, string, []byte) {}
