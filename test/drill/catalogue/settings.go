package catalogue

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/test/drill"
)

// setting is a setting that an operator changes again and again.
type setting struct {
	queue    string // "" stands for the yard
	name     string // as in [api.RetentionSetting], or concurrency_limit
	min, max int64
}

// String returns the name of the setting, with its queue.
func (w setting) String() string { return strings.TrimSpace(w.name + " " + w.queue) }

// settingsOperator changes settings at random nodes until it is stopped. It repeats each
// change until it is acknowledged.
type settingsOperator struct {
	s        *drill.Harness
	settings []setting
	rnd      *rand.Rand
	done     sync.WaitGroup
	stopped  atomic.Bool
	requests atomic.Int64 // begun

	// To be read after stop.
	acked      map[setting]int64 // the last value, 0 after a reset
	changes    int               // acknowledged
	unanswered int
	failed     error
}

// startSettingsOperator begins to change settings.
func startSettingsOperator(s *drill.Harness, settings []setting) *settingsOperator {
	o := &settingsOperator{s: s, settings: settings, rnd: rand.New(rand.NewPCG(s.Seed, 1)), acked: make(map[setting]int64)}
	o.done.Go(func() {
		for o.failed == nil && !o.stopped.Load() {
			o.failed = cmp.Or(o.change(s.Ctx), backoff.Sleep(s.Ctx, 50*time.Millisecond))
		}
	})
	return o
}

// stop returns when the last change is acknowledged.
func (o *settingsOperator) stop() {
	o.stopped.Store(true)
	o.done.Wait()
}

// change changes one setting, or resets it.
func (o *settingsOperator) change(ctx context.Context) error {
	which := o.settings[o.rnd.IntN(len(o.settings))]
	value := which.min + o.rnd.Int64N(which.max-which.min+1)
	if o.rnd.IntN(8) == 0 {
		value = 0
	}
	verb, request := which.request(value)
	for {
		var answer any
		n := o.s.Nodes[o.rnd.IntN(len(o.s.Nodes))]
		o.requests.Add(1)
		err := n.Ask(ctx, api.SubjectAPI+"."+verb, request, &answer)
		if err == nil {
			o.acked[which] = value
			o.changes++
			return nil
		}
		o.unanswered++
		if backoff.Sleep(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("%s is not acknowledged: %w", which.name, err)
		}
	}
}

// request returns the request that changes the setting; value 0 resets it.
func (w setting) request(value int64) (verb string, request map[string]any) {
	change := api.SetTo(value)
	if value == 0 {
		change = api.Reset[int64]()
	}
	if w.queue == "" {
		return "retention.set", w.bounds(change)
	}
	request = map[string]any{"name": w.queue, "concurrency_limit": change}
	if kept, _, isRetention := strings.Cut(w.name, "."); isRetention {
		request = map[string]any{"name": w.queue, "retention": map[string]any{kept: w.bounds(change)[kept]}}
	}
	return "queue.set", request
}

// bounds returns a change of retention with this setting alone.
func (w setting) bounds(change api.Setting[int64]) map[string]any {
	kept, bound, _ := strings.Cut(w.name, ".")
	if bound == "age" {
		bound = "age_ms"
	}
	return map[string]any{kept: map[string]any{bound: change}}
}

// requireInForce requires that every node shows the last acknowledged value of each
// setting.
func (o *settingsOperator) requireInForce() {
	o.s.Require(o.failed == nil, "%v", o.failed)
	o.s.Figure("acknowledged changes of settings", fmt.Sprintf("%d, after %d requests without an answer", o.changes, o.unanswered))
	o.s.RequireTried(len(o.acked) == len(o.settings), "%d of %d settings were changed", len(o.acked), len(o.settings))
	for _, n := range o.s.Running() {
		for which, want := range o.acked {
			var got int64
			var err error
			shown := o.s.Within(10*time.Second, func() bool {
				got, err = o.shown(n, which)
				return err == nil && got == want
			})
			o.s.Require(shown, "%s shows %s as %d, acknowledged was %d (0 is a reset): %v", n.Name, which, got, want, err)
		}
	}
}

// shown returns the value that a node shows, 0 if no operator has set one.
func (o *settingsOperator) shown(n *drill.Node, which setting) (int64, error) {
	var yard api.Retention
	if which.queue == "" {
		err := n.Ask(o.s.Ctx, api.Subject("retention-show"), struct{}{}, &yard)
		return retentionValue(yard.Settings, which.name, api.FromOperator), err
	}
	var q api.Queue
	err := n.Ask(o.s.Ctx, api.Subject("queue-show"), map[string]any{"name": which.queue}, &q)
	if which.name != "concurrency_limit" {
		return retentionValue(q.Retention, which.name, api.FromQueue), err
	}
	if q.Limit == nil {
		return 0, err
	}
	return int64(*q.Limit), err
}

// retentionValue returns the value of a setting that comes from a place, or 0.
func retentionValue(settings []api.RetentionSetting, name, from string) int64 {
	for _, s := range settings {
		if s.Name == name && s.From == from {
			return s.Value
		}
	}
	return 0
}
