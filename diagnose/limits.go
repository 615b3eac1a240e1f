package diagnose

import (
	"fmt"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// limitReason returns why a limit permits no start.
func (d *diagnosis) limitReason(b *ledger.LimitBlock) reason {
	m := &b.Limit
	data := &api.ReasonData{Name: m.Name, At: timePtr(b.NextAt), Active: b.Running}
	r := reason{Reason: api.Reason{Data: data}, blocks: true}
	for i := range b.Holders {
		data.Holders = append(data.Holders, api.NewActiveJob(&b.Holders[i], d.timeout))
	}
	if len(data.Holders) > 0 {
		data.MoreHolders = max(0, b.Running-len(data.Holders))
	}
	if b.Kind.OfKey() {
		data.Key = &b.Key
	}
	next := ""
	if !b.NextAt.IsZero() {
		next = ", the next at " + ledger.FormatTime(b.NextAt)
	}
	switch b.Kind {
	case ledger.BlockPaused:
		r.Code = api.ReasonLimitPaused
		r.Text = fmt.Sprintf("limit %s is paused; 'yardmaster limit resume %s' ends that", m.Name, m.Name)
	case ledger.BlockCircuit:
		r.Code, data.Since = api.ReasonLimitCircuit, timePtr(m.Circuit.OpenedAt)
		r.Text = fmt.Sprintf("the circuit of limit %s is open since %s", m.Name, ledger.FormatTime(m.Circuit.OpenedAt))
		if b.NextAt.IsZero() {
			r.Text += fmt.Sprintf(", and as many jobs probe whether it can close as may: %d", m.Circuit.Probes)
		} else {
			r.Text += ": the first job that probes whether it can close may start at " + ledger.FormatTime(b.NextAt)
		}
	case ledger.BlockSlots:
		r.Code, data.Limit, data.Since = api.ReasonLimitFull, uint32(m.Total), timePtr(m.FullSince)
		r.Text = fmt.Sprintf("limit %s permits %s at once, and %d run", m.Name, plural(int(m.Total), "job"), b.Running)
	case ledger.BlockRate:
		r.Code, data.Rate = api.ReasonLimitRate, m.Rate.String()
		r.Text = fmt.Sprintf("limit %s permits %s starts%s", m.Name, m.Rate, next)
	case ledger.BlockKeySlots:
		r.Code, data.Limit = api.ReasonLimitKeyFull, uint32(m.PerKey)
		r.Text = fmt.Sprintf("limit %s permits %s of a key at once, and %d of %s run", m.Name, plural(int(m.PerKey), "job"), b.Running, keyText(b.Key))
	case ledger.BlockKeyRate:
		r.Code, data.Rate = api.ReasonLimitKeyRate, m.RatePerKey.String()
		r.Text = fmt.Sprintf("limit %s permits %s starts of a key, of %s%s", m.Name, m.RatePerKey, keyText(b.Key), next)
	}
	return r
}

// keyText returns words for a key after "of". All jobs without a key share one turn and one bound.
func keyText(key string) string {
	if key == "" {
		return "the jobs without a key"
	}
	return fmt.Sprintf("key %q", key)
}

// fairReason returns the place of the job in the rounds of a fair queue.
func (d *diagnosis) fairReason() reason {
	k := &d.keys
	round := k.Ahead/max(1, k.Weight) + 1
	among := plural(k.Keys, "key")
	switch {
	case k.Key == "" && k.Keys == 1: // the jobs without a key count as one
		among = "keys, none of which waits"
	case k.Key == "":
		among = plural(k.Keys-1, "key") + " and the jobs without one"
	}
	text := fmt.Sprintf("its queue shares starts among %s; of %s, with %s before it and %s in each round, it starts in round %d from now",
		among, keyText(k.Key), plural(k.Ahead, "waiting job"), plural(k.Weight, "start"), round)
	if k.Blocked > 0 {
		text += fmt.Sprintf("; limits permit no start of %d of the keys", k.Blocked)
	}
	return reason{Reason: api.Reason{Code: api.ReasonFairTurn, Text: text, Data: &api.ReasonData{
		Queue: d.job.View.Queue, Key: &k.Key, Weight: k.Weight, Ahead: k.Ahead, Keys: k.Keys, KeysBlocked: k.Blocked,
	}}}
}

// orderText returns by what the jobs of the queue are ordered.
func (d *diagnosis) orderText() string {
	if age := d.job.QueueView.Config.Age; age > 0 {
		return fmt.Sprintf("by priority and acceptance, where %s of waiting is worth a class of priority", duration.Format(age))
	}
	return "by priority and then by acceptance"
}

// keysReason returns that bounds of keys permit no start of any job of a queue, nil if they permit
// one.
func keysReason(queue string, counts ledger.KeyCounts) *reason {
	if counts.Keys == 0 || counts.Blocked < counts.Keys || counts.Unkeyed > 0 {
		return nil
	}
	return &reason{blocks: true, Reason: api.Reason{
		Code: api.ReasonKeysBlocked, Data: &api.ReasonData{Queue: queue, Keys: counts.Keys, KeysBlocked: counts.Blocked},
		Text: fmt.Sprintf("of each key that waits, %s, as many jobs run or have started as limits permit", plural(counts.Keys, "key")),
	}}
}

// isOfKey reports whether a reason concerns one key of a queue.
func isOfKey(code api.ReasonCode) bool {
	return code == api.ReasonLimitKeyFull || code == api.ReasonLimitKeyRate
}
