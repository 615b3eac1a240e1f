package bench

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
)

// TestLoad_LateOrLost checks that jobs count as lost only once none ends any more.
func TestLoad_LateOrLost(t *testing.T) {
	for _, c := range []struct {
		what string
		ends []time.Duration // when jobs end
		want string          // part of the error; "": none
	}{
		{"late", []time.Duration{0, waitTimeout / 2, waitTimeout * 5 / 4, 2 * waitTimeout}, ""},
		{"lost", []time.Duration{0, waitTimeout / 2, waitTimeout * 5 / 4}, "accepted 4, settled 3, and none for " + waitTimeout.String() + ": 1 are lost"},
		{"twice", []time.Duration{0, 0, 0, 0, 0}, "1 ended twice"},
		{"no time", []time.Duration{0, waitTimeout / 2, waitTimeout * 5 / 4, 10 * waitTimeout}, "1 are late or lost"},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var l load
				l.accepted.Store(4)
				for _, at := range c.ends {
					time.AfterFunc(at, func() { l.settled.Add(1) })
				}
				synctest.Wait()
				ctx := t.Context()
				if c.what == "no time" {
					limited, cancel := context.WithTimeout(ctx, 2*waitTimeout)
					defer cancel()
					ctx = limited
				}
				err := l.awaitEnds(ctx)
				if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
					t.Errorf("got %v, want %q", err, c.want)
				}
			})
		})
	}
}

// TestAnswered checks which answers end a call, with errors or without, and which leave it
// to be repeated.
func TestAnswered(t *testing.T) {
	keyed := nats.Header{"Nats-Msg-Id": {"k"}}
	for _, c := range []struct {
		what   string
		header nats.Header // of the call
		answer *nats.Msg
		want   string // "open", "" for success, or part of the error
	}{
		{"stored", keyed, &nats.Msg{Data: []byte(`{"stream":"BENCH","seq":1}`)}, ""},
		{"duplicate in process", keyed, &nats.Msg{Data: []byte(`{"error":{"code":409,"err_code":10158,"description":"duplicate message id is in process"}}`)}, "open"},
		{"duplicate in process, no key", nil, &nats.Msg{Data: []byte(`{"error":{"code":409,"err_code":10158,"description":"duplicate message id is in process"}}`)}, "in process"},
		{"no leader", keyed, &nats.Msg{Header: nats.Header{"Status": {"503"}}}, "open"},
		{"refused", keyed, &nats.Msg{Data: []byte(`{"error":{"code":400,"description":"bad"}}`)}, "bad"},
	} {
		got := "open"
		conn := &natsConn{waiting: map[string]*call{"1": {message: &nats.Msg{Header: c.header}, done: func(_ *nats.Msg, err error) {
			got = ""
			if err != nil {
				got = err.Error()
			}
		}}}}
		c.answer.Subject = "1"
		conn.answered(c.answer)
		if got == "" != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.what, got, c.want)
		}
		if open := len(conn.waiting) > 0; open != (c.want == "open") {
			t.Errorf("%s: the call still waits: %t", c.what, open)
		}
	}
}

// immediate is a transport that accepts each job at once, and settles it a moment later.
type immediate struct{ unsettled int64 } // the most at a time

func (m *immediate) submit(l *load, i int, _ time.Duration, done func(error)) {
	m.unsettled = max(m.unsettled, int64(i)+1-l.settled.Load())
	done(nil)
	go l.ended(int64(i))
}

func (*immediate) repeat(time.Duration) int { return 0 }

// TestLoad_Saturate checks that no more jobs than the limit are unsettled, and that all are enqueued.
func TestLoad_Saturate(t *testing.T) {
	m := &immediate{}
	l := &load{transports: []transport{m}}
	l.begin()
	err := perform(t.Context(), "", func(t *task) { l.saturate(t, 3, func(i int) bool { return i < 100 }) })
	if err != nil || l.accepted.Load() != 100 || m.unsettled < 1 || m.unsettled > 3 {
		t.Errorf("error %v, %d accepted, %d unsettled", err, l.accepted.Load(), m.unsettled)
	}
}
