package backoff

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"
)

func TestNext_GrowsToMax(t *testing.T) {
	b := Backoff{Base: 10 * time.Millisecond, Max: 100 * time.Millisecond}
	for _, whole := range []time.Duration{10, 20, 40, 80, 100, 100, 100} {
		whole *= time.Millisecond
		if d := b.Next(); d < whole/2 || d > whole {
			t.Fatalf("pause is %s, want %s to %s", d, whole/2, whole)
		}
	}
	b.Reset()
	if d := b.Next(); d > 10*time.Millisecond {
		t.Fatalf("pause after reset is %s, want at most 10ms", d)
	}
}

func TestNext_Jitters(t *testing.T) {
	b := Backoff{Base: time.Second, Max: time.Second}
	first := b.Next()
	for range 50 {
		if b.Next() != first {
			return
		}
	}
	t.Fatal("51 pauses are the same: no jitter")
}

func TestNext_ExtremeLimits(t *testing.T) {
	for _, b := range []Backoff{
		{Base: time.Hour, Max: time.Second},
		{Base: 1, Max: math.MaxInt64},
		{Base: math.MaxInt64, Max: math.MaxInt64},
	} {
		for range 80 {
			if d := b.Next(); d < 0 || d > b.Max {
				t.Fatalf("%+v: pause is %s", b, d)
			}
		}
	}
}

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		if err := Sleep(t.Context(), time.Minute); err != nil || time.Since(begin) != time.Minute {
			t.Fatalf("slept %s with error %v, want 1m0s", time.Since(begin), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin = time.Now()
		if err := Sleep(ctx, time.Minute); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != time.Second {
			t.Fatalf("slept %s with error %v, want 1s and its deadline", time.Since(begin), err)
		}
		if err := Sleep(ctx, 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("sleep of nothing on an ended context gave %v", err)
		}
	})
}
