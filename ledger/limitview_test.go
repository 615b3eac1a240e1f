package ledger

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

func TestLimitUsage(t *testing.T) {
	h := newLimitHarness(t)
	h.limitQueue(job.LimitChange{Total: new(job.Slots(3)), PerKey: new(job.Slots(2))})
	ids := h.add("acme", "acme", "acme", "beta", "gamma", "gamma", "")
	h.want("three start", h.place(ids[0], ids[1], ids[3]), []bool{true, true, true})

	check := func(wantBlocked bool) {
		t.Helper()
		usage, ok := h.l.LimitUsage("stripe", h.at.At)
		want := []KeyUse{{"acme", 2, 1, wantBlocked}, {"gamma", 0, 2, false}, {"beta", 1, 0, false}, {"", 0, 1, false}}
		if !ok || !reflect.DeepEqual(usage.Keys, want) || usage.MoreKeys != 0 {
			t.Errorf("keys %+v and %d more, want %+v", usage.Keys, usage.MoreKeys, want)
		}
		if usage.Running != 3 || usage.Waiting != 4 || len(usage.Holders) != 3 || usage.Holders[0].ID != ids[0] {
			t.Errorf("%d running, %d waiting, holders %+v", usage.Running, usage.Waiting, usage.Holders)
		}
		if want := []QueueUse{{"mail", true, 4}}; !reflect.DeepEqual(usage.Queues, want) {
			t.Errorf("queues %+v, want %+v", usage.Queues, want)
		}
	}
	check(true)
	if all := h.l.Limits(h.at.At); len(all) != 1 || all[0].Waiting != 4 || !all[0].FullSince.Equal(h.at.At) {
		t.Errorf("limits %+v", all)
	}
	if of := h.l.LimitHolders("stripe", new("beta"), 5); len(of) != 1 || of[0].ID != ids[3] {
		t.Errorf("holders of a key: %+v", of)
	}

	h.apply(&SetLimit{Name: "stripe", Change: job.LimitChange{PerKey: new(job.Unbounded)}})
	check(false) // without bounds of keys they are counted from the jobs
	if _, ok := h.l.LimitUsage("nosuch", h.at.At); ok {
		t.Error("the usage of a limit that does not exist")
	}
}

// TestLimitUsage_Largest checks that the largest keys are shown, and the others counted.
func TestLimitUsage_Largest(t *testing.T) {
	h := newLimitHarness(t)
	h.limitQueue(job.LimitChange{PerKey: new(job.Slots(1))})
	var keys []string
	for i := range maxUsageKeys + 10 {
		for range i + 1 {
			keys = append(keys, fmt.Sprintf("k%02d", i))
		}
	}
	h.add(keys...)
	usage, _ := h.l.LimitUsage("stripe", h.at.At)
	if len(usage.Keys) != maxUsageKeys || usage.MoreKeys != 10 {
		t.Fatalf("%d keys and %d more", len(usage.Keys), usage.MoreKeys)
	}
	for i, use := range usage.Keys {
		if n := maxUsageKeys + 10 - i; use.Waiting != n || use.Key != fmt.Sprintf("k%02d", n-1) {
			t.Fatalf("key %d is %+v, want the one with %d jobs", i, use, n)
		}
	}
}

