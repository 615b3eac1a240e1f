package index

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/index/query"
	"github.com/yardmaster-dev/yardmaster/index/segment"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

var epoch = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

// replica is a ledger with an index of it, and what every job must be found as.
type replica struct {
	t      testing.TB
	r      *rand.Rand
	dir    string
	index  *Index
	stop   func()
	mu     sync.RWMutex
	ledger *ledger.Ledger
	next   chan struct{}

	at        ledger.Stamp
	entries   []entry
	snapshots map[uint64][]byte
	ids       []job.ID
	labels    map[job.ID]job.Labels
	want      map[ledger.JobPlace]*job.Document
	versions  map[ledger.JobPlace][]version // of each job, in the order of entries; nil: they are not noted
	stalled   atomic.Pointer[chan struct{}] // if set, the index takes no changes until it is closed
	lane      uint64

	low       atomic.Bool  // the disk has little free space
	space     atomic.Int64 // bytes that more files may have
	history   *memoryHistory
	lastEvent uint64 // that history has
}

type entry struct {
	at       ledger.Stamp
	commands []ledger.Command
}

func newReplica(t testing.TB, seed uint64) *replica {
	y := &replica{
		t: t, r: rand.New(rand.NewPCG(seed, 1)), dir: t.TempDir(), ledger: ledger.New(), next: make(chan struct{}),
		at: ledger.Stamp{Term: 1, At: epoch}, snapshots: make(map[uint64][]byte),
		history: new(memoryHistory), labels: make(map[job.ID]job.Labels), want: make(map[ledger.JobPlace]*job.Document),
	}
	y.space.Store(math.MaxInt64)
	y.start()
	y.apply(&ledger.Lead{Owner: "n1", Until: epoch.Add(10 * time.Second), Level: ledger.Level})
	y.apply(&ledger.Bootstrap{Secret: []byte{7}, Lanes: []string{"L0"}})
	y.apply(&ledger.SetRetention{Settings: []job.RetentionSetting{{Key: job.RetentionKey{Kept: job.KeptFinished, Bound: job.BoundCount}, Value: 30}}})
	t.Cleanup(func() { y.stop() })
	return y
}

// start opens the index, and lets it read the ledger.
func (y *replica) start() {
	x := New(Config{Node: "n1", Dir: y.dir, Yard: "y", History: y.history, LowSpace: func(more int64) bool { return y.low.Load() || more > y.space.Load() }}, slog.New(slog.NewTextHandler(y.t.Output(), nil)))
	x.flushAt, x.flushLiveAt, x.maintainEvery = 40, 20, 5*time.Millisecond
	y.index = x
	y.ledger.RecordChanges(x.Changes())
	x.Follow(y)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- x.Run(ctx) }()
	y.stop = func() {
		cancel()
		if err := <-done; err != nil {
			y.t.Error(err)
		}
		x.Close()
		y.stop = func() {}
	}
}

func (y *replica) View(fn func(*ledger.Ledger)) {
	y.mu.RLock()
	defer y.mu.RUnlock()
	fn(y.ledger)
}

func (y *replica) Applied() (uint64, <-chan struct{}) {
	if stalled := y.stalled.Load(); stalled != nil {
		<-*stalled
	}
	y.mu.RLock()
	defer y.mu.RUnlock()
	return y.ledger.Index(), y.next
}

func (y *replica) applyEntry(e entry) []ledger.Result {
	y.mu.Lock()
	defer y.mu.Unlock()
	results := y.ledger.Apply(e.at, e.commands)
	close(y.next)
	y.next = make(chan struct{})
	return results
}

// apply applies an entry, and notes what has become of the jobs.
func (y *replica) apply(commands ...ledger.Command) {
	y.applyAt(y.at.At.Add(time.Duration(y.r.IntN(500_000_000))), commands...)
}

func (y *replica) applyAt(now time.Time, commands ...ledger.Command) {
	y.at.Index++
	y.at.At = now
	y.at.Epoch = y.ledger.Authority().Epoch
	e := entry{y.at, append(commands, &ledger.MarkPublished{Events: y.ledger.LastEvent(), Results: y.ledger.LastResult(), DeadLetters: y.ledger.LastDeadLetter()})}
	y.entries = append(y.entries, e)
	y.applyEntry(e)
	y.publish()
	for at, d := range y.want {
		if _, known := y.ledger.Known(d.ID); known && y.ledger.Removed(d.ID) {
			delete(y.want, at)
		}
	}
	for _, id := range y.ids {
		d, ok := y.ledger.Document(id)
		if !ok {
			continue
		}
		l := y.labels[id]
		d.SetLabels(l)
		y.want[placeOf(&d)] = &d
	}
	if y.versions != nil {
		y.noteVersions()
	}
}

