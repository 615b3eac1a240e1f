package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
)

// Route is an endpoint of the API with its handler.
type Route struct {
	api.Endpoint
	Handle func(ctx context.Context, q *Request) ([]byte, error)
	Open   func(ctx context.Context, q *Request) (*Content, error) // instead of Handle, if the endpoint serves content
	Stream func(ctx context.Context, q *Request) (*Stream, error)  // instead of Handle, if the response has Media
}

// Request is a request to the handler of a route.
type Request struct {
	Data   []byte   // JSON, or empty
	Token  string   // value of the wildcard Token of the endpoint
	Client string   // name of the user who sends it, or else the remote address
	Queues []string // of the user, as in [User]
	Quota  string   // likewise
	Header http.Header
	Query  url.Values // the parameters in Query of the endpoint that are not keys
	Waited bool       // set by the handler if the reply is a WaitReply, with status 200
	Index  uint64     // set by the handler: ledger index that the reply shows; 0 if none
	Event  uint64     // likewise, number of the last event
	AsOf   string     // likewise, see [api.HeaderAsOf]; "" if the response has none

	release func()
}

// Release returns the memory of Data to the server's budget and clears Data. A
// handler calls it before it waits. It may be called more than once.
func (q *Request) Release() {
	q.Data = nil
	q.release()
}

// apiServer serves the routes until it is closed.
type apiServer struct {
	server *Server
	mux    http.ServeMux
	named  map[string][]string // methods of the paths without a wildcard, which those with one match, too
	ctx    context.Context     // of the handlers; ends when the node stops
	mu     crash.Mutex
	closed bool
	work   sync.WaitGroup
}

// newAPI returns the server of routes and of the OpenAPI document that describes them.
// It returns an error if a route is invalid. ctx ends when the node stops.
func (s *Server) newAPI(ctx context.Context, routes []Route) (*apiServer, error) {
	a := &apiServer{server: s, ctx: ctx, named: make(map[string][]string)}
	var document []byte
	routes = append(slices.Clip(routes), Route{
		Endpoint: api.Endpoint{Name: "openapi", Pattern: "GET /v1/openapi.json", Summary: "the OpenAPI document of this API"},
		Handle:   func(context.Context, *Request) ([]byte, error) { return document, nil },
	})
	endpoints, err := newEndpoints(routes)
	if err != nil {
		return nil, err
	}
	for _, e := range endpoints {
		if method, path, _ := strings.Cut(e.Pattern, " "); !strings.Contains(path, "{") {
			a.named[path] = append(a.named[path], method)
		}
		a.mux.HandleFunc(e.Pattern, func(w http.ResponseWriter, r *http.Request) { a.handle(w, r, e) })
	}
	document, err = describe(s.cfg.Version, s.RequiresToken(), endpoints)
	return a, err
}

// begin adds a request to a.work and reports whether it may proceed, which it may
// not after close. If it returns true the caller calls a.work.Done.
func (a *apiServer) begin() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return false
	}
	a.work.Add(1)
	return true
}

// close makes begin return false and blocks until all requests have ended.
func (a *apiServer) close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.work.Wait()
}

// serve serves a request that begin has admitted.
func (a *apiServer) serve(w http.ResponseWriter, r *http.Request) {
	if methods := a.named[r.URL.Path]; methods != nil && !slices.Contains(methods, r.Method) && (r.Method != http.MethodHead || !slices.Contains(methods, http.MethodGet)) {
		notAllowed(w, r, strings.Join(slices.Sorted(slices.Values(methods)), ", "))
		return
	}
	if h, pattern := a.mux.Handler(r); pattern == "" {
		a.notFound(w, r, h)
		return
	}
	a.mux.ServeHTTP(w, r)
}

// notFound responds to a request that matches no route. h is the mux's handler
// for it, whose response has the status and the allowed methods.
func (a *apiServer) notFound(w http.ResponseWriter, r *http.Request, h http.Handler) {
	reply := muxReply{header: http.Header{}}
	h.ServeHTTP(&reply, r)
	if reply.status == http.StatusMethodNotAllowed {
		notAllowed(w, r, reply.header.Get("Allow"))
		return
	}
	writeError(w, &api.Error{Code: api.CodeNotFound, Text: "there is no " + r.URL.Path + "; /v1/openapi.json lists the endpoints"})
}

