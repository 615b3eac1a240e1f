package lean

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

var (
	jobsFlag = flag.Int("jobs", 20_000, "how many jobs TestYear enqueues")
	daysFlag = flag.Int("days", 60, "how many days TestYear lasts; 365 is a year of months of 30 days")
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(m.Run())
}

// The course of the year.
const (
	sessionsPerDay = 4
	batch          = 128
	plainQueues    = 20
)

// year is one run of TestYear.
type year struct {
	*testing.T
	mu       sync.Mutex // guards ran and doubled
	yard     *Yard
	started  time.Time
	month    int            // days; a twelfth of the run
	jobs     int            // enqueued so far
	ran      []byte         // a bit for each job that has run with success
	succeed  int            // jobs that are to run with success, at most
	doubled  int            // jobs that ran twice
	usage    []usage        // of each month
	paused   bool           // the queue "paused"
	replaced int            // members
	kinds    map[string]int // jobs by kind
}

// usage is what the yard takes at the end of a month.
type usage struct {
	heap, snapshot int64 // bytes
	records        int
	keys, queues   int
	open           int // jobs that wait
}

// TestYear runs a yard for a year and checks that it takes no more at its end than in its
// second month: memory, the ledger's snapshot, records and keys. It also checks that no
// job is lost or runs twice, and that the members' ledgers are equal.
func TestYear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := &year{T: t, started: time.Now(), month: *daysFlag / 12, ran: make([]byte, *jobsFlag/8+1), kinds: map[string]int{}}
		y.yard = New(max(2<<20, uint64(*jobsFlag)))
		y.yard.Work = y.work
		y.yard.Offers = y.offers
		for day := range *daysFlag {
			for session := range sessionsPerDay {
				at := y.started.Add(time.Duration(day)*24*time.Hour + time.Duration(session)*24*time.Hour/sessionsPerDay)
				time.Sleep(time.Until(at))
				if err := y.session(day, session); err != nil {
					t.Fatalf("day %d, session %d, after %d jobs: %v", day, session, y.jobs, err)
				}
			}
			if day%y.month == y.month-1 {
				y.measure()
			}
		}
		y.checkLevel()
		y.checkEnded()
	})
}