func (y *replica) pick(texts ...string) string { return texts[y.r.IntN(len(texts))] }

// ingest ingests some jobs.
func (y *replica) ingest() {
	c := &ledger.Ingest{Identity: "L0", From: y.lane, CreateQueues: true}
	for range 1 + y.r.IntN(8) {
		y.lane++
		id := job.ID{0: byte(y.r.IntN(4)), 13: 1, 14: byte(len(y.ids) >> 8), 15: byte(len(y.ids))}
		y.ids = append(y.ids, id)
		l := job.Labels{Key: y.pick("", "", "k1", "order-1", "order-22")}
		if y.r.IntN(2) == 0 {
			l.Tags = []string{y.pick("eu", "us", "big one")}
		}
		if y.r.IntN(2) == 0 {
			l.Meta = []job.Label{{Name: "customer", Value: y.pick("acme", "ac", "zeta")}}
		}
		if y.r.IntN(3) == 0 {
			l.Params = []job.Label{{Name: "customer", Value: y.pick("acme", "b")}}
		}
		y.labels[id] = l
		j := job.Job{
			ID: id, Queue: y.pick("mail", "bulk", "main"), Function: y.pick("send", "resize", "py#send"), Priority: uint8(y.r.IntN(10)), Position: job.Position{Seq: y.lane},
			Accepted: y.at.At.Add(-time.Duration(y.r.IntN(3)) * time.Second), LimitKey: y.pick("", "acme", "zeta"), Labels: l.Encode(),
		}
		if y.r.IntN(5) == 0 {
			j.RunAt = y.at.At.Add(time.Duration(y.r.IntN(60)) * time.Second)
		}
		c.Jobs = append(c.Jobs, j)
	}
	c.To = y.lane
	y.apply(c)
}

// step changes something.
func (y *replica) step() {
	if len(y.ids) == 0 || y.r.IntN(3) == 0 {
		y.ingest()
		return
	}
	place, settle := &ledger.Place{}, &ledger.Settle{}
	var others []ledger.Command
	for range 1 + y.r.IntN(8) {
		id := y.ids[max(0, len(y.ids)-1-y.r.IntN(60))]
		view, _, ok := y.ledger.Find(id)
		switch {
		case !ok:
		case view.State == job.Waiting:
			place.Placements = append(place.Placements, ledger.Placement{Job: id, N: view.Dispatches, Node: y.pick("n1", "n2"), Incarnation: 1, Channel: y.pick("overhop/1", "rrq/p/1")})
			if y.r.IntN(2) == 0 {
				continue
			}
			fallthrough
		case view.State == job.Active:
			s := ledger.Settlement{Job: id, N: view.Dispatches, Next: job.Next(1 + y.r.IntN(4)), Reason: y.pick("connection refused", "mailbox full")}
			if s.Next == job.NextRetry && y.r.IntN(2) == 0 {
				s.At = y.at.At.Add(time.Duration(y.r.IntN(20)) * time.Second)
			}
			if s.Next != job.NextDone {
				s.Fault = &job.Fault{Message: s.Reason, Type: y.pick("Timeout", "SMTPError"), Code: y.pick("", "E1")}
			}
			settle.Settlements = append(settle.Settlements, s)
		}
		switch y.r.IntN(12) {
		case 0:
			others = append(others, &ledger.RemoveJob{Job: id})
		case 1:
			others = append(others, &ledger.RetryJob{Job: id})
		case 2:
			others = append(others, &ledger.CancelJob{Job: id, Reason: "asked", Asked: ledger.Asked{By: ledger.Actor{Name: "ann", Door: ledger.DoorCLI, Reason: "asked"}}})
		case 3:
			others = append(others, &ledger.ChangeJob{Job: id, Priority: new(uint8(y.r.IntN(10)))})
		}
	}
	y.apply(append([]ledger.Command{place, settle}, others...)...)
}

