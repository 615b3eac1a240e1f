package web

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"yardmaster/internal/testlog"
)

// question is what the tests' route asks.
type question struct {
	ID      string   `json:"id"`
	Letters []uint64 `json:"letters"`
	Limit   int      `json:"limit"`
	WaitMS  int64    `json:"wait_ms"`
}

// open serves routes until the test ends, and gives where.
func open(t *testing.T, change func(*Server), routes ...Route) (s *Server, addr string) {
	t.Helper()
	s = New(Config{Metrics: NewMetrics(), Ready: func(context.Context) (bool, any) { return false, "no" }}, testlog.Discard())
	if change != nil {
		change(s)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	apiCtx, apiCancel := context.WithCancel(ctx)
	ended := make(chan error, 2)
	go func() { ended <- s.Serve(ctx, ln) }()
	if len(routes) > 0 {
		go func() { ended <- s.ServeAPI(apiCtx, routes) }()
		for s.api.Load() == nil && len(ended) == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	t.Cleanup(func() {
		apiCancel()
		if len(routes) > 0 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s, ln.Addr().String()
}

// say sends bytes on a connection of its own and reads the answer.
func say(t *testing.T, addr, text string) (status int, body string) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	w, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("%.120q: %v", text, err)
	}
	defer w.Body.Close()
	said, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	return w.StatusCode, string(said)
}

func echo(_ context.Context, q *Question) ([]byte, error) { return q.Data, nil }

// A path and a query make the question that a body would be.
func TestQuestion(t *testing.T) {
	_, addr := open(t, nil,
		Route{Name: "show", Pattern: "GET /v1/things/{id}", Question: question{}, Takes: "letters limit wait_ms", Do: echo},
		Route{Name: "change", Pattern: "POST /v1/things/{id}", Question: question{}, Takes: "*", Do: echo})
	for line, want := range map[string]string{
		"GET /v1/things/a%2Fb?letters=4&letters=9&limit=2&wait=3s": `{"id":"a/b","letters":[4,9],"limit":2,"wait_ms":3000}`,
		"GET /v1/things/a?limit=2&limit=3":                         "must be given once",
		"GET /v1/things/a?limit=two":                               "must be a whole number",
		"GET /v1/things/a?wait=3":                                  "such as 30s",
		"GET /v1/things/a?id=b":                                    "there are: letters, limit, wait",
		"POST /v1/things/a?limit=2":                                "there are: none",
		"DELETE /v1/things/a":                                      "but by GET, HEAD, POST",
	} {
		if _, said := say(t, addr, line+" HTTP/1.1\r\nHost: x\r\n\r\n"); !strings.Contains(said, want) {
			t.Errorf("%s: %s, want %s", line, said, want)
		}
	}
	for body, want := range map[string]string{
		`{"limit":3}`: `{"id":"a","limit":3}`, `{"id":"a"}`: `{"id":"a"}`, `{"id":"b"}`: "in the body and", `null`: `{"id":"a"}`, `3`: "JSON object",
	} {
		if _, said := say(t, addr, fmt.Sprintf("POST /v1/things/a HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)); !strings.Contains(said, want) {
			t.Errorf("%s: %s, want %s", body, said, want)
		}
	}
}

// Before and after the node takes questions the door says so, and lives.
func TestServe_NoAPI(t *testing.T) {
	_, addr := open(t, nil)
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 503, "/v1/status": 503, "/metrics": 200} {
		if status, said := say(t, addr, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); status != want {
			t.Errorf("%s: %d %s, want %d", path, status, said, want)
		}
	}
}

// A body that does not come, or comes with too many others, is not waited for.
func TestRead_Bounds(t *testing.T) {
	route := Route{Name: "change", Pattern: "POST /v1/things", Question: question{}, Do: echo}
	s, addr := open(t, func(s *Server) { s.bodyTime, s.memory = 100*time.Millisecond, newBudget(3*bodyStep) }, route)
	head := "POST /v1/things HTTP/1.1\r\nHost: x\r\n"
	full := strings.Repeat("x", 4*bodyStep)
	for text, want := range map[string]int{
		head + "Content-Length: 100\r\n\r\nslow":                                               408,
		head + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(full), full):                    503,
		head + fmt.Sprintf("Content-Length: %d\r\n\r\n", maxBody+1):                            413,
		head + "Transfer-Encoding: chunked\r\n\r\n4\r\n{\"a\"\r\n3\r\n:1}\r\n0\r\n\r\n":        200,
		head + "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}":                         415,
		head + "Origin: http://elsewhere.example\r\nContent-Length: 2\r\n\r\n{}":               403,
		"GET /v1/things HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 40<<10) + "\r\n\r\n": 431,
	} {
		if status, said := say(t, addr, text); status != want {
			t.Errorf("%.120q: %d %s, want %d", text, status, said, want)
		}
	}
	left(t, "bytes of the budget", s.memory.free, 3*bodyStep)
}

// left waits until those who have been answered have left: an answer is heard
// before its handler has returned.
func left(t *testing.T, what string, n *atomic.Int64, want int64) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); n.Load() != want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d %s, want %d", n.Load(), what, want)
		}
	}
}

