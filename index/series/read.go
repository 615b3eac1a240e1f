package series

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// View is what happened in a window of time.
type View struct {
	Index uint64    // of the last entry
	At    time.Time // the ledger's time then
	Since time.Time // what happened before is not known

	Step   time.Duration
	Start  time.Time // of the first point
	Points []Point

	// Of the minutes of the window, and the one that has not ended.
	Total       Stats
	Failures    []Failures // the most frequent ones first
	OtherErrors uint64     // failures of other types
	Queues      map[string]QueueStats
	Rest        QueueStats // of queues that are not in Queues

	Happenings []Happening // of all the time, oldest first
}

// Point is what happened in one step.
type Point struct {
	Known bool // false: it is not known what happened
	Stats
}

// Failures is how often attempts failed with a type of error.
type Failures struct {
	Type  string
	Count uint64
}

// QueueStats are the statistics of a queue.
type QueueStats struct {
	Stats
	Recent Counts   // of the last minute: of six slots of ten seconds that have ended
	Ended  []uint32 // jobs that ended in each minute of a window of at most an hour, and in the present one; nil: none did
}

// maxFailureTypes is how many types of errors a view has.
const maxFailureTypes = 20

// Clone returns a copy that may be read while the series goes on.
func (s *Series) Clone() *Series {
	c := *s
	c.fine.slots, c.minutes.slots = slices.Clone(s.fine.slots), slices.Clone(s.minutes.slots)
	c.queues.byName = maps.Clone(s.queues.byName)
	for name, q := range c.queues.byName {
		c.queues.byName[name] = new(*q)
	}
	c.queues.rest = new(*s.queues.rest)
	c.queues.latest = c.queues.rest
	c.errors.byType = maps.Clone(s.errors.byType)
	for key, count := range c.errors.byType {
		c.errors.byType[key] = new(*count)
	}
	c.happenings = slices.Clip(s.happenings)
	return &c
}

// Read returns what happened in the window before until, the present time: of one queue, or of all
// if queue is "". Up to an hour, the points of all queues have ten seconds, others a minute.
func (s *Series) Read(window time.Duration, queue string, until time.Time) *View {
	v := &View{
		Index: s.index, At: time.Unix(0, s.now).UTC(), Since: time.Unix(0, s.since).UTC(), Step: time.Duration(minuteStep),
		Happenings: s.happenings,
	}
	now := max(s.now, until.UnixNano())
	if queue == "" && window <= time.Hour {
		v.Step = time.Duration(fineStep)
		s.readFine(v, window, now)
	}
	number, known := s.number(queue)
	s.readMinutes(v, window, number, queue, now)
	for i := range v.Points {
		v.Points[i].Known = v.Points[i].Known && known
	}
	return v
}

// number returns the number of a queue; known is false if it may be one of the rest.
func (s *Series) number(queue string) (number uint32, known bool) {
	if q := s.queues.byName[queue]; q != nil {
		return q.number, true
	}
	return noQueue, queue == "" || len(s.queues.byName) < maxQueues
}

// noQueue is the number of no queue.
const noQueue = math.MaxUint32

// window returns the numbers of the first slot of a window and of the one after the last. The slot
// in which now is does not belong to it.
func (r *ring) window(window time.Duration, step, now int64) (first, end int64) {
	end = now / step
	return max(end-min(int64(window)/step, int64(len(r.slots))), 0), end
}

// known reports whether it is known what happened in a slot. One that the ledger's time has not
// left is known if now is not more than a fine slot ahead of it: without entries nothing happens.
func (s *Series) known(number, step, now int64) bool {
	ends := (number + 1) * step
	return s.since > 0 && ends > s.since && (ends <= s.now || now-s.now < fineStep)
}

// readFine sets the points of a view to fine slots.
func (s *Series) readFine(v *View, window time.Duration, now int64) {
	first, end := s.fine.window(window, fineStep, now)
	v.Start = time.Unix(0, first*fineStep).UTC()
	for number := first; number < end; number++ {
		var p period
		switch {
		case number < s.fine.open && number >= s.fine.open-fineSlots:
			p.read(&reader{data: s.fine.at(number)})
		case number == s.fine.open:
			p.add(&s.open)
		}
		v.Points = append(v.Points, Point{s.known(number, fineStep, now), p.stats()})
	}
}

// readMinutes sets what a view has of minutes, and its points unless it has fine ones.
func (s *Series) readMinutes(v *View, window time.Duration, number uint32, queue string, now int64) {
	fine := len(v.Points) > 0
	first, end := s.minutes.window(window, minuteStep, now)
	if !fine {
		v.Start = time.Unix(0, first*minuteStep).UTC()
	}
	sum := &minuteSums{queues: make(map[uint32]*period), failures: make(map[uint32]uint64)}
	if window <= time.Hour {
		sum.minutes, sum.ended = int(end-first)+1, make(map[uint32][]uint32)
	}
	current := s.currentMinute()
	for minute := first; minute <= end; minute++ {
		sum.total, sum.one, sum.queue, sum.minute = nil, nil, number, int(minute-first)
		var point period
		if !fine && queue == "" {
			sum.total = &point
		} else if !fine {
			sum.one = &point
		}
		switch {
		case minute < s.minutes.open && minute >= s.minutes.open-minuteSlots:
			if b := s.minutes.at(minute); b != nil {
				readMinute(&reader{data: b}, sum)
			}
		case minute == s.minutes.open:
			readMinute(&reader{data: current}, sum)
		}
		if !fine && minute < end {
			v.Points = append(v.Points, Point{s.known(minute, minuteStep, now), point.stats()})
		}
	}
	s.setSums(v, sum, queue)
	s.setFailures(v, sum, number, queue)
}

