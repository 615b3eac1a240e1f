package overhop

import (
	"bytes"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// All fields of an Enqueue are parsed as they were encoded, and in the one form of the
// protocol, with sorted keys.
func TestEnqueue_RoundTrip(t *testing.T) {
	for _, want := range []Enqueue{
		{Queue: "jobs", Payload: Raw{0x01}},
		{
			Queue: "jobs", Payload: EmptyMap, At: time.Unix(1_900_000_000, 0).UTC(), MaxAttempts: 3, RetryInterval: 4,
			Function: "r#h", Key: "k", Timeout: 5, Priority: new(int64(0)), Trace: map[string]string{"a": "b"}, Notify: true, ResultTTL: 7,
			UniqueKey: new("u"), UniqueTTL: new(int64(6)), RateLimitKey: new("r"), RateLimit: new(int64(7)),
			DebounceKey: new("d"), Debounce: new(int64(8)),
		},
		{Queue: "jobs", Payload: Nil, UniqueKey: new("")},
		{Queue: "jobs", Payload: Nil, Debounce: new(int64(-1))},
	} {
		encoded := Raw(want.append(nil, new(Client)))
		fields := Fields{}
		for key, value := range encoded.Pairs() {
			fields[string(key)] = value
		}
		if canonical := fields.Raw(); !bytes.Equal(encoded, canonical) {
			t.Errorf("%+v is encoded as\n%x, want\n%x", want, encoded, canonical)
		}
		got, err := ParseEnqueue(encoded, true)
		if err != nil {
			t.Errorf("%+v: %v", want, err)
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
	}
}

// Delays out of range are limited to it, because a node would close the
// connection.
func TestClient_Delays(t *testing.T) {
	for _, c := range []struct{ given, want, wait time.Duration }{
		{-time.Second, 0, 0},
		{math.MinInt64, 0, 0},
		{time.Second, time.Second, time.Second},
		{math.MaxInt64, math.MaxInt64 / time.Millisecond * time.Millisecond, MaxAwait},
	} {
		synctest.Test(t, func(t *testing.T) {
			y := newFakeCluster(t)
			client, _ := connect(t, y, Options{})
			client.Fail(new(Quest), Fail{RetryAfter: &c.given}, nil)
			client.Nack(new(Quest), Nack{Delay: c.given}, nil)
			client.Await(t.Context(), "mail:1", c.given)
			n := y.node(0)
			if f, err := ParseFail(n.onlyMessage(TFail)); err != nil || f.RetryAfter == nil || *f.RetryAfter != c.want {
				t.Errorf("FAIL after %s: %+v, %v", c.given, f, err)
			}
			if got, err := ParseNack(n.onlyMessage(TNack)); err != nil || got.Delay != c.want {
				t.Errorf("NACK after %s: %s, %v", c.given, got.Delay, err)
			}
			if _, wait, err := ParseAwait(n.onlyMessage(TAwait)); err != nil || wait != c.wait {
				t.Errorf("AWAIT of %s: %s, %v", c.given, wait, err)
			}
			client.Close()
		})
	}
}
