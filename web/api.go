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

// Route is an endpoint of the API: a method, a path and a handler.
type Route struct {
	Name    string // of the endpoint, as over NATS: "job-show"
	Summary string
	Pattern string // "GET /v1/jobs/{id}"
	Status  int    // of a successful response; 0 means 200
	// Request is the zero value of the request, a struct whose fields are named
	// by their JSON keys. A wildcard of the path sets the key of its name. If the
	// method has no body, so do the parameters of the query.
	Request   any
	Accepts   string           // accepted keys besides those of the path, separated by spaces; "*" is all, "-name" excludes one
	Required  string           // those of them that are required
	Token     string           // wildcard that becomes Request.Token instead of a key; over NATS it is the last token of the subject
	Query     string           // parameters that are passed in Request.Query, separated by spaces
	Shapes    map[string]Shape // for the OpenAPI document: types of keys that are raw JSON in Request
	Reply     any              // zero value of the reply; nil means any JSON
	WaitReply any              // zero value of the reply to a request that waited for the job's end
	Large     bool             // the body may have 32 MiB instead of 1 MiB
	Waits     bool             // the request may take long
	Indexed   bool             // the response has the header Yard-Index
	Handle    func(ctx context.Context, q *Request) ([]byte, error)
}

// headerIndex is the header with the index of the last ledger entry that a
// response shows. Replies over NATS have the same header.
const headerIndex = "Yard-Index"

// Shape describes the type of a key for the OpenAPI document.
type Shape struct {
	Of      any    // zero value of the type, or of an item if List is set
	List    bool   // the key is a list
	Without string // a field that is not accepted; "" for none
}

// Request is a request to the handler of a route.
type Request struct {
	Data   []byte // JSON, or empty
	Token  string // value of the wildcard Route.Token
	Header http.Header
	Query  url.Values // the parameters in Route.Query
	Waited bool       // set by the handler if the reply is a Route.WaitReply, with status 200
	Index  uint64     // set by the handler: ledger index that the reply shows; 0 if none

	release func()
}

// Release returns the memory of Data to the server's budget and clears Data. A
// handler calls it before it waits. It may be called more than once.
func (q *Request) Release() {
	q.Data = nil
	q.release()
}

// api serves the routes until it is closed.
type api struct {
	server *Server
	mux    http.ServeMux
	ctx    context.Context // of the handlers; ends when the node stops
	mu     sync.Mutex
	closed bool
	work   sync.WaitGroup
}

func (s *Server) newAPI(ctx context.Context, routes []Route) (*api, error) {
	a := &api{server: s, ctx: ctx}
	var document []byte
	routes = append(slices.Clip(routes), Route{
		Name: "openapi", Pattern: "GET /v1/openapi.json", Summary: "the OpenAPI document of this API",
		Handle: func(context.Context, *Request) ([]byte, error) { return document, nil },
	})
	endpoints := make([]*endpoint, len(routes))
	for i := range routes {
		e, err := newEndpoint(&routes[i])
		if err != nil {
			return nil, fmt.Errorf("route %s: %w", routes[i].Name, err)
		}
		endpoints[i] = e
		a.mux.HandleFunc(routes[i].Pattern, func(w http.ResponseWriter, r *http.Request) { a.handle(w, r, e) })
	}
	var err error
	document, err = describe(s.cfg.Version, s.cfg.Token != "", endpoints)
	return a, err
}

// begin adds a request to a.work and reports whether it may proceed, which it may
// not after close. If it returns true the caller calls a.work.Done.
func (a *api) begin() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return false
	}
	a.work.Add(1)
	return true
}

// close makes begin return false and blocks until all requests have ended.
func (a *api) close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.work.Wait()
}

func (a *api) serve(w http.ResponseWriter, r *http.Request) {
	if h, pattern := a.mux.Handler(r); pattern == "" {
		a.notFound(w, r, h)
		return
	}
	a.mux.ServeHTTP(w, r)
}

// notFound responds to a request that matches no route. h is the mux's handler
// for it, whose response has the status and the allowed methods.
func (a *api) notFound(w http.ResponseWriter, r *http.Request, h http.Handler) {
	reply := muxReply{header: http.Header{}}
	h.ServeHTTP(&reply, r)
	if reply.status == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", reply.header.Get("Allow"))
		writeError(w, &Error{Status: reply.status, Text: fmt.Sprintf("%s does not allow %s; use %s", r.URL.Path, r.Method, reply.header.Get("Allow"))})
		return
	}
	writeError(w, &Error{Status: http.StatusNotFound, Text: "there is no " + r.URL.Path + "; /v1/openapi.json lists the endpoints"})
}

// muxReply records the status and the header of a response.
type muxReply struct {
	header http.Header
	status int
}

func (v *muxReply) Header() http.Header            { return v.header }
func (v *muxReply) Write(text []byte) (int, error) { return len(text), nil }
func (v *muxReply) WriteHeader(status int)         { v.status = status }

// handle serves one request of an endpoint.
func (a *api) handle(w http.ResponseWriter, r *http.Request, e *endpoint) {
	waits := e.Waits || r.URL.Query().Get("wait") != ""
	if waits {
		defer a.server.waiting.Add(-1)
		if a.server.waiting.Add(1) > maxWaitingRequests {
			a.writeError(w, e, &Error{Status: http.StatusServiceUnavailable, Text: "too many requests wait at once", RetryAfter: time.Second})
			return
		}
	} else {
		select {
		case a.server.requests <- struct{}{}:
			defer func() { <-a.server.requests }()
		default:
			a.writeError(w, e, &Error{Status: http.StatusServiceUnavailable, Text: "too many requests at once", RetryAfter: time.Second})
			return
		}
	}
	body, release, err := a.server.read(w, r, e.bodyLimit())
	defer release()
	var q *Request
	if err == nil {
		if q, err = e.request(r, body); err == nil {
			q.release = release
		}
	}
	if err != nil {
		a.writeError(w, e, err)
		return
	}
	// The handler's context ends when the client disconnects or the node stops.
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(a.ctx, cancel)()
	began := time.Now()
	reply, err := e.Handle(ctx, q)
	if !waits {
		a.server.cfg.Metrics.requestSeconds.Observe(time.Since(began).Seconds())
	}
	if err != nil {
		a.writeError(w, e, err)
		return
	}
	if len(reply) == 0 {
		reply = []byte("null")
	}
	status := e.Status
	if q.Waited {
		status = http.StatusOK
	}
	if q.Index > 0 {
		w.Header().Set(headerIndex, strconv.FormatUint(q.Index, 10))
	}
	a.count(e, status)
	writeReply(w, status, reply)
}

func (a *api) writeError(w http.ResponseWriter, e *endpoint, err error) {
	a.count(e, errorStatus(err))
	writeError(w, err)
}

func (a *api) count(e *endpoint, status int) {
	a.server.cfg.Metrics.requests.WithLabelValues(e.Name, strconv.Itoa(status)).Inc()
}

// splitNames splits a list of names at spaces.
func splitNames(list string) []string { return strings.Fields(list) }
