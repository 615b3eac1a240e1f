package scrub

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// disk is a member's copy of one stream, in memory.
type disk struct {
	copy Copy
	sums map[uint64]uint64
	late bool // not current any more, once it has been read
	yard *disks
	name string
	*Scrubber
}

// disks are three members that hear each other.
type disks struct {
	all  map[string]*disk
	mute map[string]bool
	curt map[string]bool // they tell sums, and of no message
	gone map[uint64]bool // the leader keeps it no more
	lost bool            // the stream has no leader
}

func newDisks(dense bool, first, last uint64) *disks {
	y := &disks{all: map[string]*disk{}, mute: map[string]bool{}, curt: map[string]bool{}, gone: map[uint64]bool{}}
	for _, name := range []string{"n1", "n2", "n3"} {
		d := &disk{copy: Copy{"S", first, last, dense}, sums: map[uint64]uint64{}, yard: y, name: name}
		for seq := first; seq <= last; seq++ {
			d.sums[seq] = seq * 2654435761
		}
		d.Scrubber = New(Config{Node: name, Every: time.Hour, Rate: 1 << 30}, d, slog.New(slog.NewTextHandler(io.Discard, nil)))
		y.all[name] = d
	}
	return y
}

func (d *disk) Copies() ([]Copy, error) {
	if d.late {
		return nil, nil
	}
	return []Copy{d.copy}, nil
}

func (d *disk) Walk(_ string, from, to uint64, pace func(int) error, fn func(seq, sum uint64)) (int, error) {
	for _, seq := range slices.Sorted(maps.Keys(d.sums)) {
		if seq >= from && seq <= to {
			fn(seq, d.sums[seq])
		}
	}
	return 0, pace(100 * len(d.sums))
}

func (d *disk) Keeps(_ context.Context, _ string, seq uint64) (bool, error) {
	if d.yard.lost {
		return false, errors.New("nobody leads")
	}
	return !d.yard.gone[seq], nil
}

func (d *disk) Others() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(d.yard.all)), func(n string) bool { return n == d.name })
}

func (d *disk) Ask(_ context.Context, member string, q Question) (Answer, error) {
	if d.yard.mute[member] || q.Messages && d.yard.curt[member] {
		return Answer{}, errors.New("nothing came in time")
	}
	return d.yard.all[member].Serve(q)
}

// A copy in which something seems wrong is not sound as long as nobody can say
// whether it is: a sound one may let another be removed.
func TestUnproved(t *testing.T) {
	for _, tc := range []struct {
		name string
		keep func(y *disks) // from being proved
	}{
		{"the others tell sums and nothing more", func(y *disks) { y.all["n2"].sums[50]++; y.curt["n1"], y.curt["n3"] = true, true }},
		{"it is not current any more", func(y *disks) { y.all["n2"].sums[50]++; y.all["n2"].late = true }},
		{"what was removed is not known", func(y *disks) { delete(y.all["n2"].sums, 50); y.lost = true }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				y := newDisks(false, 1, 100)
				for _, d := range y.all {
					d.Round(t.Context())
				}
				n2 := y.all["n2"]
				c := n2.copy
				if r := n2.Recheck(t.Context(), c); !r.Sound() {
					t.Fatalf("not sound before: %+v", r)
				}
				tc.keep(y)
				if r := n2.Recheck(t.Context(), c); r.Sound() {
					t.Errorf("called sound: %+v", r)
				}
			})
		})
	}
}

// What was found stands as long as nobody can look again.
func TestUnprovedKeepsFindings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newDisks(false, 1, 100)
		n2 := y.all["n2"]
		delete(n2.sums, 50)
		for range 2 {
			for _, d := range y.all {
				d.Round(t.Context())
			}
		}
		if len(n2.Wrong()) != 1 {
			t.Fatalf("found nothing: %+v", n2.Report())
		}
		y.lost = true
		n2.Round(t.Context())
		if r := n2.Report().Results[0]; r.Error == "" || len(n2.Wrong()) != 1 {
			t.Errorf("forgotten: %+v", r)
		}
	})
}