// currentMinute returns the minute that has not ended as if it did.
func (s *Series) currentMinute() []byte {
	all := s.minute
	all.addAll(&s.open)
	return s.errors.append(s.queues.append(all.append(nil, 0)))
}

// minuteSums adds up minutes. Each of its parts may be nil.
type minuteSums struct {
	sum, other period
	others     uint64
	queues     map[uint32]*period
	failures   map[uint32]uint64

	ended           map[uint32][]uint32 // by queue and minute; nil: not needed
	minute, minutes int                 // the minute that is read, and how many there are

	total *period // of all queues in the minute that is read; nil: not needed
	one   *period // of the queue with this number, likewise
	queue uint32
}

// readMinute reads an encoded minute. sum may be nil: then it only checks that it can be read.
func readMinute(r *reader, sum *minuteSums) {
	all := r.fork()
	discard := new(period)
	discard.read(r)
	if sum != nil {
		sum.sum.read(all.fork())
		if sum.total != nil {
			sum.total.read(all.fork())
		}
	}
	for range r.count(maxQueues + 1) {
		number := uint32(r.uvarint())
		into := discard
		if sum != nil {
			if into = sum.queues[number]; into == nil {
				into = new(period)
				sum.queues[number] = into
			}
			if sum.one != nil && number == sum.queue {
				sum.one.read(r.fork())
			}
		}
		before := into.ended()
		into.read(r)
		if sum != nil {
			sum.addEnded(number, into.ended()-before)
		}
	}
	for range r.count(maxFailures) {
		number, count := uint32(r.uvarint()), r.uvarint()
		if sum != nil {
			sum.failures[number] += count
		}
	}
	if others := r.uvarint(); sum != nil {
		sum.others += others
	}
}

// addEnded adds jobs of a queue that ended in the minute that is read.
func (m *minuteSums) addEnded(queue uint32, n uint64) {
	if m.ended == nil || n == 0 {
		return
	}
	if m.ended[queue] == nil {
		m.ended[queue] = make([]uint32, m.minutes)
	}
	m.ended[queue][m.minute] += uint32(n)
}

// ended returns how many jobs ended.
func (p *period) ended() uint64 {
	return uint64(p.counts[Completed] + p.counts[Failed] + p.counts[Cancelled] + p.counts[Expired])
}

// setSums sets the sums of a view.
func (s *Series) setSums(v *View, sum *minuteSums, queue string) {
	v.Total = sum.sum.stats()
	v.Queues = make(map[string]QueueStats, len(s.queues.byName))
	for name, q := range s.queues.byName {
		stats := QueueStats{Recent: q.recentCounts(), Ended: sum.ended[q.number]}
		if p := sum.queues[q.number]; p != nil {
			stats.Stats = p.stats()
			delete(sum.queues, q.number)
		}
		v.Queues[name] = stats
	}
	var rest period
	for _, p := range sum.queues { // the rest, and those that made place for others
		rest.addAll(p)
	}
	v.Rest = QueueStats{Stats: rest.stats(), Recent: s.queues.rest.recentCounts()}
	if queue != "" {
		v.Total = v.Queues[queue].Stats
	}
}

// setFailures sets the types of errors of a view.
func (s *Series) setFailures(v *View, sum *minuteSums, number uint32, queue string) {
	byType := make(map[string]uint64)
	for _, c := range s.errors.byType {
		count := sum.failures[c.number]
		if delete(sum.failures, c.number); queue == "" || c.queue == number {
			byType[c.name] += count
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byType)) {
		if byType[name] > 0 {
			v.Failures = append(v.Failures, Failures{name, byType[name]})
		}
	}
	slices.SortStableFunc(v.Failures, func(a, b Failures) int { return cmp.Compare(b.Count, a.Count) })
	v.OtherErrors = v.Total.Counts[Failed] + v.Total.Counts[Retried]
	if len(v.Failures) > maxFailureTypes {
		v.Failures = v.Failures[:maxFailureTypes]
	}
	for _, f := range v.Failures {
		v.OtherErrors -= min(f.Count, v.OtherErrors)
	}
}

// addAll adds another period.
func (p *period) addAll(other *period) {
	for kind, count := range other.counts {
		p.counts[kind] += count
	}
	for cell := range cells {
		p.wait[cell] += other.wait[cell]
		p.run[cell] += other.run[cell]
	}
}

// recentCounts returns what happened in the last fine slots.
func (q *queueSlot) recentCounts() (counts Counts) {
	for i := range q.recent {
		for kind, count := range q.recent[i] {
			counts[kind] += uint64(count)
		}
	}
	return counts
}
