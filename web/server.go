package web

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/internal/logthrottle"
)

// Limits of the HTTP server.
const (
	maxConnections     = 4096 // further ones are closed at once
	maxHeaderBytes     = 16 << 10
	headerTimeout      = 5 * time.Second  // for a request's header to arrive
	bodyTimeout        = 30 * time.Second // for its body
	writeTimeout       = 30 * time.Second // for the client to read a response
	idleTimeout        = 2 * time.Minute  // of a connection between requests
	stopTimeout        = 2 * time.Second  // for the last responses when the node stops
	maxRequests        = 256              // concurrent requests that do not wait
	maxWaitingRequests = 3072             // concurrent requests that wait for a job; leaves connections for the others
	maxProbes          = 16               // concurrent requests of /readyz, which need no token
)

// Config configures a [Server].
type Config struct {
	Version string // of the program, for the OpenAPI document
	// Users have the tokens of which one is required for everything but the health
	// checks. Without users and Anonymous, every request may do everything.
	Users []User
	// Anonymous is the user of requests without a token; nil: they are refused if
	// there are users.
	Anonymous *User
	// Ready reports whether the node is ready; details is encoded as the body.
	Ready func(ctx context.Context) (ready bool, details any)
	// Metrics are served at /metrics.
	Metrics *Metrics
	// TLS, unless nil, makes the server accept only TLS connections.
	TLS *tls.Config
}

// Server is a node's HTTP server.
type Server struct {
	cfg         Config
	users       users
	log         *slog.Logger
	crossOrigin *http.CrossOriginProtection
	api         atomic.Pointer[apiServer]    // nil unless ServeAPI is running
	console     atomic.Pointer[http.Handler] // nil unless ServeConsole is running
	memory      budget                       // for request bodies, in bytes
	requests    chan struct{}                // semaphore of maxRequests
	checks      chan struct{}                // semaphore of maxProbes

	waiting     atomic.Int64  // requests that wait for a job
	bodyTimeout time.Duration // the constant, except in tests
}

// Waiting returns the number of requests that wait for a job's end.
func (s *Server) Waiting() int { return int(s.waiting.Load()) }

// New returns a server, which Serve starts.
func New(cfg Config, log *slog.Logger) *Server {
	return &Server{
		cfg: cfg, users: newUsers(cfg.Users, cfg.Anonymous), log: log, crossOrigin: http.NewCrossOriginProtection(), memory: newBudget(bodyMemory),
		requests: make(chan struct{}, maxRequests), checks: make(chan struct{}, maxProbes), bodyTimeout: bodyTimeout,
	}
}

// Serve accepts connections on ln until ctx ends, and returns nil when the last
// responses are sent, at most stopTimeout later. Without [Server.ServeAPI], it serves
// only health checks and metrics.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	server := &http.Server{
		Handler: s, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: log.New(&errorLog{log: s.log}, "", 0),
	}
	ln = &limitListener{Listener: ln, free: newBudget(maxConnections)}
	if s.cfg.TLS != nil {
		ln = tls.NewListener(ln, s.cfg.TLS) // HTTP/1.1 only: the limits assume one request per connection
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ln) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if server.Shutdown(stopping) != nil {
		_ = server.Close() // drops the responses that are not sent yet
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// ServeAPI serves the routes under /v1 until ctx ends. It returns after the last
// handler has returned.
func (s *Server) ServeAPI(ctx context.Context, routes []Route) error {
	a, err := s.newAPI(ctx, routes)
	if err != nil {
		return err
	}
	s.api.Store(a)
	<-ctx.Done()
	s.api.Store(nil)
	a.close()
	return nil
}

// ConsolePath is the path below which the console is served.
const ConsolePath = "/console/"

// ServeConsole serves the requests below [ConsolePath] by handler, which authenticates them
// itself, until ctx ends. Requests of / and /console are redirected there.
func (s *Server) ServeConsole(ctx context.Context, handler http.Handler) error {
	s.console.Store(&handler)
	<-ctx.Done()
	s.console.Store(nil)
	return nil
}

// serveConsole serves a request of the console.
func (s *Server) serveConsole(w http.ResponseWriter, r *http.Request) {
	handler := s.console.Load()
	switch {
	case handler == nil:
		w.Header().Set("Retry-After", "1")
		w.Header().Set("Refresh", "2") // of a browser
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "This node is starting or stopping. The page loads again every two seconds; or use another node.\n")
	case !strings.HasPrefix(r.URL.Path, ConsolePath):
		http.Redirect(w, r, ConsolePath, http.StatusSeeOther)
	default:
		(*handler).ServeHTTP(w, r)
	}
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer crash.Contain(s.log, crash.HTTP, func(error) { panic(http.ErrAbortHandler) }) // a response may have begun
	w.Header().Set("X-Content-Type-Options", "nosniff")
	s.setBodyDeadline(w, r)
	switch r.URL.Path {
	case "/healthz": // not limited, so that many requests of /readyz cannot block it
		s.probe(w, r, func(context.Context) (bool, any) { return true, map[string]bool{"serving": true} })
		return
	case "/readyz":
		select {
		case s.checks <- struct{}{}:
			defer func() { <-s.checks }()
			s.probe(w, r, s.cfg.Ready)
		default:
			writeError(w, &api.Error{Code: api.CodeUnavailable, Text: "too many health checks at once", RetryAfter: time.Second})
		}
		return
	}
	if r.URL.Path == "/" || strings.HasPrefix(r.URL.Path+"/", ConsolePath) {
		s.serveConsole(w, r)
		return
	}
	r, err := s.authenticate(w, r)
	if err != nil {
		writeError(w, err)
		return
	}
	if r.URL.Path == "/metrics" {
		if !requireGet(w, r) {
			return
		}
		if err := userOf(r).require(metricsSubject, "GET /metrics"); err != nil {
			writeError(w, err)
			return
		}
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // as in writeReply
		s.cfg.Metrics.handler.ServeHTTP(w, r)
		return
	}
	a := s.api.Load()
	if a == nil || !a.begin() {
		writeError(w, &api.Error{Code: api.CodeUnavailable, Text: "this node is starting or stopping: try again, or use another node", RetryAfter: time.Second})
		return
	}
	defer a.work.Done()
	a.serve(w, r)
}