func TestLimitBlocks(t *testing.T) {
	h := newLimitHarness(t)
	h.limitQueue(job.LimitChange{
		Total: new(job.Slots(2)), PerKey: new(job.Slots(1)), Rate: &job.Rate{Starts: 1, Per: time.Minute}, Burst: new(uint32(2)),
		OpenAfter: new(uint32(1)), Within: new(time.Minute),
	})
	ids := h.add("acme", "acme", "beta", "gamma", "delta")
	kinds := func(of []LimitBlock) (kinds []BlockKind) {
		for _, b := range of {
			kinds = append(kinds, b.Kind)
		}
		return kinds
	}
	check := func(what string, id job.ID, want ...BlockKind) []LimitBlock {
		t.Helper()
		blocks := h.l.LimitBlocks(id, h.at.At)
		if got := kinds(blocks); !reflect.DeepEqual(got, want) {
			t.Fatalf("%s: %v, want %v", what, got, want)
		}
		return blocks
	}
	check("nothing runs", ids[0])
	h.place(ids[0])
	b := check("one of the key runs", ids[1], BlockKeySlots)[0]
	if b.Running != 1 || b.Key != "acme" || len(b.Holders) != 1 || b.Holders[0].ID != ids[0] {
		t.Errorf("block %+v", b)
	}
	if of := h.l.QueueLimitBlocks("mail", h.at.At); len(of) != 0 {
		t.Errorf("a key blocks the queue: %+v", of)
	}
	if counts := h.l.KeyCounts("mail"); counts != (KeyCounts{Keys: 4, Blocked: 1}) {
		t.Errorf("keys %+v", counts)
	}

	h.place(ids[2])
	b = check("two run", ids[3], BlockSlots, BlockRate)[1]
	if want := h.at.At.Add(time.Minute); !b.NextAt.Equal(want) {
		t.Errorf("next start at %s, want %s", b.NextAt, want)
	}
	h.settle(&job.Fault{Message: "503", Type: "http_503"}, ids[2])
	h.apply(&PauseLimit{Name: "stripe", Paused: true})
	blocks := check("paused, open and without tokens", ids[3], BlockPaused, BlockCircuit, BlockRate)
	if want := h.at.At.Add(time.Minute); !blocks[1].NextAt.Equal(want) || !blocks[1].Limit.Circuit.OpenedAt.Equal(h.at.At) {
		t.Errorf("circuit %+v", blocks[1])
	}
	if got, want := kinds(h.l.QueueLimitBlocks("mail", h.at.At)), []BlockKind{BlockPaused, BlockCircuit, BlockRate}; !reflect.DeepEqual(got, want) {
		t.Errorf("the queue: %v, want %v", got, want)
	}
}

func TestKeyOrder(t *testing.T) {
	h := newLimitHarness(t)
	h.limitQueue(job.LimitChange{PerKey: new(job.Slots(1))})
	h.apply(&ChangeQueue{Name: "mail", Change: job.QueueChange{Fair: new(true), Weights: []job.KeyWeight{{Key: "acme", Weight: 3}}}})
	ids := h.add("acme", "beta", "acme", "acme")
	h.place(ids[0])
	got, ok := h.l.KeyOrder(ids[3])
	if want := (KeyOrder{Fair: true, Key: "acme", Weight: 3, Ahead: 1, Keys: 2, Blocked: 1}); !ok || got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if _, ok := h.l.KeyOrder(ids[0]); ok {
		t.Error("the order of a job that runs")
	}
}

// BenchmarkLimitUsage measures how long the ledger is locked by a view of a limit with many keys.
func BenchmarkLimitUsage(b *testing.B) {
	for _, keys := range []int{100, 100_000} {
		l, stamp := ledgerWithAuthority(b)
		apply := func(c Command) {
			stamp.Index++
			if r := l.Apply(stamp, []Command{c}); r[0].Err != nil {
				b.Fatal(r[0].Err)
			}
		}
		apply(&AddQueue{ID: job.ID{1}, Name: "mail", Config: job.DefaultQueueConfig})
		apply(&SetLimit{Name: "stripe", Change: job.LimitChange{PerKey: new(job.Slots(1))}})
		apply(&ChangeQueue{Name: "mail", Change: job.QueueChange{Limits: &job.Names{Names: []string{"stripe"}}}})
		for seq := range uint64(keys) {
			apply(&Ingest{Identity: "L0", From: seq, To: seq + 1, Jobs: []job.Job{{
				ID: jobID(int(seq)), Queue: "mail", LimitKey: fmt.Sprintf("customer-%d", seq), Accepted: stamp.At, Position: job.Position{Seq: seq + 1},
			}}})
		}
		b.Run(fmt.Sprint(keys, " keys"), func(b *testing.B) {
			for b.Loop() {
				if usage, ok := l.LimitUsage("stripe", stamp.At); !ok || usage.Waiting != keys {
					b.Fatal(usage)
				}
			}
		})
	}
}
