package intake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/lanes"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/ledgerwait"
	"github.com/yardmaster-dev/yardmaster/server/limitkeys"
	"github.com/yardmaster-dev/yardmaster/test/fakeledger"
)

// Every caller gets an answer: if the record is not ingested in time, if the decision is no
// longer known, and if the node stops.
func TestPending_Timeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fakeledger.New()
		w := ledgerwait.New(f, 5*time.Second)
		in := New(Config{Waiters: w, OnReject: func(error) {}})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		ask := func(seq uint64) <-chan error {
			answered := make(chan error, 1)
			p := &pending{in: in, id: job.ID{2}, guarded: true, done: func(a Ack, err error) {
				if err == nil && (a != Ack{ID: job.ID{2}, Position: job.Position{Seq: seq}, Duplicate: false}) {
					err = fmt.Errorf("acknowledgement %+v", a)
				}
				answered <- err
			}}
			p.receive(lanes.Ack{Position: job.Position{Seq: seq}, Duplicate: true}, nil)
			return answered
		}
		undecided := func(name string, err error) {
			t.Helper()
			var away *job.UnavailableError
			if !errors.As(err, &away) || away.RetryAfter <= 0 || !strings.Contains(err.Error(), "ask again under the same keys") {
				t.Errorf("%s: %v", name, err)
			}
		}
		began := time.Now()
		undecided("not ingested", <-ask(1))
		if waited := time.Since(began); waited != 5*time.Second {
			t.Errorf("waited %s", waited)
		}
		guards := &job.Guards{Unique: job.Guard{Key: job.GuardKey{1}, TTL: time.Hour}}
		decided, later := ask(2), ask(3)
		synctest.Wait()
		f.Apply(&ledger.Ingest{Identity: "L0", From: 0, To: 2, CreateQueues: true, Jobs: []job.Job{
			{ID: job.ID{1}, Queue: "mail", Position: job.Position{Seq: 1}},
			{ID: job.ID{2}, Queue: "mail", Position: job.Position{Seq: 2}, Guards: guards},
		}})
		if err := <-decided; err != nil {
			t.Errorf("the decision: %v", err)
		}
		if err := <-ask(2); err != nil {
			t.Errorf("asked again: %v", err)
		}
		began = time.Now()
		undecided("decision forgotten", <-ask(1))
		if time.Since(began) != 0 {
			t.Errorf("it took %s to report that no decision is known", time.Since(began))
		}
		stop()
		undecided("the node stops", <-later)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		undecided("after the stop", <-ask(2))
	})
}

// A job that would create a queue too many is refused, and not published to become a dead
// letter under another id. One for a queue that exists is accepted.
func TestPublish_TooManyQueues(t *testing.T) {
	f := fakeledger.New()
	for n := 0; n < ledger.MaxQueues; n++ { // one is there already
		f.Apply(&ledger.AddQueue{ID: job.ID{1, byte(n >> 8), byte(n)}, Name: fmt.Sprint("q", n)})
	}
	full := func() (is bool) { f.View(func(l *ledger.Ledger) { is = l.QueuesFull() }); return is }
	published := []string{}
	in := New(Config{
		Waiters: ledgerwait.New(f, time.Second), QueuesFull: full, CreateQueues: true,
		OnReject: func(error) {}, OnAccept: func() {}, CheckLoad: func() error { return nil },
		ReadBarrier: func(context.Context) error { return nil },
		DelayAck:    func(_ bool, answer func()) { answer() },
		Publish: func(queue, _ string, _ time.Time, _ []byte, done func(lanes.Ack, error)) {
			published = append(published, queue)
			done(lanes.Ack{Position: job.Position{Seq: 1}}, nil)
		},
	})
	defer in.Close()
	enqueue := func(queue string) error {
		_, err := in.Publish(t.Context(), Job{Queue: queue, Spec: job.Spec{Function: "f"}, Body: []byte(`{"function":"f"}`)})
		return err
	}
	if err := enqueue("another"); !errors.Is(err, job.ErrTooManyQueues) {
		t.Errorf("a queue too many: %v", err)
	}
	f.Apply(&ledger.RemoveQueue{Name: "q1"})
	if err := errors.Join(enqueue("q7"), enqueue("another")); err != nil || !slices.Equal(published, []string{"q7", "another"}) {
		t.Errorf("with space for a queue: %v, published %v", err, published)
	}
}