// requireGet reports whether the method is GET or HEAD; if not it sends the
// response.
func requireGet(w http.ResponseWriter, r *http.Request) bool {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return true
	}
	w.Header().Set("Allow", "GET, HEAD")
	writeError(w, &api.Error{Code: api.CodeMethodNotAllowed, Text: fmt.Sprintf("%s does not allow %s; use GET", r.URL.Path, r.Method)})
	return false
}

// probe serves a health check: 200 if check returns true, otherwise 503, with the
// details that it returns as JSON.
func (s *Server) probe(w http.ResponseWriter, r *http.Request, check func(context.Context) (ok bool, details any)) {
	w.Header().Set("Cache-Control", "no-store")
	if !requireGet(w, r) {
		return
	}
	ok, details := check(r.Context())
	body, err := json.Marshal(details)
	if err != nil {
		writeError(w, err)
		return
	}
	status := http.StatusOK
	if !ok {
		status = http.StatusServiceUnavailable
	}
	writeReply(w, status, body)
}

// TrustedHost reports whether host is one that no page of another site can have
// been loaded from: an address, localhost or a name without a dot. Any other name
// may belong to an attacker who changed its DNS record to this node's address
// after the page was loaded (DNS rebinding).
func TrustedHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.Trim(host, "[]"), ".")
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return !strings.Contains(strings.TrimSuffix(strings.ToLower(host), ".localhost"), ".")
}

// limitListener limits the number of concurrent connections.
type limitListener struct {
	net.Listener
	free budget
}

// Accept returns the next connection within the limit. It closes those beyond it,
// so that their clients get an error at once.
func (l *limitListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.free.acquire(1) {
			return &limitConn{Conn: c, end: sync.OnceFunc(func() { l.free.release(1) })}, nil
		}
		_ = c.Close()
	}
}

// limitConn is a connection that counts towards the limit until it is closed.
type limitConn struct {
	net.Conn
	end func() // gives its place to another connection; may be called again
}

// CloseWrite is used by the HTTP server to send a response before it closes a
// connection whose request was not read completely.
func (c *limitConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

func (c *limitConn) Close() error {
	c.end()
	return c.Conn.Close()
}

// budget is a counting semaphore that does not block.
type budget struct{ free *atomic.Int64 }

func newBudget(n int64) budget {
	b := budget{new(atomic.Int64)}
	b.free.Store(n)
	return b
}

// acquire takes n and reports whether it was available.
func (b budget) acquire(n int64) bool {
	if b.free.Add(-n) >= 0 {
		return true
	}
	b.free.Add(n)
	return false
}

func (b budget) release(n int64) { b.free.Add(n) }

// errorLog writes the messages of the HTTP server to the node's log. Failed TLS
// handshakes are throttled, because any client can cause them.
type errorLog struct {
	log        *slog.Logger
	handshakes logthrottle.Throttle
}

// Write logs one line.
func (c *errorLog) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	if !strings.HasPrefix(text, "http: TLS handshake error") {
		c.log.Warn("http server error", "err", text)
	} else if n, report := c.handshakes.Allow(time.Now()); report {
		c.log.Warn("http client refused", "err", text, "count", n)
	}
	return len(line), nil
}