// One connection more than there may be is closed, and one that ends makes room.
func TestBounded(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &bounded{Listener: ln, free: newBudget(1)}
	taken := make(chan net.Conn, 3)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := b.Accept()
			if err != nil {
				return
			}
			taken <- c
		}
	}()
	defer func() { ln.Close(); <-ended }()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	first := dial()
	defer first.Close()
	inside := <-taken
	second := dial()
	defer second.Close()
	if _, err := second.Read(make([]byte, 1)); err == nil {
		t.Error("the second connection is not closed")
	}
	inside.Close()
	inside.Close() // as often as it likes
	third := dial()
	defer third.Close()
	(<-taken).Close()
	if free := b.free.free.Load(); free != 1 {
		t.Errorf("room for %d, want 1", free)
	}
}

// A route that does not fit its question is refused, not served.
func TestEntry_Wrong(t *testing.T) {
	for _, r := range []Route{
		{Pattern: "GET /v1/things/{nothing}", Question: question{}},
		{Pattern: "GET /v1/things", Question: question{}, Takes: "nothing"},
		{Pattern: "GET /v1/things", Question: question{}, Required: "nothing"},
	} {
		if _, err := newEntry(&r); err == nil || !strings.Contains(err.Error(), "nothing") {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

// The document is JSON that says of which version it is.
func TestDescribe(t *testing.T) {
	r := Route{Name: "show", Pattern: "GET /v1/things/{letters}", Question: question{}, Takes: "wait_ms", Answer: question{}}
	e, err := newEntry(&r)
	if err != nil {
		t.Fatal(err)
	}
	text, err := describe("v1.2.3", true, []*entry{e})
	if err != nil {
		t.Fatal(err)
	}
	var document map[string]any
	if err := json.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"3.1.0"`, `"v1.2.3"`, `"bearer"`, `"/v1/things/{letters}"`, `"name": "wait"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("there is no %s in %s", want, text)
		}
	}
}

// Without a token the door answers to no name that a page of another site can
// have been loaded from; with one it does, for such a page has no token.
func TestAdmit_Names(t *testing.T) {
	route := Route{Name: "show", Pattern: "GET /v1/things", Do: echo}
	token := ""
	for range 2 {
		_, addr := open(t, func(s *Server) { s.cfg.Token = token }, route)
		for host, own := range map[string]bool{
			"127.0.0.1:4280": true, "[::1]:4280": true, "192.0.2.7": true, "localhost:4280": true, "LOCALHOST.": true, "yard.localhost": true,
			"node-1:4280": true, "elsewhere.example:4280": false, "127.0.0.1.elsewhere.example": false, "localhost.elsewhere.example": false,
		} {
			want := http.StatusForbidden
			if own || token != "" {
				want = http.StatusOK
			}
			for _, path := range []string{"/v1/things", "/metrics"} {
				said, text := say(t, addr, "GET "+path+" HTTP/1.1\r\nHost: "+host+"\r\nAuthorization: Bearer "+token+"\r\n\r\n")
				if said != want {
					t.Errorf("%s of %s with token %q: %d %.80s, want %d", path, host, token, said, text, want)
				}
			}
			if said, text := say(t, addr, "GET /healthz HTTP/1.1\r\nHost: "+host+"\r\n\r\n"); said != http.StatusOK {
				t.Errorf("/healthz of %s: %d %s", host, said, text)
			}
		}
		token = "secret"
	}
}

// Who announces a body and sends none is not waited for, whatever was asked and
// whoever asks.
func TestServe_NoBody(t *testing.T) {
	route := Route{Name: "change", Pattern: "POST /v1/things", Question: question{}, Do: echo}
	_, addr := open(t, func(s *Server) { s.bodyTime, s.cfg.Token = 50*time.Millisecond, "secret" }, route)
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/v1/things", "/v1/nothing", "/"} {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", path)
		if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if said, err := io.ReadAll(c); err != nil {
			t.Errorf("%s: after %.60q the connection goes on: %v", path, said, err)
		}
	}
}