// restart opens the index again, with a ledger from an earlier snapshot to which the later entries are
// applied again.
func (y *replica) restart(snapshot uint64) {
	y.load(snapshot)
	y.replay(snapshot)
}

// load opens the index again, with the ledger of a snapshot.
func (y *replica) load(snapshot uint64) {
	l := ledger.New()
	if data := y.snapshots[snapshot]; data != nil {
		var err error
		if l, err = ledger.Decode(bytes.NewReader(data)); err != nil {
			y.t.Fatal(err)
		}
	}
	y.ledger = l
	y.start()
}

// replay applies the entries after a snapshot again.
func (y *replica) replay(snapshot uint64) {
	for _, e := range y.entries {
		if e.at.Index > snapshot {
			y.applyEntry(e)
			if y.r.IntN(10) == 0 {
				y.find("", nil, 1)
			}
		}
	}
}

func (y *replica) snapshot() {
	var b bytes.Buffer
	if err := y.ledger.Encode(&b); err != nil {
		y.t.Fatal(err)
	}
	y.snapshots[y.ledger.Index()] = b.Bytes()
}

// newest returns the newest snapshot that is not after an entry.
func (y *replica) newest(index uint64) (snapshot uint64) {
	for at := range y.snapshots {
		if at <= index {
			snapshot = max(snapshot, at)
		}
	}
	return snapshot
}

func (y *replica) randomQuery() string {
	term := func() string {
		text := y.pick("queue:mail", "queue:m*", "state:failed", "state:waiting,delayed", "state:active", "state:completed", "function:send", "key:order-1", "key:order*",
			"tag:eu", `tag:"big one"`, "customer:acme", "meta.customer:ac*", "params.customer:b", "error:timeout", "error:*", "text:mailbox", "refused", "node:n1", "worker:rrq/*",
			"attempts:>1", "dispatches:2..3", "priority:>5", "took:>1s", "limit_key:acme", "started:<"+epoch.Add(time.Minute).Format(time.RFC3339), "since:"+epoch.Add(time.Minute).Format(time.RFC3339),
			"created:>"+epoch.Add(30*time.Second).Format(time.RFC3339), "id:0*", "zeta")
		if y.r.IntN(4) == 0 {
			text = "-" + text
		}
		return text
	}
	var text []string
	for range y.r.IntN(4) {
		text = append(text, term())
	}
	if y.r.IntN(4) == 0 {
		text = append(text, "("+term()+" or "+term()+" "+term()+")")
	}
	if y.r.IntN(2) == 0 {
		text = append(text, "sort:"+y.pick("created", "-ended", "ended"))
	}
	return strings.Join(text, " ")
}

// find returns all jobs that a query finds, in pages.
func (y *replica) find(text string, _ *segment.Cursor, limit int) (*query.Query, []*job.Document) {
	q, err := query.Parse(text, query.Options{Now: epoch.Add(time.Hour)})
	if err != nil {
		y.t.Fatalf("%q: %v", text, err)
	}
	var found []*job.Document
	for after := (*segment.Cursor)(nil); ; {
		page, err := y.index.Find(context.Background(), q, after, limit)
		if err != nil {
			y.t.Fatalf("%q: %v", text, err)
		}
		found = append(found, page.Documents...)
		q.Sort = page.Sort
		if after = page.Next; after == nil {
			return q, found
		}
	}
}

// check compares what random queries find with a scan of the jobs.
func (y *replica) check(queries int) {
	y.t.Helper()
	for y.index.Status().Index < y.ledger.Index() {
		y.index.refresh(context.Background())
	}
	for range queries {
		text := y.randomQuery()
		q, found := y.find(text, nil, 1+y.r.IntN(20))
		var want []*job.Document
		for _, d := range y.want {
			isTooOld := d.State.Ended() && d.Ended.UnixNano() < y.index.oldestEnd()
			if q.Match(d) && !isTooOld {
				want = append(want, d)
			}
		}
		slices.SortFunc(want, func(a, b *job.Document) int {
			order := cmp.Or(cmp.Compare(q.Sort.Value(a), q.Sort.Value(b)), bytes.Compare(a.ID[:], b.ID[:]))
			if q.Sort.Oldest {
				return order
			}
			return -order
		})
		if diff := gocmp.Diff(want, found, cmpopts.EquateEmpty()); diff != "" {
			y.t.Fatalf("%q (-scan +index):\n%s", text, diff)
		}
	}
}

