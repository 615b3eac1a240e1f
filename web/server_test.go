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

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/test/testlog"
)

// testRequest is the request of the routes in tests.
type testRequest struct {
	ID      string   `json:"id"`
	Letters []uint64 `json:"letters"`
	Limit   int      `json:"limit"`
	WaitMS  int64    `json:"wait_ms"`
}

// startServer serves routes until the test ends, and returns the address.
func startServer(t *testing.T, change func(*Server), routes ...Route) (s *Server, addr string) {
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

// tokenUsers returns the user of a token with all roles; for "" no users.
func tokenUsers(token string) users {
	if token == "" {
		return newUsers(nil, nil)
	}
	return newUsers([]User{{Name: "ann", Token: token, May: anyone.May}}, nil)
}

// sendRaw sends text on a new connection and returns the response.
func sendRaw(t *testing.T, addr, text string) (status int, body string) {
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
	got, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	return w.StatusCode, string(got)
}

func echo(_ context.Context, q *Request) ([]byte, error) { return q.Data, nil }

// The addresses of the console are its handler's, and lead there without the last slash.
func TestServeConsole(t *testing.T) {
	s, addr := startServer(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- s.ServeConsole(ctx, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	}()
	for s.console.Load() == nil {
		time.Sleep(time.Millisecond)
	}
	for path, want := range map[string]int{"/": http.StatusSeeOther, "/console": http.StatusSeeOther, "/console/": http.StatusTeapot, "/console/x": http.StatusTeapot, "/consoles": http.StatusServiceUnavailable} {
		if status, _ := sendRaw(t, addr, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); status != want {
			t.Errorf("%s: %d, want %d", path, status, want)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Values of the path and the query are merged into the request.
func TestRequest(t *testing.T) {
	_, addr := startServer(t, nil,
		Route{Endpoint: api.Endpoint{Name: "show", Pattern: "GET /v1/things/{id}", Request: testRequest{}, Accepts: "letters limit wait_ms"}, Handle: echo},
		Route{Endpoint: api.Endpoint{Name: "change", Pattern: "POST /v1/things/{id}", Request: testRequest{}, Accepts: "*"}, Handle: echo},
		Route{Endpoint: api.Endpoint{Name: "set", Pattern: "PATCH /v1/things/{id}", Request: testRequest{}, Accepts: "*", Query: "limit"}, Handle: echo})
	for line, want := range map[string]string{
		"GET /v1/things/a%2Fb?letters=4&letters=9&limit=2&wait=3s": `{"id":"a/b","letters":[4,9],"limit":2,"wait_ms":3000}`,
		"GET /v1/things/a?limit=2&limit=3":                         "must be given once",
		"GET /v1/things/a?limit=two":                               "must be a whole number",
		"GET /v1/things/a?wait=3":                                  "such as 30s",
		"GET /v1/things/a?id=b":                                    "known are: letters, limit, wait",
		"POST /v1/things/a?limit=2":                                "takes limit in the body, not as a parameter",
		"POST /v1/things/a?most=2":                                 "known are: none",
		"PATCH /v1/things/a?limit=2":                               `{"id":"a","limit":2}`,
		"PATCH /v1/things/a?most=2":                                "known are: limit\"",
		"DELETE /v1/things/a":                                      "use GET, HEAD, PATCH, POST",
	} {
		if _, got := sendRaw(t, addr, line+" HTTP/1.1\r\nHost: x\r\n\r\n"); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", line, got, want)
		}
	}
	for body, want := range map[string]string{
		`{"limit":3}`: `{"id":"a","limit":3}`, `{"id":"a"}`: `{"id":"a"}`, `{"id":"b"}`: "in the body and", `null`: `{"id":"a"}`, `3`: "JSON object",
	} {
		if _, got := sendRaw(t, addr, fmt.Sprintf("POST /v1/things/a HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", body, got, want)
		}
	}
}

// Without ServeAPI only health checks and metrics are served.
func TestServe_APINotReady(t *testing.T) {
	_, addr := startServer(t, nil)
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 503, "/v1/status": 503, "/metrics": 200} {
		if status, body := sendRaw(t, addr, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); status != want {
			t.Errorf("%s: %d %s, want %d", path, status, body, want)
		}
	}
}

// A body that arrives too slowly, is too large or exceeds the memory budget is
// refused.
func TestRead_Bounds(t *testing.T) {
	route := Route{Endpoint: api.Endpoint{Name: "change", Pattern: "POST /v1/things", Request: testRequest{}}, Handle: echo}
	s, addr := startServer(t, func(s *Server) { s.bodyTimeout, s.memory = 100*time.Millisecond, newBudget(3*bodyStep) }, route)
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
		if status, body := sendRaw(t, addr, text); status != want {
			t.Errorf("%.120q: %d %s, want %d", text, status, body, want)
		}
	}
	waitCount(t, "bytes of the budget", s.memory.free, 3*bodyStep)
}

// waitCount blocks until n is want: a response arrives before its handler has
// returned.
func waitCount(t *testing.T, what string, n *atomic.Int64, want int64) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); n.Load() != want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d %s, want %d", n.Load(), what, want)
		}
	}
}

