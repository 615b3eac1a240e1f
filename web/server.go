package web

import (
	"context"
	"crypto/subtle"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of the door.
const (
	maxConnections = 4096 // more are closed at once
	maxHeader      = 16 << 10
	headerTime     = 5 * time.Second  // for a request's head to arrive
	bodyTime       = 30 * time.Second // for its body
	writeTime      = 30 * time.Second // for an answer to be taken
	idleTime       = 2 * time.Minute  // of a connection between requests
	stopTime       = 2 * time.Second  // for the last answers when the node stops
	quickAtOnce    = 256              // requests that are answered at once
	waitsAtOnce    = 3072             // those that wait for a job, which leaves connections to all others
	checksAtOnce   = 16               // looks at readiness, which anybody may ask for
)

// Config is what the roof tells the door.
type Config struct {
	Version string // of the program, for the API's document
	Token   string // asked of whoever wants more than to know how the node is; "": nothing is asked
	// Ready tells whether the node is ready, and more of that as JSON.
	Ready func(ctx context.Context) (ready bool, more any)
	// Metrics are shown at /metrics.
	Metrics *Metrics
	// TLS is spoken, and nothing else, unless it is nil.
	TLS *tls.Config
}

// Server is a node's HTTP door.
type Server struct {
	cfg    Config
	log    *slog.Logger
	cross  *http.CrossOriginProtection
	api    atomic.Pointer[api] // nil before and after the node takes questions
	memory budget
	quick  chan struct{}
	checks chan struct{}

	waiting  atomic.Int64
	bodyTime time.Duration // bodyTime, but for tests
}

// Waiting counts those who wait for a job's end.
func (s *Server) Waiting() int { return int(s.waiting.Load()) }

// New makes the door; Serve opens it.
func New(cfg Config, log *slog.Logger) *Server {
	return &Server{
		cfg: cfg, log: log, cross: http.NewCrossOriginProtection(), memory: newBudget(bodyMemory),
		quick: make(chan struct{}, quickAtOnce), checks: make(chan struct{}, checksAtOnce), bodyTime: bodyTime,
	}
}

// Serve answers on ln until ctx ends. Until [Server.ServeAPI] runs, too, it
// says only that the node lives.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	server := &http.Server{
		Handler: s, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader,
		ErrorLog: log.New(&complaints{log: s.log}, "", 0),
	}
	ln = &bounded{Listener: ln, free: newBudget(maxConnections)}
	if s.cfg.TLS != nil {
		ln = tls.NewListener(ln, s.cfg.TLS) // HTTP/1.1: the bounds are made for that
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ln) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	if server.Shutdown(stopping) != nil {
		_ = server.Close() // who has not taken the answer by now does not get it
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// ServeAPI answers questions under /v1 until ctx ends and the last handler has
// returned.
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

// ServeHTTP is [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	s.expect(w, r)
	switch r.URL.Path {
	case "/healthz": // never kept from answering by those who look at readiness
		s.check(w, r, func(context.Context) (bool, any) { return true, map[string]bool{"serving": true} })
		return
	case "/readyz":
		select {
		case s.checks <- struct{}{}:
			defer func() { <-s.checks }()
			s.check(w, r, s.cfg.Ready)
		default:
			refuse(w, &Refusal{Status: http.StatusServiceUnavailable, Text: "too many look after this node at once", RetryAfter: time.Second})
		}
		return
	}
	if err := s.admit(w, r); err != nil {
		refuse(w, err)
		return
	}
	if r.URL.Path == "/metrics" {
		if !onlyAsked(w, r) {
			return
		}
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTime)) // as in write
		s.cfg.Metrics.handler.ServeHTTP(w, r)
		return
	}
	a := s.api.Load()
	if a == nil || !a.begin() {
		refuse(w, &Refusal{Status: http.StatusServiceUnavailable, Text: "this node is starting or stopping: ask again, or ask another", RetryAfter: time.Second})
		return
	}
	defer a.work.Done()
	a.serve(w, r)
}

// onlyAsked refuses all methods but those that ask.
func onlyAsked(w http.ResponseWriter, r *http.Request) bool {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return true
	}
	w.Header().Set("Allow", "GET, HEAD")
	refuse(w, &Refusal{Status: http.StatusMethodNotAllowed, Text: r.URL.Path + " is asked by GET"})
	return false
}

// check answers whoever looks after the process.
func (s *Server) check(w http.ResponseWriter, r *http.Request, look func(context.Context) (bool, any)) {
	w.Header().Set("Cache-Control", "no-store")
	if !onlyAsked(w, r) {
		return
	}
	good, more := look(r.Context())
	body, err := json.Marshal(more)
	if err != nil {
		refuse(w, err)
		return
	}
	status := http.StatusOK
	if !good {
		status = http.StatusServiceUnavailable
	}
	write(w, status, body)
}

// admit lets in who brings the token, and no page of another site: a browser on
// the node's host would bring such a page past every wall.
func (s *Server) admit(w http.ResponseWriter, r *http.Request) error {
	if err := s.cross.Check(r); err != nil {
		return &Refusal{Status: http.StatusForbidden, Text: "a page of another site asks, which is not allowed: " + err.Error()}
	}
	if s.cfg.Token == "" && !ownName(r.Host) {
		return &Refusal{Status: http.StatusForbidden, Text: fmt.Sprintf(
			"this node is asked as %q: without a token it answers only to addresses, localhost and names without a dot, because a page of another site may call it by a name of its own; ask it by its address, or set http.token", r.Host)}
	}
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if s.cfg.Token == "" || strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare([]byte(strings.TrimSpace(given)), []byte(s.cfg.Token)) == 1 {
		return nil
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="yardmaster"`)
	return &Refusal{Status: http.StatusUnauthorized, Text: "bring the token of http.token: Authorization: Bearer <token>"}
}

// ownName tells a Host that no page of another site can have been loaded from: a
// name with a dot may be anybody's, and may have been made to mean this node
// after the page was loaded.
func ownName(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.Trim(host, "[]"), ".")
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return !strings.Contains(strings.TrimSuffix(strings.ToLower(host), ".localhost"), ".")
}

// bounded is a listener with so many connections at once.
type bounded struct {
	net.Listener
	free budget
}

// Accept closes connections that are too many, so that whoever dialled hears it.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if b.free.take(1) {
			return &counted{Conn: c, end: sync.OnceFunc(func() { b.free.give(1) })}, nil
		}
		_ = c.Close()
	}
}

type counted struct {
	net.Conn
	end func()
}

// CloseWrite lets the server say its last word to who is still talking.
func (c *counted) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

func (c *counted) Close() error {
	c.end()
	return c.Conn.Close()
}

// budget is an amount that is taken and given back.
type budget struct{ free *atomic.Int64 }

func newBudget(n int64) budget {
	b := budget{new(atomic.Int64)}
	b.free.Store(n)
	return b
}

func (b budget) take(n int64) bool {
	if b.free.Add(-n) >= 0 {
		return true
	}
	b.free.Add(n)
	return false
}

func (b budget) give(n int64) { b.free.Add(n) }