// session is one session of a day.
func (y *year) session(day, number int) error {
	if err := y.yard.Begin(); err != nil {
		return err
	}
	defer y.yard.End()
	if err := y.operate(day, number); err != nil {
		return err
	}
	todo := *jobsFlag*(day*sessionsPerDay+number+1)/(*daysFlag*sessionsPerDay) - y.jobs
	for todo > 0 {
		n := min(todo, batch)
		todo -= n
		if err := y.enqueue(day, n); err != nil {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
	waits := func(queue string) bool { return y.paused && queue == "paused" }
	if err := y.yard.Await("all jobs", 5*time.Minute, func() bool { return y.yard.Idle(waits) }); err != nil {
		return err
	}
	if number == sessionsPerDay-1 {
		time.Sleep(40 * time.Second) // lanes are reclaimed, bodies are freed
	} else {
		time.Sleep(2 * time.Second)
	}
	return y.yard.Await("all jobs", 5*time.Minute, func() bool { return y.yard.Idle(waits) })
}

// operate does what operators do: at first cron entries, once a month another member,
// pauses of a queue, and queues for one week.
func (y *year) operate(day, session int) error {
	var commands []ledger.Command
	if day == 0 && session == 0 {
		if err := y.yard.SetMembers(); err != nil {
			return err
		}
		for name, schedule := range map[string]string{"hourly": "0 * * * *", "daily": "30 3 * * *", "monthly": "0 0 1 * *"} {
			commands = append(commands, &ledger.SetCron{Cron: ledger.Cron{Name: name, Schedule: schedule, Queue: "q0", Body: []byte(`{"params":{}}`), CatchUp: name != "hourly"}})
		}
		commands = append(commands, &ledger.AddQueue{ID: job.ID{1}, Name: "paused"}, &ledger.AddQueue{ID: job.ID{2}, Name: "narrow", Config: job.QueueConfig{Limit: 7}})
	}
	if session == 1 && (day%7 == 0) != y.paused {
		y.paused = !y.paused
		commands = append(commands, &ledger.PauseQueue{Name: "paused", Paused: y.paused})
	}
	exists := false
	y.yard.View(func(l *ledger.Ledger) { _, exists = l.Queue(dayQueue(day - 7)) })
	if session == 2 && exists {
		commands = append(commands, &ledger.RemoveQueue{Name: dayQueue(day - 7)})
	}
	for _, c := range commands {
		if _, err := y.yard.Propose(c); err != nil {
			return fmt.Errorf("%T: %w", c, err)
		}
	}
	if session == 3 && day%y.month == y.month/2 {
		y.replaced++
		return y.yard.ReplaceMember(fmt.Sprintf("n%d", Size+y.replaced))
	}
	return nil
}

func dayQueue(day int) string { return fmt.Sprintf("day-%d", day) }

// enqueue enqueues n jobs of all kinds.
func (y *year) enqueue(day, n int) error {
	records := make([]job.Record, n)
	records[0].Lane = uint8(y.jobs / batch % Size)
	for i := range records {
		y.fill(&records[i], day)
	}
	return y.yard.Enqueue(records)
}

// fill makes r a record of the next job, whose number determines its kind.
func (y *year) fill(r *job.Record, day int) {
	number := y.jobs
	y.jobs++
	r.Queue = fmt.Sprintf("q%d", number%plainQueues)
	if number%5 == 0 {
		r.Key = fmt.Sprintf("key-%d", number)
	}
	more, kind := "", "plain"
	switch k := number * 7919 % 1000; {
	case k < 10:
		kind, more = "fails", `,"function":"fail"`
	case k < 20:
		hours := 1 + int(uint32(number)*2654435761>>8)%(24*y.month)
		kind, more = "delayed by hours to a month", fmt.Sprintf(`,"delay_ms":%d`, hours*int(time.Hour/time.Millisecond))
	case k < 22:
		kind, more = "delayed by a month", fmt.Sprintf(`,"delay_ms":%d`, y.month*24*int(time.Hour/time.Millisecond))
	case k < 32:
		kind, more = "with a unique key", fmt.Sprintf(`,"unique_key":"u%d","unique_ttl_ms":3600000`, number)
	case k < 42:
		kind, more = "with a unique key until its end", fmt.Sprintf(`,"unique_key":"e%d","unique_until":"end"`, number)
	case k < 47:
		kind, more = "with a debounce key", fmt.Sprintf(`,"debounce_key":"d%d","debounce_ms":1000`, number)
	case k < 52:
		kind, more = "with a rate limit key", fmt.Sprintf(`,"rate_limit_key":"r%d","rate_limit_ms":7200000`, number)
	case k < 62:
		kind, r.Queue = "of the queue that is paused once a week", "paused"
	case k < 72:
		kind, r.Queue = "of a queue with a limit", "narrow"
	case k < 77:
		kind, r.Queue = "of a queue that exists for a week", dayQueue(day)
		more = `,"function":"` + Runner + `#week"`
	case k < 87:
		kind, more = "with a large result", `,"function":"large"`
	case k < 88:
		kind = "with a large body"
	case k < 300:
		kind, more = "for a runner", `,"function":"`+Runner+`#go"`
	case k < 400:
		kind, more = "with a priority", fmt.Sprintf(`,"priority":%d`, number%10)
	case k < 410:
		kind, more = "for a runner that does not exist", fmt.Sprintf(`,"function":"r%d#f%d"`, number, number)
	case k < 420:
		kind, more = "with a function name of its own", fmt.Sprintf(`,"function":"f%d"`, number)
	}
	if kind != "fails" && kind != "for a runner that does not exist" {
		y.succeed++
	}
	y.kinds[kind]++
	r.Body = fmt.Appendf(nil, `{"params":{"n":%d}%s}`, number, more)
	if kind == "with a large body" {
		r.Key = fmt.Sprintf("large-%d", number)
		id, _ := job.KeyID(r.Queue, r.Key)
		r.Body = y.yard.Streams.StoreLarge(id, r.Body)
	}
}

var largeResult = bytes.Repeat([]byte("1"), 2*job.MaxInlineResult)

// work runs an attempt of a job.
func (y *year) work(a *job.Assignment, spec *job.Spec) job.Outcome {
	if spec.Function == "fail" {
		return job.Outcome{Status: job.Error, Fault: &job.Fault{Message: "it failed", Type: "year"}}
	}
	text := bytes.TrimSuffix(bytes.TrimPrefix(spec.Params, []byte(`{"n":`)), []byte("}"))
	if number, err := strconv.Atoi(string(text)); err == nil { // else a job of a tick
		y.mu.Lock()
		bit := byte(1) << (number % 8)
		if y.ran[number/8]&bit != 0 {
			y.doubled++
		}
		y.ran[number/8] |= bit
		y.mu.Unlock()
	}
	if spec.Function == "large" {
		return job.Outcome{Status: job.Success, Result: job.Value{Data: largeResult}}
	}
	return job.Outcome{Status: job.Success, Result: job.Value{Data: []byte(`"done"`)}}
}

// offers returns the capacity of a member.
func (y *year) offers(node string) (all []job.Offer) {
	for q := range plainQueues {
		all = append(all, job.Offer{Kind: job.Overhop, Key: fmt.Sprintf("q%d", q), Worker: node + "-w", Free: 64})
	}
	return append(all,
		job.Offer{Kind: job.Overhop, Key: "paused", Worker: node + "-w", Free: 64},
		job.Offer{Kind: job.Overhop, Key: "narrow", Worker: node + "-w", Free: 64},
		job.Offer{Kind: job.RRQ, Key: Runner, Worker: Runner + "/4001", Free: 256})
}

// measure records what the yard takes at the end of a month.
func (y *year) measure() {
	if err := y.yard.CompareLedgers(); err != nil {
		y.Error(err)
	}
	u := usage{}
	var err error
	if u.snapshot, err = y.yard.SnapshotSize(); err != nil {
		y.Fatal(err)
	}
	u.records, _ = y.yard.Streams.Usage()
	y.yard.View(func(l *ledger.Ledger) {
		u.keys = l.HeldKeys()
		for _, q := range l.Queues() {
			u.queues++
			u.open += q.Counts[job.Waiting] + q.Counts[job.Delayed] + q.Counts[job.Active]
		}
	})
	debug.FreeOSMemory()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	u.heap = int64(stats.HeapAlloc)
	y.usage = append(y.usage, u)
	y.Logf("month %2d: %9d jobs, heap %7.2f MiB, snapshot %7.2f MiB, %6d jobs open, %6d records stored, %4d keys held, %d queues",
		len(y.usage), y.jobs, float64(u.heap)/(1<<20), float64(u.snapshot)/(1<<20), u.open, u.records, u.keys, u.queues)
}

// checkLevel checks that the last month takes what the second one did.
func (y *year) checkLevel() {
	second, last := y.usage[1], y.usage[len(y.usage)-1]
	for _, c := range []struct {
		what         string
		before, then int64
		slack        int64
	}{
		{"bytes of heap", second.heap, last.heap, 4 << 20},
		{"bytes of a snapshot", second.snapshot, last.snapshot, 64 << 10},
		{"open jobs", int64(second.open), int64(last.open), 64},
		{"stored records", int64(second.records), int64(last.records), 2000},
		{"held keys", int64(second.keys), int64(last.keys), 64},
		{"queues", int64(second.queues), int64(last.queues), 2},
	} {
		if most := c.before + c.before/10 + c.slack; c.then > most {
			y.Errorf("%d %s in the last month, %d in the second", c.then, c.what, c.before)
		}
	}
}

// checkEnded checks that every job has run once, apart from those that wait.
func (y *year) checkEnded() {
	runs := 0
	for number := range y.jobs {
		if y.ran[number/8]&(1<<(number%8)) != 0 {
			runs++
		}
	}
	var delivered uint64
	open, ticks := 0, 0
	y.yard.View(func(l *ledger.Ledger) {
		delivered = l.Snapshot(ledger.SnapshotContext{}).Backlog.Delivered
		for _, q := range l.Queues() {
			open += q.Counts[job.Waiting] + q.Counts[job.Delayed] + q.Counts[job.Active]
		}
		l.Crons("", func(c ledger.CronView) bool { ticks += int(c.Fired); return true })
	})
	if runs+open != y.succeed || y.doubled > 0 || int(delivered) != runs+ticks {
		y.Errorf("%d jobs ran and %d wait, of %d; %d ran twice; %d dispatches are delivered, and %d jobs of ticks", runs, open, y.succeed, y.doubled, delivered, ticks)
	}
	y.Logf("%d jobs, %v; %d jobs of ticks; %d members replaced; %d records purged, %d relocated; %d entries",
		y.jobs, y.kinds, ticks, y.replaced, y.yard.Streams.Purged, y.yard.Streams.Relocated, y.yard.Index())
}
