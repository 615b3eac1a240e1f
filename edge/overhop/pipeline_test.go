package overhop

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

// A pipeline passes each answer to its request, and fails what is left.
func TestPipeline(t *testing.T) {
	pl := pipeline{maxFrame: MinFrameLimit, wake: make(chan struct{}, 1), closed: make(chan struct{}), pending: map[uint64]func(Raw, error){}}
	var got []error
	add := func(p Raw) error {
		return pl.addLocked(TPing, p.append, func(_ Raw, err error) { got = append(got, err) })
	}
	for range 2 {
		if err := add(EmptyMap); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok := errors.AsType[*frame.TooLargeError](add(AppendBin(nil, make([]byte, MinFrameLimit)))); !ok {
		t.Error("a request beyond the limit was taken")
	}
	for _, rid := range []string{"3", "02", "x", "", "18446744073709551618"} {
		if err := pl.answer(TOK, []byte(rid), EmptyMap); err == nil {
			t.Errorf("an answer to an unsent request %q was taken", rid)
		}
	}
	if err := pl.answer(TOK, []byte("2"), EmptyMap); err != nil {
		t.Error(err)
	}
	pl.fail(ErrClosed)
	if len(got) != 2 || got[0] != nil || got[1] != ErrClosed {
		t.Errorf("answers are %v, want one and ErrClosed", got)
	}
	if err := add(EmptyMap); err != ErrClosed {
		t.Errorf("a request after the end: %v", err)
	}
}

// Calls wait while too much output is unsent, until it is taken.
func TestPipeline_Backpressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pl := pipeline{out: make([]byte, maxUnsent)}
		writable := make(chan error)
		go func() { writable <- pl.lockWritable(t.Context()) }()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := pl.lockWritable(ctx); err != context.Canceled {
			t.Errorf("a call waits: %v", err)
		}
		synctest.Wait()
		if got := len(pl.take(nil)); got != maxUnsent {
			t.Errorf("%d bytes were taken", got)
		}
		if err := <-writable; err != nil {
			t.Error(err)
		}
		pl.mu.Unlock()
	})
}
