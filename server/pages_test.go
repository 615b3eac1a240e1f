package server

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// fullLedger returns a ledger with the most queues, with long names and all settings, and
// cron entries with the largest jobs.
func fullLedger(t *testing.T) *ledger.Ledger {
	t.Helper()
	l := ledger.New()
	stamp := ledger.Stamp{Index: 1, At: time.Now()}
	apply := func(c ledger.Command) {
		if r := l.Apply(stamp, []ledger.Command{c})[0]; r.Err != nil {
			t.Fatal(r.Err)
		}
		stamp.Index++
	}
	var own job.Retention
	for _, key := range job.QueueRetentionKeys {
		value := int64(1_000_000)
		if key.Bound == job.BoundAge {
			value = int64(time.Hour)
		}
		own = own.With([]job.RetentionSetting{{Key: key, Value: value}})
	}
	for i := range ledger.MaxQueues - len(l.Queues()) {
		name := fmt.Sprintf("q%05d%s", i, strings.Repeat("x", job.MaxQueueLen-6))
		apply(&ledger.AddQueue{ID: job.ID{byte(i >> 8), byte(i), 1}, Name: name, Config: job.QueueConfig{Limit: job.MaxLimit, Retention: own}})
	}
	body := fmt.Appendf(nil, `{"params":{"html":%q}}`, strings.Repeat("<", ledger.MaxCronBody-100))
	for i := range 250 {
		apply(&ledger.SetCron{Cron: ledger.Cron{Name: fmt.Sprintf("c%03d", i), Schedule: "@daily", Queue: "mail", Body: body}})
	}
	return l
}

// pages requests a list page by page, and returns the names on it. nextPage returns the
// names on a page and the request for the next one, nil after the last.
func pages[Page any](t *testing.T, handle Handler, request any, nextPage func(*Page) (names []string, next any)) (names []string) {
	t.Helper()
	for request != nil {
		body, err := json.Marshal(request)
		if err != nil {
			t.Fatal(err)
		}
		text, err := handle(t.Context(), requestOf(string(body)))
		if err != nil {
			t.Fatal(err)
		}
		if most := embedded.MaxMessage - 4<<10; len(text) > most {
			t.Fatalf("a page of %d bytes, at most %d fit in a message", len(text), most)
		}
		var page Page
		if err := json.Unmarshal(text, &page); err != nil {
			t.Fatal(err)
		}
		var more []string
		more, request = nextPage(&page)
		names = append(names, more...)
	}
	return names
}

// A list that grows with the yard has pages that fit in a message, without gaps and
// duplicates.
func TestPages(t *testing.T) {
	l := fullLedger(t)
	view := func(read func(*ledger.Ledger)) { read(l) }
	var queues, withSettings, crons []string
	for _, q := range l.Queues() {
		queues = append(queues, q.Name)
		if len(q.Config.Retention) > 0 {
			withSettings = append(withSettings, q.Name)
		}
	}
	l.Crons("", func(c ledger.CronView) bool { crons = append(crons, c.Name); return true })

	for _, limit := range []int{0, 7, 1000} {
		got := pages(t, (&Queues{View: view}).Handlers()["queue-list"], api.QueueListRequest{Limit: limit}, func(p *api.QueueList) (names []string, next any) {
			for i := range p.Queues {
				names = append(names, p.Queues[i].Name)
			}
			if p.Next != "" {
				next = api.QueueListRequest{Limit: limit, After: p.Next}
			}
			if limit > 0 && len(names) > limit {
				t.Errorf("a page of %d queues, at most %d are asked for", len(names), limit)
			}
			return names, next
		})
		if diff := cmp.Diff(queues, got); diff != "" {
			t.Errorf("queues in pages of %d: %s", limit, diff)
		}
	}
	got := pages(t, (&Retention{View: view}).Handlers()["retention-show"], api.RetentionRequest{}, func(p *api.Retention) (names []string, next any) {
		for i := range p.Queues {
			names = append(names, p.Queues[i].Queue)
		}
		if p.Next != "" {
			next = api.RetentionRequest{After: p.Next}
		}
		return names, next
	})
	if diff := cmp.Diff(withSettings, got); diff != "" {
		t.Errorf("queues with settings of their own: %s", diff)
	}
	got = pages(t, (&Crons{View: view}).Handlers()["cron-list"], api.CronListRequest{Limit: 100}, func(p *api.CronPage) (names []string, next any) {
		for i := range p.Entries {
			names = append(names, p.Entries[i].Name)
		}
		if p.More {
			next = map[string]any{"limit": 100, "after": names[len(names)-1]}
		}
		return names, next
	})
	if diff := cmp.Diff(crons, got); diff != "" {
		t.Errorf("cron entries: %s", diff)
	}
}

// requestOf returns a request without a token.
func requestOf(body string) *cluster.Request { return request(body, "") }

// A list or map of a reply is never null, wherever it is, and no value of the handler is
// changed.
func TestJSON_Lists(t *testing.T) {
	type item struct {
		Names []string `json:"names"`
	}
	type reply struct {
		Items  []item          `json:"items"`
		None   []item          `json:"none"`
		Counts map[string]int  `json:"counts"`
		Inner  *item           `json:"inner"`
		Nil    *item           `json:"nil"`
		Left   []string        `json:"left,omitempty"`
		Bytes  []byte          `json:"bytes"`
		Any    json.RawMessage `json:"any"`
		At     time.Time       `json:"at"`
	}
	shared := &reply{Items: []item{{}, {[]string{"<a>"}}}, Inner: &item{}}
	text, err := JSONReply(func(context.Context) (*reply, error) { return shared, nil })(t.Context(), requestOf(""))
	const want = `{"items":[{"names":[]},{"names":["<a>"]}],"none":[],"counts":{},"inner":{"names":[]},"nil":null,"bytes":null,"any":null,"at":"0001-01-01T00:00:00Z"}`
	if err != nil || string(text) != want {
		t.Errorf("%s, %v; want %s", text, err, want)
	}
	if shared.None != nil || shared.Items[0].Names != nil || shared.Inner.Names != nil {
		t.Errorf("the handler's value was changed: %+v", shared)
	}
}