// TestPublish_RemovesBody checks that the body of a large job is removed if the job is
// refused, unless another record may refer to it or a backup holds it.
func TestPublish_RemovesBody(t *testing.T) {
	unique := job.Spec{Function: "f", UniqueKey: new("k"), UniqueTTLMS: new(int64(3_600_000))}
	limited := job.Spec{Function: "f", RateLimitKey: new("k"), RateLimitMS: new(int64(3_600_000))}
	debounced := job.Spec{Function: "f", DebounceKey: new("k"), DebounceMS: new(int64(3_600_000))}
	guards := func(spec job.Spec) *job.Guards {
		hour := job.Guard{Key: job.GuardKey{1}, TTL: time.Hour}
		switch {
		case spec.UniqueKey != nil:
			return &job.Guards{Unique: hour}
		case spec.RateLimitKey != nil:
			return &job.Guards{Rate: hour}
		}
		return &job.Guards{Debounce: hour}
	}
	for name, c := range map[string]struct {
		spec    job.Spec
		ack     lanes.Ack
		err     error // of the publish
		free    bool  // no other job has the same key
		held    bool  // a backup holds the bodies
		removed bool
	}{
		"unique":       {spec: unique, removed: true},
		"rate limit":   {spec: limited, removed: true},
		"debounced":    {spec: debounced},
		"accepted":     {spec: unique, free: true},
		"backup":       {spec: unique, held: true},
		"repetition":   {spec: unique, ack: lanes.Ack{Duplicate: true}},
		"two attempts": {spec: unique, ack: lanes.Ack{Repeated: true}},
		"not stored":   {spec: unique, err: &job.UnavailableError{Reason: "no lane"}, removed: true},
		"not known":    {spec: unique, err: streams.ErrUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := fakeledger.New()
				if c.held {
					f.Apply(&ledger.Hold{Holder: "backup", Until: time.Now().Add(time.Hour)})
				}
				if !c.free {
					f.Apply(&ledger.Ingest{Identity: "L0", To: 1, CreateQueues: true, Jobs: []job.Job{
						{ID: job.ID{1}, Queue: "mail", Position: job.Position{Seq: 1}, Guards: guards(c.spec)},
					}})
				}
				w := ledgerwait.New(f, 5*time.Second)
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- w.Run(ctx) }()
				var removed []string
				in := New(Config{
					Waiters: w, QueuesFull: func() bool { return false }, CreateQueues: true,
					OnReject: func(error) {}, OnAccept: func() {}, CheckLoad: func() error { return nil },
					StoreBody: func(context.Context, string, []byte) (job.Blob, error) { return job.Blob{Name: "body"}, nil },
					RemoveBody: func(_ context.Context, name string) error {
						removed = append(removed, name)
						return nil
					},
					Publish: func(queue, key string, at time.Time, _ []byte, done func(lanes.Ack, error)) {
						id, _ := job.ParseID(key)
						ack := c.ack
						ack.Position = job.Position{Seq: 1}
						if !c.free {
							ack.Seq++
						}
						if c.err == nil {
							f.Apply(&ledger.Ingest{Identity: "L0", From: ack.Seq - 1, To: ack.Seq, CreateQueues: true, Jobs: []job.Job{
								{ID: id, Queue: queue, Position: ack.Position, Accepted: at, Guards: guards(c.spec)},
							}})
						}
						done(ack, c.err)
					},
				})
				body := []byte(`{"function":"f","params":"` + strings.Repeat("x", job.MaxInlineBody) + `"}`)
				_, err := in.Publish(t.Context(), Job{Queue: "mail", Spec: c.spec, Body: body})
				if err := in.Close(); err != nil {
					t.Fatal(err)
				}
				stop()
				if err := <-ended; err != nil {
					t.Error(err)
				}
				if got := len(removed) == 1 && removed[0] == "body"; got != c.removed {
					t.Errorf("removed %q, want that of the body: %t; the job got %v", removed, c.removed, err)
				}
			})
		})
	}
}

