package lanes

import (
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
)

// maxPackedInFlight is how many messages of a lane may be in flight before records wait for
// one of them.
const maxPackedInFlight = 8

// Parameters of the wait for callers that a message's answer has released.
const (
	minReleased  = 4 // jobs in that message
	awaitShare   = 4 // the wait is this part of the time that the answer took
	maxAwaitTime = time.Millisecond
)

// packer sends the jobs of this node to one lane. A job is sent at once if no message is in
// flight. Those that come meanwhile go together in one message, because most of what a message
// costs does not depend on its size: it is replicated and synced to disk once. After a message
// with several jobs, the next one waits for a moment for the callers of the last.
type packer struct {
	p    *Publisher
	lane uint8

	mu       crash.Mutex
	waiting  []*pendingPublish
	size     int // bytes that the waiting ones take in a message, at most
	inFlight int // messages without an answer
	awaited  int // how many jobs the next message waits for; 0: it does not wait
	waits    int // number of such waits, which tells a timer whether its own has ended
}

// add sends a job, or queues it for the next message.
func (k *packer) add(d *pendingPublish) {
	k.mu.Lock()
	k.waiting = append(k.waiting, d)
	k.size += d.packedSize
	failed := k.sendWaiting(d.packedSize == 0)
	k.mu.Unlock()
	callAll(failed)
}

// awaitCallers makes the next message wait for the callers of a message with count jobs, whose
// answer took some time and now releases them: who publishes one job after the other is back at
// once. Without the wait such callers split into two groups whose messages take turns.
func (k *packer) awaitCallers(count int, took time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if count < minReleased || k.inFlight > 1 || k.awaited > 0 {
		return
	}
	k.awaited = min(len(k.waiting)+count, job.MaxPacked)
	k.waits++
	wait := k.waits
	time.AfterFunc(min(took/awaitShare, maxAwaitTime), func() { k.endWait(wait) })
}

// endWait sends the jobs that wait if those that they wait for have not come.
func (k *packer) endWait(wait int) {
	k.mu.Lock()
	var failed []func()
	if k.waits == wait && k.awaited > 0 {
		k.awaited = 0
		failed = k.sendWaiting(false)
	}
	k.mu.Unlock()
	callAll(failed)
}

// answered is called after the answer to a message, or once there can be none. If the lane has
// failed, the jobs that wait for it go to others.
func (k *packer) answered() {
	if !k.p.state.usable(k.lane) {
		k.reroute()
	}
	k.mu.Lock()
	k.inFlight--
	failed := k.sendWaiting(false)
	k.mu.Unlock()
	callAll(failed)
}

// sendWaiting sends the waiting jobs that may be sent now. With all, it sends all of them: a job
// that has a message of its own gains nothing by waiting. Otherwise it sends a message if none is
// in flight and no further jobs are awaited, and full messages while few are in flight. It returns
// functions that report to the callers of jobs that could not be sent. The caller holds k.mu.
func (k *packer) sendWaiting(all bool) (failed []func()) {
	for len(k.waiting) > 0 {
		full := len(k.waiting) >= job.MaxPacked || k.size >= job.MaxPackedBytes
		mayWait := k.inFlight > 0 || len(k.waiting) < k.awaited
		if !all && mayWait && !(full && k.inFlight < maxPackedInFlight) {
			break
		}
		k.awaited = 0
		failed = append(failed, k.send(k.fitting())...)
	}
	return failed
}

// fitting returns how many of the waiting jobs the next message may hold. The caller holds
// k.mu.
func (k *packer) fitting() (count int) {
	size := 0
	for _, d := range k.waiting[:min(len(k.waiting), job.MaxPacked)] {
		if size += d.packedSize; count > 0 && (d.packedSize == 0 || size > job.MaxPackedBytes) {
			break
		}
		count++
	}
	return count
}

// callAll calls each of the functions.
func callAll(fns []func()) {
	for _, fn := range fns {
		fn()
	}
}

// send sends the first count of the waiting jobs, which must fit, in one message. It returns
// functions that tell the callers of those that cannot be sent, and of those whose time is over.
// The message has the time that its youngest job has left: one that was sent to another lane
// before must not make it fail for the others. The caller holds k.mu.
func (k *packer) send(count int) (failed []func()) {
	now, latest := time.Now(), time.Time{}
	jobs := make([]*pendingPublish, 0, count)
	size := 0
	for _, d := range k.waiting[:count] {
		k.size -= d.packedSize
		deadline := d.started.Add(k.p.local.Config.PublishTimeout)
		if !now.Before(deadline) {
			failed = append(failed, func() { d.fail("no lane answered in time") })
			continue
		}
		jobs, size = append(jobs, d), size+d.packedSize
		if deadline.After(latest) {
			latest = deadline
		}
	}
	if k.waiting = k.waiting[count:]; len(k.waiting) == 0 {
		k.waiting = nil // frees the memory
	}
	if len(jobs) == 0 {
		return failed
	}
	m := k.message(jobs, size)
	reply := &laneReply{packer: k, jobs: jobs, sent: now, lastTaken: k.p.state.lastSeq[k.lane].Load()}
	deadline := now.Add(k.p.state.timeout(k.lane))
	if latest.Before(deadline) {
		deadline = latest
	}
	inbox := k.p.local.Ingest
	var token uint64
	m.Reply, token = inbox.Expect(reply, deadline, false)
	k.inFlight++
	if err := inbox.Conn.PublishMsg(m); err != nil && inbox.Cancel(token) { // otherwise the handler is called
		k.inFlight--
		err = embedded.PublishError(err)
		for _, d := range jobs {
			failed = append(failed, func() { d.finish(Ack{}, err) })
		}
	}
	return failed
}

