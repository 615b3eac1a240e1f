package vigil

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"yardmaster/internal/testlog"
)

// trio is three keepers that hear each other; their disks are what levels says.
type trio struct {
	mu      sync.Mutex
	keepers map[string]*Keeper
	said    map[string]Word
	ails    map[string][]Ailment
	cut     map[string]bool // is not heard
	leader  string
	moves   []string
	shut    map[string]string
	others  map[string]bool
}

var names = []string{"n1", "n2", "n3"}

func newTrio(t *testing.T) *trio {
	y := &trio{
		keepers: map[string]*Keeper{}, said: map[string]Word{}, ails: map[string][]Ailment{}, cut: map[string]bool{},
		leader: "n1", shut: map[string]string{}, others: map[string]bool{},
	}
	for _, name := range names {
		y.keepers[name] = New(Config{
			Node: name, Members: func() []string { return names }, Disk: Disk{Dir: t.TempDir(), Marks: Marks{1, 1, 1, 1}},
			Check: func(context.Context) Word {
				y.mu.Lock()
				defer y.mu.Unlock()
				return Word{Ailments: slices.Clone(y.ails[name]), Leader: y.leader}
			},
			Say: func(w Word) { y.mu.Lock(); y.said[name] = w; y.mu.Unlock() },
			Ask: func(member string) (Word, error) {
				y.mu.Lock()
				defer y.mu.Unlock()
				if y.cut[member] || y.cut[name] {
					return Word{}, errors.New("not heard")
				}
				return y.said[member], nil
			},
			Leads: func() bool { y.mu.Lock(); defer y.mu.Unlock(); return y.leader == name },
			HandOver: func(_ context.Context, to string) error {
				y.mu.Lock()
				defer y.mu.Unlock()
				y.moves, y.leader = append(y.moves, name+"→"+to), to
				return nil
			},
			Close: func(why string, others bool) {
				y.mu.Lock()
				y.shut[name], y.others[name] = why, others
				y.mu.Unlock()
			},
		}, testlog.New(t))
	}
	return y
}

// set gives a node ailments.
func (y *trio) set(name string, kinds ...Kind) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.ails[name] = nil
	for _, k := range kinds {
		y.ails[name] = append(y.ails[name], Ailment{k, string(k)})
	}
}

func (y *trio) run(t *testing.T, d time.Duration) {
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	for _, k := range y.keepers {
		work.Go(func() {
			if err := k.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	time.Sleep(d)
	synctest.Wait()
	cancel()
	work.Wait()
}

func TestKeeper_HandsOverToWhoIsFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newTrio(t)
		y.run(t, 10*time.Second)
		if len(y.moves) > 0 {
			t.Fatalf("all are well, and yet %v", y.moves)
		}
		y.set("n1", NoLane)
		y.set("n2", JetStream)
		y.run(t, 4*time.Second)
		if len(y.moves) > 0 {
			t.Errorf("handed over after less than %s: %v", unfitFor, y.moves)
		}
		y.run(t, 4*time.Second)
		if want := []string{"n1→n3"}; !slices.Equal(y.moves, want) {
			t.Errorf("moves %v, want %v: n2 is not fit either", y.moves, want)
		}
	})
}

// Without routes it has waited already.
func TestKeeper_HandsOverSoonWithoutRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newTrio(t)
		y.set("n1", Routes)
		y.run(t, cutFor-time.Second/2)
		if len(y.moves) > 0 {
			t.Errorf("handed over after less than %s: %v", cutFor, y.moves)
		}
		y.run(t, 2*time.Second)
		if want := []string{"n1→n2"}; !slices.Equal(y.moves, want) {
			t.Errorf("moves %v, want %v", y.moves, want)
		}
	})
}

// Two members that are unfit by turns pass the authority on no more often than
// once a minute each, and less often with time.
func TestKeeper_DoesNotFlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newTrio(t)
		for minute := range 60 { // whoever leads is unfit, whoever does not is fit
			for range 6 {
				y.mu.Lock()
				leader := y.leader
				y.mu.Unlock()
				for _, name := range names {
					y.set(name)
				}
				y.set(leader, JetStream)
				y.run(t, 10*time.Second)
			}
			if minute == 0 && len(y.moves) == 0 {
				t.Fatal("it is never handed over")
			}
		}
		if most := 3 * 8; len(y.moves) > most { // 0, 1, 3, 7, 15, 30, 45, 60 minutes
			t.Errorf("handed over %d times in an hour, at most %d are due: %v", len(y.moves), most, y.moves)
		}
	})
}