// What is damaged on one disk is found there, nowhere else, and exactly.
func TestFindings(t *testing.T) {
	const last = 5*ChunkSize + 17
	for _, tc := range []struct {
		name   string
		sparse bool
		hurt   func(y *disks)
		n2     map[Kind]string // what n2 finds in its copy
		n1     map[Kind]string
	}{
		{name: "nothing", hurt: func(*disks) {}},
		{name: "holes", hurt: func(y *disks) {
			for _, seq := range []uint64{3, 4, 5, 2000, last} {
				delete(y.all["n2"].sums, seq)
			}
		}, n2: map[Kind]string{Lacks: "3–5, 2000, 5137"}},
		{name: "a lost end", hurt: func(y *disks) {
			for seq := uint64(last - 2); seq <= last; seq++ {
				delete(y.all["n2"].sums, seq)
			}
			y.all["n2"].copy.Last = last - 3
		}, n2: map[Kind]string{Lacks: "5135–5137"}},
		{name: "another message", hurt: func(y *disks) { y.all["n2"].sums[1500]++ }, n2: map[Kind]string{Differs: "1500"}},
		{name: "a third is not heard", hurt: func(y *disks) { y.all["n2"].sums[1500]++; y.mute["n3"] = true },
			n2: map[Kind]string{Split: "1500"}, n1: map[Kind]string{Split: "1500"}},
		{name: "nobody has it", hurt: func(y *disks) {
			for _, d := range y.all {
				delete(d.sums, 7)
			}
		}, n1: map[Kind]string{Nowhere: "7"}, n2: map[Kind]string{Nowhere: "7"}},
		{name: "nobody else is heard", hurt: func(y *disks) { delete(y.all["n2"].sums, 7); y.mute["n1"], y.mute["n3"] = true, true },
			n2: map[Kind]string{Nowhere: "7"}},
		{name: "a beginning that others have purged", hurt: func(y *disks) {
			for _, name := range []string{"n1", "n3"} {
				delete(y.all[name].sums, 1)
				y.all[name].copy.First = 2
			}
		}},
		{name: "sparse", sparse: true, hurt: func(y *disks) {
			for _, seq := range []uint64{10, 11, 12} {
				delete(y.all["n2"].sums, seq)
			}
			y.gone[11] = true // removed: the others' disks have it still
		}, n2: map[Kind]string{Lacks: "10, 12"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				y := newDisks(!tc.sparse, 1, last)
				tc.hurt(y)
				for range 2 { // the second time all have read theirs
					for _, d := range y.all {
						d.Round(t.Context())
					}
				}
				for name, want := range map[string]map[Kind]string{"n1": tc.n1, "n2": tc.n2} {
					got := map[Kind]string{}
					for _, f := range y.all[name].Report().Results[0].Findings {
						got[f.Kind] = f.Which
					}
					if !maps.Equal(got, want) {
						t.Errorf("%s finds %v, want %v", name, got, want)
					}
				}
			})
		})
	}
}

// What comes while a copy lags behind is no damage.
func TestLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newDisks(true, 1, 100)
		n2 := y.all["n2"]
		for _, seq := range []uint64{99, 100} {
			delete(n2.sums, seq)
		}
		n2.copy.Last = 98
		for _, name := range []string{"n1", "n3"} {
			y.all[name].Round(t.Context())
		}
		go func() {
			time.Sleep(time.Second)
			n2.sums[99], n2.sums[100], n2.copy.Last = y.all["n1"].sums[99], y.all["n1"].sums[100], 100
		}()
		n2.Round(t.Context())
		if r := n2.Report().Results[0]; !r.Sound() {
			t.Errorf("found %+v", r)
		}
	})
}

// What was found is looked at again soon, and forgotten when it is mended.
func TestAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newDisks(true, 1, 100)
		n2 := y.all["n2"]
		for _, name := range []string{"n1", "n3"} {
			y.all[name].Round(t.Context())
		}
		sum := n2.sums[50]
		delete(n2.sums, 50)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- n2.Run(ctx) }()
		time.Sleep(2 * firstAfter)
		if len(n2.Wrong()) != 1 {
			t.Errorf("found nothing: %+v", n2.Report())
		}
		n2.sums[50] = sum
		time.Sleep(2 * againAfter)
		if len(n2.Wrong()) != 0 {
			t.Errorf("still: %+v", n2.Wrong())
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