// notAllowed responds to a request with another method than those that are allowed.
func notAllowed(w http.ResponseWriter, r *http.Request, allowed string) {
	w.Header().Set("Allow", allowed)
	writeError(w, &api.Error{Code: api.CodeMethodNotAllowed, Text: fmt.Sprintf("%s does not allow %s; use %s", r.URL.Path, r.Method, allowed)})
}

// muxReply records the status and the header of a response.
type muxReply struct {
	header http.Header
	status int
}

func (v *muxReply) Header() http.Header            { return v.header }
func (v *muxReply) Write(text []byte) (int, error) { return len(text), nil }
func (v *muxReply) WriteHeader(status int)         { v.status = status }

// handle serves one request of endpoint e, if the limit of concurrent requests permits;
// otherwise it responds that the node is busy. Requests that wait for a job have a higher
// limit of their own.
func (a *apiServer) handle(w http.ResponseWriter, r *http.Request, e *endpoint) {
	if err := e.allows(userOf(r), r); err != nil {
		a.writeError(w, e, err)
		return
	}
	waits := e.LongRunning || r.URL.Query().Get("wait") != ""
	if waits {
		defer a.server.waiting.Add(-1)
		if a.server.waiting.Add(1) > maxWaitingRequests {
			a.writeError(w, e, &api.Error{Code: api.CodeUnavailable, Text: "too many requests wait at once", RetryAfter: time.Second})
			return
		}
	} else {
		select {
		case a.server.requests <- struct{}{}:
			defer func() { <-a.server.requests }()
		default:
			a.writeError(w, e, &api.Error{Code: api.CodeUnavailable, Text: "too many requests at once", RetryAfter: time.Second})
			return
		}
	}

	body, release, err := a.server.readBody(w, r, e.bodyLimit())
	defer release() // also after an error; see readBody
	if err != nil {
		a.writeError(w, e, err)
		return
	}
	q, err := e.request(r, body)
	if err != nil {
		a.writeError(w, e, err)
		return
	}
	q.release, q.Client = release, cmp.Or(userOf(r).Name, r.RemoteAddr)
	q.Queues, q.Quota = userOf(r).Queues, userOf(r).Quota

	// The handler's context ends when the client disconnects or the node stops.
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(a.ctx, cancel)()
	if e.Open != nil {
		a.serveContent(ctx, w, r, e, q)
		return
	}
	if e.Stream != nil {
		a.serveStream(ctx, w, e, q)
		return
	}
	began := time.Now()
	reply, err := a.call(ctx, e, q)
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
		w.Header().Set(api.HeaderIndex, strconv.FormatUint(q.Index, 10))
	}
	if q.Event > 0 {
		w.Header().Set(api.HeaderEvent, strconv.FormatUint(q.Event, 10))
	}
	if q.AsOf != "" {
		w.Header().Set(api.HeaderAsOf, q.AsOf)
	}
	a.count(e, status)
	writeReply(w, status, reply)
}

// call calls the handler of e. A panic of it is an error.
func (a *apiServer) call(ctx context.Context, e *endpoint, q *Request) (reply []byte, err error) {
	defer crash.Contain(a.server.log, crash.HTTP, func(cause error) { reply, err = nil, cause })
	return e.Handle(ctx, q)
}

// writeError sends an error response and counts the request.
func (a *apiServer) writeError(w http.ResponseWriter, e *endpoint, err error) {
	a.count(e, apiError(err).Status())
	writeError(w, err)
}

// count counts a request of an endpoint by the status of its response.
func (a *apiServer) count(e *endpoint, status int) {
	a.server.cfg.Metrics.requests.WithLabelValues(e.Name, strconv.Itoa(status)).Inc()
}

// apiError returns the [*api.Error] that err wraps. If it wraps none, the result has
// err's text and the status 500.
func apiError(err error) *api.Error {
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e
	}
	return &api.Error{Code: api.CodeInternal, Text: err.Error()}
}

// writeError sends the response for err; see apiError.
func writeError(w http.ResponseWriter, err error) {
	r := apiError(err)
	if r.RetryAfter > 0 {
		seconds := (r.RetryAfter + time.Second - 1) / time.Second // rounded up, so that no client retries too early
		w.Header().Set("Retry-After", strconv.FormatInt(int64(seconds), 10))
	}
	writeReply(w, r.Status(), r.Reply())
}

// writeReply sends a JSON response, with a deadline of writeTimeout.
func writeReply(w http.ResponseWriter, status int, body []byte) {
	// Errors are ignored: a writer without deadlines is a test's, and a client
	// that does not read the response cannot be notified.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