// A connection beyond the limit is closed; closing one, even twice, frees one.
func TestLimitListener(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &limitListener{Listener: ln, free: newBudget(1)}
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
	inside.Close() // counts once
	third := dial()
	defer third.Close()
	(<-taken).Close()
	if free := b.free.free.Load(); free != 1 {
		t.Errorf("%d connections free, want 1", free)
	}
}

// A route that names a field that its request does not have is an error.
func TestEndpoint_Invalid(t *testing.T) {
	for _, described := range []api.Endpoint{
		{Pattern: "GET /v1/things/{nothing}", Request: testRequest{}},
		{Pattern: "GET /v1/things", Request: testRequest{}, Accepts: "nothing"},
		{Pattern: "GET /v1/things", Request: testRequest{}, Required: "nothing"},
	} {
		if _, err := newEndpoint(&Route{Endpoint: described}); err == nil || !strings.Contains(err.Error(), "nothing") {
			t.Errorf("%+v: %v", described, err)
		}
	}
}

// The document is JSON and has the version, the paths and the parameters.
func TestDescribe(t *testing.T) {
	r := Route{Endpoint: api.Endpoint{Name: "show", Pattern: "GET /v1/things/{letters}", Request: testRequest{}, Accepts: "wait_ms", Reply: testRequest{}}}
	e, err := newEndpoint(&r)
	if err != nil {
		t.Fatal(err)
	}
	text, err := describe("v1.2.3", true, []*endpoint{e})
	if err != nil {
		t.Fatal(err)
	}
	var document map[string]any
	if err := json.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"3.1.0"`, `"v1.2.3"`, `"bearer"`, `"/v1/things/{letters}"`, `"name": "wait"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the document lacks %s: %s", want, text)
		}
	}
}

// Without a token the server refuses host names that a page of another site may
// have been loaded from; with a token it accepts them, because such a page does
// not have it.
func TestAuthorize_HostNames(t *testing.T) {
	route := Route{Endpoint: api.Endpoint{Name: "show", Pattern: "GET /v1/things"}, Handle: echo}
	token := ""
	for range 2 {
		_, addr := startServer(t, func(s *Server) { s.users = tokenUsers(token) }, route)
		for host, own := range map[string]bool{
			"127.0.0.1:4280": true, "[::1]:4280": true, "192.0.2.7": true, "localhost:4280": true, "LOCALHOST.": true, "yard.localhost": true,
			"node-1:4280": true, "elsewhere.example:4280": false, "127.0.0.1.elsewhere.example": false, "localhost.elsewhere.example": false,
		} {
			want := http.StatusForbidden
			if own || token != "" {
				want = http.StatusOK
			}
			for _, path := range []string{"/v1/things", "/metrics"} {
				status, text := sendRaw(t, addr, "GET "+path+" HTTP/1.1\r\nHost: "+host+"\r\nAuthorization: Bearer "+token+"\r\n\r\n")
				if status != want {
					t.Errorf("%s of %s with token %q: %d %.80s, want %d", path, host, token, status, text, want)
				}
			}
			if status, text := sendRaw(t, addr, "GET /healthz HTTP/1.1\r\nHost: "+host+"\r\n\r\n"); status != http.StatusOK {
				t.Errorf("/healthz of %s: %d %s", host, status, text)
			}
		}
		token = "secret"
	}
}

