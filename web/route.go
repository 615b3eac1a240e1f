package web

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Route is one thing to ask for: a method, a path, and the roof's handler.
type Route struct {
	Name    string // of the endpoint, as over NATS: "job-show"
	About   string
	Pattern string // "GET /v1/jobs/{id}"
	Status  int    // of a good answer; 0: 200
	// Question is the zero value of what is asked, whose fields are named by
	// their JSON keys. A wildcard of the path that is such a key sets it. So do
	// parameters of the query where the method takes no body.
	Question any
	Takes    string           // the keys that are taken beside those of the path, between spaces; "*": all, "-name": not this
	Required string           // those of them that must be given
	Token    string           // the wildcard that is the subject's last token over NATS, not a key
	Query    string           // parameters that are given to Do as they are, between spaces
	Shapes   map[string]Shape // for the document: of keys that the question takes as any JSON
	Answer   any              // the zero value of the answer; nil: any JSON
	Waited   any              // likewise, of the answer to who has waited for the job
	Large    bool             // takes a body of up to 32 MiB; else 1 MiB
	Waits    bool             // may take long
	Indexed  bool             // the answer tells in [headerIndex] which state of the ledger it shows
	Do       func(ctx context.Context, q *Question) ([]byte, error)
}

// headerIndex is the header of an answer that shows the ledger: the index of the
// last entry that it shows. It is the same over NATS.
const headerIndex = "Yard-Index"

// Shape is what a key holds, or a list in it.
type Shape struct {
	Of      any // the zero value of it, or of an item of the list
	List    bool
	Without string // a field that is not taken, "" for none
}

// Question is what a route's handler is asked.
type Question struct {
	Data   []byte // JSON, or empty
	Token  string
	Header http.Header
	Query  url.Values // those parameters that the route names
	Waited bool       // set by Do: the answer is a [Route.Waited], with 200
	Index  uint64     // set by Do: of the ledger, as the answer shows it; 0: none

	free func()
}

// Free gives back the memory of Data, which nobody may look at any more: for
// those that go on to wait.
func (q *Question) Free() {
	q.Data = nil
	q.free()
}

// api is the routes while they are served.
type api struct {
	server *Server
	mux    http.ServeMux
	ctx    context.Context // of Do: ends when the node stops
	mu     sync.Mutex
	closed bool
	work   sync.WaitGroup
}

func (s *Server) newAPI(ctx context.Context, routes []Route) (*api, error) {
	a := &api{server: s, ctx: ctx}
	var document []byte
	routes = append(slices.Clip(routes), Route{
		Name: "openapi", Pattern: "GET /v1/openapi.json", About: "this document",
		Do: func(context.Context, *Question) ([]byte, error) { return document, nil },
	})
	entries := make([]*entry, len(routes))
	for i := range routes {
		entry, err := newEntry(&routes[i])
		if err != nil {
			return nil, fmt.Errorf("route %s: %w", routes[i].Name, err)
		}
		entries[i] = entry
		a.mux.HandleFunc(routes[i].Pattern, func(w http.ResponseWriter, r *http.Request) { a.answer(w, r, entry) })
	}
	var err error
	document, err = describe(s.cfg.Version, s.cfg.Token != "", entries)
	return a, err
}

// begin counts a request in, unless the node stops.
func (a *api) begin() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return false
	}
	a.work.Add(1)
	return true
}

// close lets nobody in any more and waits for those who are.
func (a *api) close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.work.Wait()
}

func (a *api) serve(w http.ResponseWriter, r *http.Request) {
	if h, pattern := a.mux.Handler(r); pattern == "" {
		a.unknown(w, r, h)
		return
	}
	a.mux.ServeHTTP(w, r)
}

// unknown says what is wrong with a request that no route takes.
func (a *api) unknown(w http.ResponseWriter, r *http.Request, h http.Handler) {
	said := verdict{header: http.Header{}}
	h.ServeHTTP(&said, r)
	if said.status == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", said.header.Get("Allow"))
		refuse(w, &Refusal{Status: said.status, Text: fmt.Sprintf("%s is not asked by %s, but by %s", r.URL.Path, r.Method, said.header.Get("Allow"))})
		return
	}
	refuse(w, &Refusal{Status: http.StatusNotFound, Text: "there is no " + r.URL.Path + "; /v1/openapi.json lists what there is"})
}

// verdict takes what the mux says to a request that it has no route for.
type verdict struct {
	header http.Header
	status int
}

func (v *verdict) Header() http.Header            { return v.header }
func (v *verdict) Write(text []byte) (int, error) { return len(text), nil }
func (v *verdict) WriteHeader(status int)         { v.status = status }

// answer carries out one request of a known route.
func (a *api) answer(w http.ResponseWriter, r *http.Request, e *entry) {
	waits := e.Waits || r.URL.Query().Get("wait") != ""
	if waits {
		defer a.server.waiting.Add(-1)
		if a.server.waiting.Add(1) > waitsAtOnce {
			a.refuse(w, e, &Refusal{Status: http.StatusServiceUnavailable, Text: "too many requests wait at once", RetryAfter: time.Second})
			return
		}
	} else {
		select {
		case a.server.quick <- struct{}{}:
			defer func() { <-a.server.quick }()
		default:
			a.refuse(w, e, &Refusal{Status: http.StatusServiceUnavailable, Text: "too many requests at once", RetryAfter: time.Second})
			return
		}
	}
	body, release, err := a.server.read(w, r, e.most())
	defer release()
	var q *Question
	if err == nil {
		if q, err = e.question(r, body); err == nil {
			q.free = release
		}
	}
	if err != nil {
		a.refuse(w, e, err)
		return
	}
	// The request's own context ends when the client goes away.
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(a.ctx, cancel)()
	began := time.Now()
	answer, err := e.Do(ctx, q)
	if !waits {
		a.server.cfg.Metrics.requestSeconds.Observe(time.Since(began).Seconds())
	}
	if err != nil {
		a.refuse(w, e, err)
		return
	}
	if len(answer) == 0 {
		answer = []byte("null")
	}
	status := e.Status
	if q.Waited {
		status = http.StatusOK
	}
	if q.Index > 0 {
		w.Header().Set(headerIndex, strconv.FormatUint(q.Index, 10))
	}
	a.count(e, status)
	write(w, status, answer)
}

func (a *api) refuse(w http.ResponseWriter, e *entry, err error) {
	a.count(e, statusOf(err))
	refuse(w, err)
}

func (a *api) count(e *entry, status int) {
	a.server.cfg.Metrics.requests.WithLabelValues(e.Name, strconv.Itoa(status)).Inc()
}

// named cuts a list of names.
func named(list string) []string { return strings.Fields(list) }
