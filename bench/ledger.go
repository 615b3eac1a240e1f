package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

// The ledger alone: no disk, no network, no other process.
const (
	million   = 1_000_000
	batch     = 64      // jobs in an entry
	appliedBy = 200_000 // jobs that one round takes through their lives
)

// book is a ledger and the time of its last entry.
type book struct {
	*ledger.Ledger
	stamp ledger.Stamp
	ids   *rand.ChaCha8
	queue []job.ID // that wait, oldest first
	seq   uint64
}

// newBook makes a ledger with n waiting jobs.
func newBook(n int) (*book, error) {
	b := &book{Ledger: ledger.New(), ids: rand.NewChaCha8([32]byte{1})}
	b.stamp = ledger.Stamp{Index: 1, Term: 1, At: time.Unix(1_750_000_000, 0).UTC()}
	lead := &ledger.Lead{Owner: "n1", Until: b.stamp.At.Add(time.Hour)}
	if err := refused(b.Apply(b.stamp, []ledger.Command{lead})); err != nil {
		return nil, err
	}
	b.stamp.Epoch = b.Authority().Epoch
	found := &ledger.Found{Secret: make([]byte, 32), Lanes: []string{"L0"}}
	if err := b.entry(found); err != nil {
		return nil, err
	}
	for b.seq < uint64(n) {
		if err := b.entry(b.fold(min(1000, n-int(b.seq)))); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// entry applies commands, and forgets what is to be told.
func (b *book) entry(commands ...ledger.Command) error {
	b.stamp.Index++
	if err := refused(b.Apply(b.stamp, commands)); err != nil {
		return err
	}
	b.stamp.Index++
	return refused(b.Apply(b.stamp, []ledger.Command{&ledger.Told{Events: b.LastEvent(), Results: b.LastResult()}}))
}

func refused(results []ledger.Result) error {
	for _, r := range results {
		if r.Err != nil {
			return r.Err
		}
	}
	return nil
}

// fold takes n new jobs in.
func (b *book) fold(n int) *ledger.Fold {
	f := &ledger.Fold{Identity: "L0", From: b.seq, To: b.seq + uint64(n), CreateQueues: true, Jobs: make([]job.Job, n)}
	for i := range f.Jobs {
		b.seq++
		var id job.ID
		binary.LittleEndian.PutUint64(id[:8], b.ids.Uint64())
		binary.LittleEndian.PutUint64(id[8:], b.ids.Uint64())
		f.Jobs[i] = job.Job{
			ID: id, Queue: "bench", Position: job.Position{Seq: b.seq}, Priority: job.DefaultPriority,
			Accepted: b.stamp.At.Add(time.Duration(b.seq) * 50 * time.Microsecond),
		}
		b.queue = append(b.queue, id)
	}
	return f
}

// lives makes an entry as a busy yard writes it: new jobs come in, as many
// start, and as many end.
func (b *book) lives() []ledger.Command {
	f := b.fold(batch)
	place, settle := &ledger.Place{}, &ledger.Settle{}
	for _, id := range b.queue[:batch] {
		place.Placements = append(place.Placements, ledger.Placement{Job: id, N: 1, Node: "n1", Incarnation: 1, Channel: "overhop/w1"})
		settle.Ends = append(settle.Ends, ledger.End{Job: id, N: 1, Next: job.Done})
	}
	b.queue = b.queue[batch:]
	return []ledger.Command{f, place, settle}
}

// measureApply takes jobs through fold, place and settle while others wait: ns
// for each of the three, the contract's commands of one job.
func measureApply(ctx context.Context, waiting int) (round, error) {
	b, err := newBook(waiting)
	if err != nil {
		return round{}, err
	}
	var entries [][]ledger.Command
	for n := 0; n < appliedBy; n += batch {
		entries = append(entries, b.lives())
	}
	runtime.GC()
	began := time.Now()
	for _, e := range entries {
		if ctx.Err() != nil {
			return round{}, ctx.Err()
		}
		b.stamp.At = b.stamp.At.Add(5 * time.Millisecond)
		if err := b.entry(e...); err != nil {
			return round{}, err
		}
	}
	took := time.Since(began)
	if q, _ := b.Queue("bench"); q.Counts[job.Waiting] != waiting {
		return round{}, fmt.Errorf("%d jobs wait, must be %d", q.Counts[job.Waiting], waiting)
	}
	return round{value: float64(took.Nanoseconds()) / float64(3*batch*len(entries))}, nil
}

// measureSize is the heap that a million waiting jobs take, each.
func measureSize(context.Context) (round, error) {
	before := heapInUse()
	b, err := newBook(million)
	if err != nil {
		return round{}, err
	}
	b.queue = nil // ours, not the ledger's
	per := float64(heapInUse()-before) / million
	runtime.KeepAlive(b)
	return round{value: per}, nil
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// measureCopy is the longest of some copies of a million jobs, in ms: how long
// a snapshot holds applying up. Work goes on between them, and so does the
// copying of what it touches.
func measureCopy(context.Context) (round, error) {
	b, err := newBook(million)
	if err != nil {
		return round{}, err
	}
	var longest time.Duration
	for range 20 {
		began := time.Now()
		kept := b.Copy()
		longest = max(longest, time.Since(began))
		if err := b.entry(b.lives()...); err != nil {
			return round{}, err
		}
		runtime.KeepAlive(kept)
	}
	return round{value: float64(longest) / 1e6}, nil
}
