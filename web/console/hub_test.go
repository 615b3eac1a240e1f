package console

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/web/console/calls"
	"github.com/yardmaster-dev/yardmaster/web/console/session"
)

// pipes is a listener in memory. Its connections have no buffers: what a browser does not read
// blocks the server.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{} }

// browsers is a console in a bubble, of a yard whose queue mail gets a job each second, and
// which has an endpoint overview.
type browsers struct {
	console   *Console
	pipes     pipes
	waiting   atomic.Int64 // jobs of the queue
	overviews atomic.Int64 // requests
	delay     atomic.Int64 // nanoseconds until an overview is answered
}

// open opens a stream of a page and returns it after its header.
func (b *browsers) open(t *testing.T, path string) (net.Conn, *bufio.Reader) {
	t.Helper()
	browser, server := net.Pipe()
	b.pipes <- server
	if _, err := fmt.Fprintf(browser, "GET %s HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n", path); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(browser)
	response, err := http.ReadResponse(r, nil)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", response, err)
	}
	return browser, bufio.NewReader(response.Body)
}

// inBubble runs a test with browsers.
func inBubble(t *testing.T, test func(t *testing.T, b *browsers)) {
	synctest.Test(t, func(t *testing.T) {
		b := &browsers{pipes: make(pipes)}
		ctx, stop := context.WithCancel(t.Context())
		var changed atomic.Pointer[chan struct{}]
		changed.Store(new(make(chan struct{})))
		b.console, _ = newConsole(t, func(cfg *Config) {
			call := cfg.Call
			cfg.Users, cfg.Anonymous = nil, &session.User{May: func(string) bool { return true }}
			cfg.Applied = func() (uint64, <-chan struct{}) { return 1, *changed.Load() }
			cfg.Call = func(ctx context.Context, c *calls.Call) ([]byte, error) {
				switch c.Endpoint {
				case "queue-list":
					return json.Marshal(api.QueueList{Queues: []api.Queue{{Name: "mail", Counts: map[string]int{"waiting": int(b.waiting.Load())}}}})
				case "overview":
					b.overviews.Add(1)
					sleep(ctx, time.Duration(b.delay.Load()))
					return json.Marshal(api.Overview{Backlog: map[string]int{"waiting": int(b.waiting.Load())}})
				}
				return call(ctx, c)
			}
		})
		server := &http.Server{Handler: b.console}
		go func() { _ = server.Serve(b.pipes) }() // ends with the pipes
		go func() {
			for ctx.Err() == nil {
				sleep(ctx, time.Second)
				b.waiting.Add(1)
				close(*changed.Swap(new(make(chan struct{}))))
			}
		}()
		test(t, b)
		stop()
		close(b.pipes)
		_ = server.Close() // the pipes are closed
		synctest.Wait()
	})
}

// waitingOf matches the number of waiting jobs on a page.
var waitingOf = regexp.MustCompile(`(?:data-label="Waiting" class="num">|<span class="number">)(\d+)<`)

// nextPage returns the number of waiting jobs on the next page of a stream.
func nextPage(r *bufio.Reader) (waiting int, err error) {
	waiting = -1
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return 0, err
		}
		if found := waitingOf.FindStringSubmatch(line); found != nil && waiting < 0 {
			waiting, _ = strconv.Atoi(found[1])
		}
		if line == "\n" && waiting >= 0 {
			return waiting, nil
		}
	}
}

// A browser that does not read does not delay others. It gets the latest page once it reads
// again, without those in between, and is cut off after some time.
func TestStream_SlowBrowser(t *testing.T) {
	inBubble(t, func(t *testing.T, b *browsers) {
		_, slow := b.open(t, Path+"queues")
		_, fast := b.open(t, Path+"queues")
		gone, _ := b.open(t, Path+"queues")
		last := -1
		for began := time.Now(); time.Since(began) < 10*time.Second; {
			before := time.Now()
			page, err := nextPage(fast)
			if err != nil || page <= last || time.Since(before) > 2*pauseBetween {
				t.Fatalf("after %s the page has %d, before %d: %v", time.Since(before), page, last, err)
			}
			last = page
		}
		first, err := nextPage(slow)
		second, err2 := nextPage(slow)
		if err != nil || err2 != nil || first != 0 || second < last {
			t.Errorf("a slow browser gets pages with %d, %v and %d, %v; want 0 and the latest, %d", first, err, second, err2, last)
		}
		for range 6 { // until one of the others is cut off
			if _, err := nextPage(fast); err != nil {
				t.Fatal(err)
			}
			if _, err := nextPage(slow); err != nil {
				t.Fatal(err)
			}
		}
		b.console.hub.mu.Lock()
		streams, topics := b.console.hub.streams, len(b.console.hub.topics)
		b.console.hub.mu.Unlock()
		if streams != 2 || topics != 1 {
			t.Errorf("%d streams and %d topics are left, want 2 and 1", streams, topics)
		}
		if rest, err := io.ReadAll(gone); err != nil || len(rest) > 64<<10 {
			t.Errorf("a browser that is cut off gets %d bytes, %v", len(rest), err)
		}
	})
}

// Two hundred open overviews cost one overview each second.
func TestStream_ManyBrowsers(t *testing.T) {
	const count = 200
	inBubble(t, func(t *testing.T, b *browsers) {
		var pages [count]atomic.Int64
		for i := range count {
			_, r := b.open(t, Path)
			go func() {
				for {
					page, err := nextPage(r)
					if err != nil {
						return
					}
					pages[i].Store(int64(page))
				}
			}()
		}
		before := b.overviews.Load()
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if n := b.overviews.Load() - before; n < 10 || n > 21 {
			t.Errorf("%d overviews in 20 seconds", n)
		}
		for i := range pages {
			if page := pages[i].Load(); page < 18 {
				t.Errorf("browser %d has the page with %d jobs", i, page)
			}
		}
	})
}

// A page whose renderings waited for members that did not answer is current soon after they
// answer again.
func TestStream_SlowYard(t *testing.T) {
	inBubble(t, func(t *testing.T, b *browsers) {
		const delay = 6 * time.Second
		b.delay.Store(int64(delay))
		_, r := b.open(t, Path)
		if _, err := nextPage(r); err != nil {
			t.Fatal(err)
		}
		b.delay.Store(0)
		before := time.Now()
		page, err := nextPage(r)
		if waited := time.Since(before); err != nil || waited > pauseIdle {
			t.Errorf("the next page has %d after %s: %v", page, waited, err)
		}
	})
}