// message returns the message that stores jobs in the lane. They take at most size bytes.
func (k *packer) message(jobs []*pendingPublish, size int) *nats.Msg {
	if len(jobs) == 1 {
		return jobs[0].msg(k.lane)
	}
	data := make([]byte, 0, size)
	for _, d := range jobs {
		data = job.AppendPacked(data, d.queue, d.key, d.at, d.body)
	}
	return &nats.Msg{Subject: subjects.LaneSubject(k.lane, subjects.NodePublish, subjects.PackedQueue), Data: data}
}

// reroute sends the jobs that wait to the lanes that are best now, because this one has failed.
func (k *packer) reroute() {
	now := time.Now()
	for _, d := range k.drain() {
		k.p.sendToBestLane(d, now)
	}
}

// drain empties the queue and returns the jobs that were in it.
func (k *packer) drain() []*pendingPublish {
	k.mu.Lock()
	defer k.mu.Unlock()
	jobs := k.waiting
	k.waiting, k.size = nil, 0
	return jobs
}

// msg returns the message that stores the job alone in a lane.
func (d *pendingPublish) msg(lane uint8) *nats.Msg {
	header := make(nats.Header, 3)
	if d.key != "" {
		header[subjects.HeaderMsgID] = []string{d.key}
	}
	if !d.at.IsZero() {
		header[subjects.HeaderAt] = []string{strconv.FormatInt(d.at.UnixNano(), 10)}
	}
	return &nats.Msg{Subject: subjects.LaneSubject(lane, subjects.NodePublish, d.queue), Header: header, Data: d.body}
}

// laneReply handles the lane's reply to a message.
type laneReply struct {
	packer    *packer
	jobs      []*pendingPublish
	sent      time.Time
	lastTaken uint64 // the lane's last known sequence when the message was sent: a lower one in the reply is an error
}

// Receive implements [embedded.ReplyHandler]. It finishes the jobs or tries another lane.
func (r *laneReply) Receive(m *nats.Msg) bool {
	defer r.packer.answered()
	p, lane := r.packer.p, r.packer.lane
	if m == nil || embedded.IsNoResponders(m) {
		if m == nil {
			p.noteLate(lane, r.sent)
		}
		p.state.markDown(lane, time.Now())
		for _, d := range r.jobs {
			d.maybeStored = d.maybeStored || m == nil
			p.tryNextLane(d)
		}
		return true
	}
	ack, err := embedded.ParsePubAck(m.Data)
	switch {
	case err != nil:
		for _, d := range r.jobs {
			p.handleError(d, err)
		}
	case ack.Seq <= r.lastTaken && !ack.Duplicate: // the sequence was used before: not the ledger's stream
		p.state.markMismatched(lane)
		for _, d := range r.jobs {
			p.tryNextLane(d)
		}
	default:
		p.state.markHealthy(lane)
		p.state.noteAnswer(lane, time.Since(r.sent))
		p.state.raiseLast(lane, ack.Seq)
		r.packer.awaitCallers(len(r.jobs), time.Since(r.sent))
		r.stored(job.Position{Lane: lane, Seq: ack.Seq}, ack.Duplicate)
	}
	return true
}

// stored reports that the message is stored at a position, or was there already.
func (r *laneReply) stored(at job.Position, duplicate bool) {
	p := r.packer.p
	if p.onStored != nil && !duplicate {
		records := make([]job.Record, len(r.jobs))
		for i, d := range r.jobs {
			records[i] = job.Record{Position: at, Queue: d.queue, Key: d.key, Stored: d.at, Body: d.body, Last: i == len(r.jobs)-1}
			records[i].Index = uint8(i)
		}
		p.onStored(records)
	}
	took := time.Since(r.sent)
	for i, d := range r.jobs {
		at.Index = uint8(i)
		p.recent.add(d.key, at)
		p.inFlight.answered(took)
		d.finish(Ack{Position: at, Duplicate: duplicate, Repeated: d.maybeStored}, nil)
	}
}

// recentKeys are the keys under which this node has stored jobs in the last moment, about
// [embedded.LaneWindow], and where. The ledger of this node may not have them yet. A lane
// itself knows only the keys of messages with one record.
type recentKeys struct {
	mu           crash.Mutex
	keys, before map[string]job.Position // since the last rotation, and before it
}

// add remembers where a job was stored under a key.
func (k *recentKeys) add(key string, at job.Position) {
	if key == "" {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.keys == nil {
		k.keys = make(map[string]job.Position, len(k.before))
	}
	k.keys[key] = at
}

// find returns where a job was stored under a key in the last moment.
func (k *recentKeys) find(key string) (at job.Position, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if at, ok = k.keys[key]; !ok {
		at, ok = k.before[key]
	}
	return at, ok
}

// rotate forgets the keys that were added before its last call. It must be called every
// [embedded.LaneWindow].
func (k *recentKeys) rotate() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keys, k.before = nil, k.keys
}