// A request that announces a body and sends none ends after the timeout, on every
// path and with or without a token.
func TestServe_NoBody(t *testing.T) {
	route := Route{Endpoint: api.Endpoint{Name: "change", Pattern: "POST /v1/things", Request: testRequest{}}, Handle: echo}
	_, addr := startServer(t, func(s *Server) { s.bodyTimeout, s.users = 50*time.Millisecond, tokenUsers("secret") }, route)
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/v1/things", "/v1/nothing", "/nothing"} {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", path)
		if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(c); err != nil {
			t.Errorf("%s: the connection is not closed after %.60q: %v", path, got, err)
		}
	}
}

// Slow requests of /readyz do not block /healthz.
func TestServe_Healthz(t *testing.T) {
	s, addr := startServer(t, nil)
	for range cap(s.checks) {
		s.checks <- struct{}{}
	}
	for path, want := range map[string]int{"/healthz": http.StatusOK, "/readyz": http.StatusServiceUnavailable} {
		if status, body := sendRaw(t, addr, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); status != want {
			t.Errorf("%s: %d %s, want %d", path, status, body, want)
		}
	}
}

// Release returns the memory of the body before the handler ends.
func TestRequest_Release(t *testing.T) {
	inside, leave := make(chan struct{}), make(chan struct{})
	wait := func(_ context.Context, q *Request) ([]byte, error) {
		q.Release()
		close(inside)
		<-leave
		return q.Data, nil
	}
	s, addr := startServer(t, nil, Route{Endpoint: api.Endpoint{Name: "wait", Pattern: "POST /v1/waits", Request: testRequest{}, LongRunning: true}, Handle: wait})
	answered := make(chan string, 1)
	go func() {
		_, body := sendRaw(t, addr, "POST /v1/waits HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
		answered <- body
	}()
	<-inside
	if free := s.memory.free.Load(); free != bodyMemory {
		t.Errorf("%d bytes of the budget are free while the handler waits, want %d", free, bodyMemory)
	}
	close(leave)
	if body := <-answered; body != "null" {
		t.Errorf("the response is %s", body)
	}
	waitCount(t, "bytes of the budget", s.memory.free, bodyMemory)
}

// Waiting requests have their own limit, which leaves connections for the others.
func TestServe_WaitingRequests(t *testing.T) {
	s, addr := startServer(t, nil,
		Route{Endpoint: api.Endpoint{Name: "wait", Pattern: "GET /v1/wait", Request: testRequest{}, LongRunning: true}, Handle: echo},
		Route{Endpoint: api.Endpoint{Name: "show", Pattern: "GET /v1/show", Request: testRequest{}}, Handle: echo})
	for waiting, want := range map[int64]int{maxWaitingRequests - 1: http.StatusOK, maxWaitingRequests: http.StatusServiceUnavailable} {
		s.waiting.Store(waiting)
		for path, want := range map[string]int{"/v1/wait": want, "/v1/show": http.StatusOK} {
			if status, body := sendRaw(t, addr, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); status != want {
				t.Errorf("%s while %d wait: %d %s, want %d", path, waiting, status, body, want)
			}
		}
		waitCount(t, "waiting requests", &s.waiting, waiting)
	}
	if maxWaitingRequests+maxRequests+maxProbes >= maxConnections {
		t.Error("the limits of requests exceed the limit of connections")
	}
}

// TestServe_Panic checks that a handler's panic is the status 500 of its request, or, once a response
// may have begun, the end of its connection.
func TestServe_Panic(t *testing.T) {
	s, addr := startServer(t, nil, Route{
		Endpoint: api.Endpoint{Name: "bad", Pattern: "GET /v1/bad"}, Handle: func(context.Context, *Request) ([]byte, error) { panic("handler") },
	})
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- s.ServeConsole(ctx, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("console") }))
	}()
	for s.console.Load() == nil {
		time.Sleep(time.Millisecond)
	}
	for range 2 {
		r, err := http.Get("http://" + addr + "/v1/bad")
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if r.StatusCode != http.StatusInternalServerError || !strings.Contains(string(body), "panic: handler") {
			t.Errorf("%s: %s", r.Status, body)
		}
		if r, err := http.Get("http://" + addr + ConsolePath); err == nil {
			t.Errorf("%s, want the end of the connection", r.Status)
		}
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