// A job that its lane drops as a repetition of a rejected one is not answered with the
// earlier rejection, whose reason may have passed.
func TestPending_RetryAfterRejection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fakeledger.New()
		w := ledgerwait.New(f, time.Hour)
		in := New(Config{Waiters: w, OnReject: func(error) {}})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		guards := &job.Guards{Unique: job.Guard{Key: job.GuardKey{1}, TTL: time.Hour}}
		f.Apply(&ledger.Ingest{Identity: "L0", From: 0, To: 2, CreateQueues: true, Jobs: []job.Job{
			{ID: job.ID{1}, Queue: "mail", Position: job.Position{Seq: 1}, Guards: guards},
			{ID: job.ID{2}, Queue: "mail", Position: job.Position{Seq: 2}, Guards: guards},
		}})
		ask := func(duplicate bool) error {
			answered := make(chan error, 1)
			p := &pending{in: in, id: job.ID{2}, named: true, guarded: true, done: func(_ Ack, err error) { answered <- err }}
			p.receive(lanes.Ack{Position: job.Position{Seq: 2}, Duplicate: duplicate}, nil)
			return <-answered
		}
		in.cfg.OnAccept = func() {}
		var other *job.DuplicateError
		if err := ask(false); !errors.As(err, &other) || other.ID != (job.ID{1}) {
			t.Errorf("with a held unique key: %v", err)
		}
		var away *job.UnavailableError
		if err := ask(true); !errors.As(err, &away) || away.RetryAfter != StaleDecisionDelay {
			t.Errorf("repeated at once: %v", err)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestPublish_LimitKey checks that the short form of a limit key is stored as limit_key, that a
// job without a key is refused where its queue has a key path, that the record of a large job
// has the key and the indexed params, and that a job which names an unknown limit is refused.
func TestPublish_LimitKey(t *testing.T) {
	f := fakeledger.New()
	f.Apply(&ledger.AddQueue{ID: job.ID{1}, Name: "keyed", Config: job.QueueConfig{KeyPath: "params.customer", Index: []string{"params.customer"}}})
	f.Apply(&ledger.SetLimit{Name: "smtp", Change: job.LimitChange{Total: new(job.Slots(5))}})
	var paths *ledger.AllParamPaths
	f.View(func(l *ledger.Ledger) { paths = l.ParamPaths() })
	var published []byte
	in := New(Config{
		Waiters: ledgerwait.New(f, time.Second), QueuesFull: func() bool { return false }, CreateQueues: true,
		Keys:     &limitkeys.Finder{ParamPaths: func() *ledger.AllParamPaths { return paths }},
		OnReject: func(error) {}, OnAccept: func() {}, CheckLoad: func() error { return nil },
		ReadBarrier: func(context.Context) error { return nil },
		DelayAck:    func(_ bool, answer func()) { answer() },
		StoreBody: func(_ context.Context, id string, body []byte) (job.Blob, error) {
			return job.Blob{Name: id, Chunks: 1, Size: int64(len(body)), SHA256: strings.Repeat("0", 64)}, nil
		},
		Publish: func(_, _ string, _ time.Time, body []byte, done func(lanes.Ack, error)) {
			published = body
			done(lanes.Ack{Position: job.Position{Seq: 1}}, nil)
		},
	})
	defer in.Close()
	large := `,"pad":"` + strings.Repeat("x", job.MaxInlineBody) + `"`
	for _, c := range []struct{ queue, body, want string }{ // want is a part of the record, or of the error after a '!'
		{"mail", `{"function":"f","key":"acme"}`, `{"function":"f","limit_key":"acme"}`},
		{"mail", `{"function":"f","key":"acme","limit_key":"beta"}`, "!key and limit_key differ"},
		{"mail", `{"function":"f","limits":{"smtp":""}}`, `"limits":{"smtp":""}`},
		{"mail", `{"function":"f","limits":{"smtp":"","stripe":""}}`, "!yardmaster limit set stripe"},
		{"keyed", `{"params":{"customer":"acme"}}`, `{"params":{"customer":"acme"}}`},
		{"keyed", `{"params":{"customer":7` + large + `}}`, `"limit_key":"7"`},
		{"keyed", `{"params":{"customer":7` + large + `}}`, `"indexed":{"customer":"7"}`},
		{"keyed", `{"params":{"client":"acme"}}`, "!params.customer"},
		{"keyed", `{"params":{"client":"acme"` + large + `}}`, "!params.customer"},
	} {
		spec, ok := job.ScanSpec([]byte(c.body))
		if !ok {
			if err := json.Unmarshal([]byte(c.body), &spec); err != nil {
				t.Fatal(err)
			}
		}
		published = nil
		_, err := in.Publish(t.Context(), Job{Queue: c.queue, Spec: spec, Body: []byte(c.body), Block: true})
		name := c.body[:min(len(c.body), 80)]
		reason, refused := strings.CutPrefix(c.want, "!")
		switch _, invalid := errors.AsType[*job.InvalidError](err); {
		case refused:
			if !invalid || !strings.Contains(err.Error(), reason) || published != nil {
				t.Errorf("%s: error %v, want %q; published %.80s", name, err, reason, published)
			}
		case err != nil || !strings.Contains(string(published), c.want):
			t.Errorf("%s: published %.200s, %v; want %s", name, published, err, c.want)
		}
	}
}
