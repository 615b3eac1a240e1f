package console

import (
	"context"
	"log/slog"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/crash"
)

// Times of cached values.
const (
	loadTimeout  = 5 * time.Second
	staleTimeout = 500 * time.Millisecond // after which a page shows the last value
	lateTimeout  = 100 * time.Millisecond // for what a page can do without
	staleMost    = 30 * time.Second       // as long as it is not older
)

// cached keeps a value for all pages that show it. Its zero value with load and valid is
// ready to use.
type cached[T any] struct {
	log   *slog.Logger
	load  func(context.Context) (T, error)
	valid time.Duration

	mu      crash.Mutex
	value   T
	err     error
	loaded  time.Time
	loading chan struct{} // closed at the end of the load that runs; nil: none does
}

// get returns the value. If the last one is too old it loads another, once for all callers,
// and waits for it: for staleTimeout if there is a value that it can return instead.
func (c *cached[T]) get(ctx context.Context) (T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if age := time.Since(c.loaded); age > c.valid {
		if c.loading == nil {
			c.loading = make(chan struct{})
			go c.run(context.WithoutCancel(ctx), c.loading)
		}
		wait := loadTimeout
		if age < staleMost {
			wait = staleTimeout
		}
		ended := c.loading
		c.mu.Unlock()
		select {
		case <-ended:
		case <-time.After(wait):
		case <-ctx.Done():
		}
		c.mu.Lock()
	}
	return c.value, c.err
}

// soon is like get, but waits no longer than a page may be late for it.
func (c *cached[T]) soon(ctx context.Context) T {
	ctx, cancel := context.WithTimeout(ctx, lateTimeout)
	defer cancel()
	value, _ := c.get(ctx)
	return value
}

// run loads the value and closes ended.
func (c *cached[T]) run(ctx context.Context, ended chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	value, err := c.loadOnce(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.value = value
	}
	c.err, c.loaded, c.loading = err, time.Now(), nil
	close(ended)
}

// loadOnce loads the value. A panic of load is an error.
func (c *cached[T]) loadOnce(ctx context.Context) (value T, err error) {
	defer crash.Contain(c.log, crash.HTTP, func(cause error) { err = cause })
	return c.load(ctx)
}