// TestIndex compares queries with a scan while jobs come, run, end, and are retried and removed, in
// documents of memory and segments, over restarts.
func TestIndex(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			y := newReplica(t, seed)
			for range 8 {
				for range 10 + y.r.IntN(10) {
					y.step()
				}
				y.check(8)
				switch y.r.IntN(4) {
				case 0: // a crash: what was not synced may be missing
					y.index.Sync(y.ledger.Index())
					y.snapshot()
				case 1:
					y.stop()
					y.restart(y.newest(y.at.Index))
					y.check(8)
				case 2:
					y.index.Sync(y.ledger.Index())
					y.snapshot()
					for range 10 {
						y.step()
					}
					y.check(3)
					s := y.index.spool
					y.stop()
					y.cutSpool(s)
					y.restart(y.newest(y.at.Index - 10))
					y.check(8)
				}
			}
			if s := y.index.Status(); s.Index != y.ledger.Index() || s.Failure != "" || s.Scanning {
				t.Errorf("the index is at %+v, the ledger at %d", s, y.ledger.Index())
			}
		})
	}
}

// cutSpool cuts what was not synced of a spool anywhere, as a power loss may.
func (y *replica) cutSpool(s *spool) {
	if s.written > s.durable {
		if err := os.Truncate(s.file.Name(), s.durable+y.r.Int64N(s.written-s.durable)); err != nil {
			y.t.Fatal(err)
		}
	}
}

// TestIndex_Advice checks that a query with a label which no job has is answered with an advice, and one with a
// label that jobs have without.
func TestIndex_Advice(t *testing.T) {
	y := newReplica(t, 3)
	for range 60 {
		y.step()
	}
	for text, want := range map[string]string{
		"custmer:acme":    "custmer:acme: no job has this label; did you mean customer?",
		"customer:nobody": "", // jobs have the label, and no queue declares it now
		"customer:acme":   "", "state:failed": "",
	} {
		found, err := y.index.HandleFind(t.Context(), &api.JobFindRequest{Query: text})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(found.Advice, " "); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
		found, err = y.index.HandleFind(t.Context(), &api.JobFindRequest{Query: "params." + text})
		if strings.HasPrefix(text, "customer") && err != nil {
			t.Errorf("params.%s: %v %v", text, found, err)
		}
	}
}

// TestIndex_LedgerBehind checks what an index finds whose ledger has not applied again what the index has.
func TestIndex_LedgerBehind(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			y := newReplica(t, 400+seed)
			for step := range 40 {
				y.step()
				y.check(0) // it has documents of jobs that end later
				if step == 20 {
					y.snapshot()
				}
			}
			y.stop()
			snapshot := y.newest(y.at.Index)
			y.load(snapshot)
			if s := y.index.Status(); s.Ahead != y.at.Index-snapshot {
				t.Errorf("the index is %d entries ahead, want %d", s.Ahead, y.at.Index-snapshot)
			}
			_, err := y.index.FindJobs(t.Context(), &query.Query{}, ledger.JobPlace{}, 1)
			if unavailable, ok := errors.AsType[*job.UnavailableError](err); !ok || !strings.Contains(unavailable.Reason, "needs a majority") {
				t.Errorf("error %v, want one that says what the index lacks", err)
			}
			found := make(map[ledger.JobPlace]*job.Document)
			for _, text := range []string{"state:completed,failed,cancelled,expired", "-state:completed,failed,cancelled,expired"} {
				_, docs := y.find(text, nil, 10)
				for _, d := range docs {
					if at := placeOf(d); found[at] != nil {
						t.Errorf("job %s is found as %s and %s", at.ID, found[at].State, d.State)
					} else {
						found[at] = d
					}
				}
			}
			for at, want := range y.want {
				if diff := gocmp.Diff(want, found[at]); want.State.Ended() && diff != "" {
					t.Errorf("job %s (-scan +index):\n%s", at.ID, diff)
				}
			}
			y.replay(snapshot)
			y.check(20)
			if s := y.index.Status(); s.Ahead != 0 {
				t.Errorf("at last, the index is %d entries ahead", s.Ahead)
			}
		})
	}
}
