package diagnose

import (
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

func TestLimitReason(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	m := ledger.LimitView{Limit: job.Limit{Name: "stripe", Total: 20, PerKey: 2, Rate: job.Rate{Starts: 100, Per: time.Second}, RatePerKey: job.Rate{Starts: 5, Per: time.Minute}}}
	m.Circuit.OpenedAt = now
	for _, tt := range []struct {
		block ledger.LimitBlock
		code  api.ReasonCode
		text  string
	}{
		{ledger.LimitBlock{Kind: ledger.BlockPaused}, api.ReasonLimitPaused, "limit stripe is paused; 'yardmaster limit resume stripe' ends that"},
		{ledger.LimitBlock{Kind: ledger.BlockCircuit, NextAt: now}, api.ReasonLimitCircuit, "the circuit of limit stripe is open since 2026-01-02T03:04:05"},
		{ledger.LimitBlock{Kind: ledger.BlockSlots, Running: 20}, api.ReasonLimitFull, "limit stripe permits 20 jobs at once, and 20 run"},
		{ledger.LimitBlock{Kind: ledger.BlockRate, NextAt: now}, api.ReasonLimitRate, "limit stripe permits 100/s starts, the next at 2026-01-02T03:04:05"},
		{ledger.LimitBlock{Kind: ledger.BlockKeySlots, Key: "acme", Running: 2}, api.ReasonLimitKeyFull, `limit stripe permits 2 jobs of a key at once, and 2 of key "acme" run`},
		{ledger.LimitBlock{Kind: ledger.BlockKeyRate, Key: "acme", NextAt: now}, api.ReasonLimitKeyRate, `limit stripe permits 5/m starts of a key, of key "acme", the next at 2026-01-02T03:04:05`},
	} {
		tt.block.Limit = m
		tt.block.Holders = make([]ledger.ActiveDispatch, min(tt.block.Running, 10))
		r := new(diagnosis).limitReason(&tt.block)
		if r.Code != tt.code || !strings.HasPrefix(r.Text, tt.text) || !r.blocks || r.Data.Name != "stripe" {
			t.Errorf("%+v: %+v", tt.block.Kind, r)
		}
		if len(r.Data.Holders)+r.Data.MoreHolders != tt.block.Running || (r.Data.Key != nil) != tt.block.Kind.OfKey() {
			t.Errorf("%s has data %+v", r.Code, r.Data)
		}
	}
}

func TestFairReason(t *testing.T) {
	d := diagnosis{keys: ledger.KeyOrder{Fair: true, Key: "acme", Weight: 3, Ahead: 7, Keys: 5, Blocked: 2}}
	r := d.orderReasons(false)[0]
	if r.Code != api.ReasonFairTurn || !strings.Contains(r.Text, "it starts in round 3 from now; limits permit no start of 2 of the keys") {
		t.Errorf("%+v", r)
	}
	d.keys = ledger.KeyOrder{Fair: true, Weight: 1, Ahead: 2, Keys: 3}
	for keys, want := range map[int]string{
		3: "its queue shares starts among 2 keys and the jobs without one; of the jobs without a key, with 2 waiting jobs before it and 1 start in each round, it starts in round 3 from now",
		1: "its queue shares starts among keys, none of which waits; of the jobs without a key, with 2 waiting jobs before it and 1 start in each round, it starts in round 3 from now",
	} {
		d.keys.Keys = keys
		if r := d.orderReasons(false)[0]; r.Text != want {
			t.Errorf("without a key: %s", r.Text)
		}
	}
}

func TestKeysReason(t *testing.T) {
	for _, tt := range []struct {
		counts ledger.KeyCounts
		blocks bool
	}{
		{ledger.KeyCounts{}, false},
		{ledger.KeyCounts{Keys: 3, Blocked: 2}, false},
		{ledger.KeyCounts{Keys: 3, Blocked: 3, Unkeyed: 1}, false},
		{ledger.KeyCounts{Keys: 3, Blocked: 3}, true},
	} {
		if r := keysReason("mail", tt.counts); (r != nil) != tt.blocks {
			t.Errorf("%+v: %+v", tt.counts, r)
		}
	}
}