// Those who look at readiness, however many and however long it takes, do not
// let the process seem dead.
func TestServe_Healthz(t *testing.T) {
	s, addr := open(t, nil)
	for range cap(s.checks) {
		s.checks <- struct{}{}
	}
	for path, want := range map[string]int{"/healthz": http.StatusOK, "/readyz": http.StatusServiceUnavailable} {
		if status, said := say(t, addr, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); status != want {
			t.Errorf("%s: %d %s, want %d", path, status, said, want)
		}
	}
}

// Who waits gives the memory of what it asked back before that.
func TestQuestion_Free(t *testing.T) {
	inside, leave := make(chan struct{}), make(chan struct{})
	wait := func(_ context.Context, q *Question) ([]byte, error) {
		q.Free()
		close(inside)
		<-leave
		return q.Data, nil
	}
	s, addr := open(t, nil, Route{Name: "wait", Pattern: "POST /v1/waits", Question: question{}, Waits: true, Do: wait})
	answered := make(chan string, 1)
	go func() {
		_, said := say(t, addr, "POST /v1/waits HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
		answered <- said
	}()
	<-inside
	if free := s.memory.free.Load(); free != bodyMemory {
		t.Errorf("%d bytes of the budget are free while it waits, want %d", free, bodyMemory)
	}
	close(leave)
	if said := <-answered; said != "null" {
		t.Errorf("the answer is %s", said)
	}
	left(t, "bytes of the budget", s.memory.free, bodyMemory)
}

// Those who wait leave connections to those who do not.
func TestServe_Waits(t *testing.T) {
	s, addr := open(t, nil,
		Route{Name: "wait", Pattern: "GET /v1/wait", Question: question{}, Waits: true, Do: echo},
		Route{Name: "show", Pattern: "GET /v1/show", Question: question{}, Do: echo})
	for waiting, want := range map[int64]int{waitsAtOnce - 1: http.StatusOK, waitsAtOnce: http.StatusServiceUnavailable} {
		s.waiting.Store(waiting)
		for path, want := range map[string]int{"/v1/wait": want, "/v1/show": http.StatusOK} {
			if status, said := say(t, addr, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); status != want {
				t.Errorf("%s while %d wait: %d %s, want %d", path, waiting, status, said, want)
			}
		}
		left(t, "places", &s.waiting, waiting)
	}
	if waitsAtOnce+quickAtOnce+checksAtOnce >= maxConnections {
		t.Error("those who wait and those who ask may take all connections")
	}
}