func TestKeeper_NobodyFitStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newTrio(t)
		y.set("n1", Routes)
		y.set("n2", Routes)
		y.mu.Lock()
		y.cut["n3"] = true // well, but not heard
		y.mu.Unlock()
		y.run(t, time.Minute)
		if len(y.moves) > 0 {
			t.Errorf("moved to nobody's good: %v", y.moves)
		}
	})
}

// Levels come from the disk; here the words say them.
func TestKeeper_ShutsWhereAMajorityHasNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newTrio(t)
		k := y.keepers["n1"]
		hear := func(levels map[string]Level) {
			for name, level := range levels {
				w := Word{Node: name, Level: level}
				if name == "n1" {
					k.mine = w
				} else {
					k.heard[name] = heard{w, time.Now()}
				}
			}
			k.decide()
		}
		for _, c := range []struct {
			levels map[string]Level
			why    string // part of it; "": open
			others bool
		}{
			{map[string]Level{"n1": Roomy, "n2": Out}, "", true},
			{map[string]Level{"n2": Out, "n3": Low}, "the disk of n2, n3 has not enough room: a job needs a majority", false},
			{map[string]Level{"n2": Roomy, "n3": Low}, "", true},
			{map[string]Level{"n1": Low, "n3": Roomy}, "the disk of this node, n1", true},
			{map[string]Level{"n3": Low}, "the disk of n1, n3", false},
			{map[string]Level{"n1": Roomy, "n2": Roomy, "n3": Roomy}, "", true},
		} {
			hear(c.levels)
			if why := k.Shut(); why != y.shut["n1"] || !strings.Contains(why, c.why) || (why == "") != (c.why == "") || y.others["n1"] != c.others && why != "" {
				t.Errorf("%v: shut by %q, told %q, others %v; want %q, %v", c.levels, why, y.shut["n1"], y.others["n1"], c.why, c.others)
			}
		}
	})
}

func TestKeeper_StaleWordsDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newTrio(t)
		k := y.keepers["n1"]
		k.heard["n2"] = heard{Word{Node: "n2", Level: Out}, time.Now()}
		if poor := k.Poor(Low); !slices.Equal(poor, []string{"n2"}) {
			t.Errorf("poor: %v", poor)
		}
		time.Sleep(StaleAfter)
		if poor := k.Poor(Low); len(poor) > 0 {
			t.Errorf("poor, by what was said long ago: %v", poor)
		}
	})
}

func TestDisk_Ailments(t *testing.T) {
	d, r := Disk{Dir: "/data"}, Room{Refuse: 2 << 30, Stop: 100 << 20}
	for level, want := range map[Level]string{
		Low: "less than 2048 MiB is free where the data lies: this node takes no jobs in until there is more; free space, or run 'yardmaster node release-ballast --data-dir /data' there",
		Out: "less than 100 MiB is free where the data lies: this node takes no jobs in and decides nothing new; free space, or run 'yardmaster node release-ballast --data-dir /data' there",
	} {
		if got := d.ailments(level, r); len(got) != 1 || got[0].Text != want {
			t.Errorf("%s: %v; want %q", level, got, want)
		}
	}
	if got := d.ailments(Roomy, r); len(got) > 0 {
		t.Errorf("a disk with room ails: %v", got)
	}
}

func TestKeeper_ADiskThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newTrio(t)
		y.keepers["n1"].cfg.Disk.Dir += "/gone"
		y.run(t, 8*time.Second)
		if w := y.keepers["n1"].Mine(); w.Fit() || w.Level != Out || !w.ails(DiskFails) {
			t.Errorf("its word is %+v", w)
		}
		if len(y.moves) != 1 || y.shut["n1"] == "" || y.shut["n2"] != "" {
			t.Errorf("moves %v, shut %v: it must hand over and take nothing in, others go on", y.moves, y.shut)
		}
		if reasons := y.keepers["n2"].Reasons(); len(reasons) != 1 || !strings.Contains(reasons[0], "node n1: measure the room in") {
			t.Errorf("another member says %v", reasons)
		}
	})
}
