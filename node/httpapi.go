package node

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/web"
)

// openHTTP opens the HTTP listener, so that the node's health can be asked for while it
// starts, once the certificates of all listeners are valid. close stops it and is
// called after everything else has ended.
func (n *Node) openHTTP(ctx context.Context) (close func() error, err error) {
	if err := n.openCertificates(); err != nil {
		return nil, err
	}
	for _, l := range n.cfg.OpenListeners() {
		n.log.Warn("listener is reachable from the network without authentication", "listener", l.Name, "addr", l.Address, "risk", l.Risk, "key", l.Key)
	}
	n.metrics = web.NewMetrics()
	n.web = web.New(web.Config{Version: n.version, Token: string(n.cfg.HTTP.Token), Ready: n.readyz, Metrics: n.metrics, TLS: serverTLS(n.certs.http)}, n.log)
	if n.cfg.HTTP.Off() {
		return func() error { return nil }, nil
	}
	listener, err := net.Listen("tcp", n.cfg.HTTP.Listen)
	if err != nil {
		return nil, portInUse(fmt.Errorf("open the HTTP listener: %w", err), "http.listen")
	}
	n.httpAddr = listener.Addr().String()
	loops := newLoopGroup(ctx)
	loops.Go(func(ctx context.Context) error { return n.web.Serve(ctx, listener) })
	return loops.stop, nil
}

// readyz returns the readiness of the node for GET /readyz.
func (n *Node) readyz(ctx context.Context) (bool, any) {
	select {
	case <-n.serving:
	default:
		text := "the node is starting"
		if waiting := n.waitingFor.Load(); waiting != nil && len(*waiting) > 0 {
			text = "the node waits: " + strings.Join(*waiting, "; ")
		}
		return false, api.Readiness{Readiness: ledger.Readiness{Reasons: []string{text}}}
	}
	r := n.reporter.Readiness(ctx)
	return r.Ready, r
}

// webRoutes returns the HTTP routes of the endpoints under /v1.
func (n *Node) webRoutes(endpoints []cluster.Endpoint) []web.Route {
	routes := make([]web.Route, len(endpoints))
	for i := range endpoints {
		routes[i] = web.Route{Endpoint: endpoints[i].Endpoint, Handle: httpHandler(&endpoints[i])}
		if endpoints[i].Name == "enqueue" {
			routes[i].Handle = n.enqueueAndWait(routes[i].Handle)
		}
	}
	return routes
}

// httpHandler returns an HTTP handler that calls an endpoint.
func httpHandler(e *cluster.Endpoint) func(context.Context, *web.Request) ([]byte, error) {
	return func(ctx context.Context, req *web.Request) ([]byte, error) {
		type reply struct {
			data   []byte
			apiErr *api.Error
		}
		replied := make(chan reply, 1)
		header := func(name string) string {
			if name == cluster.HeaderMsgID {
				name = headerIdempotencyKey
			}
			return req.Header.Get(name)
		}
		r := cluster.NewRequest(req.Data, req.Token, header, func(data []byte, apiErr *api.Error) error {
			replied <- reply{data, apiErr}
			return nil
		})
		r.OnRelease = req.Release
		if e.Handle != nil {
			data, err := e.Handle(ctx, r)
			req.Index = r.Index()
			if err != nil {
				return nil, cluster.AsAPIError(err)
			}
			return data, nil
		}
		e.HandleAsync(r)
		// An answer always arrives in bounded time, also while the node stops.
		answer := <-replied
		if answer.apiErr != nil {
			return nil, answer.apiErr
		}
		return answer.data, nil
	}
}

// headerIdempotencyKey is the HTTP header of a producer's key.
const headerIdempotencyKey = "Idempotency-Key"

// enqueueAndWait returns a handler that enqueues a job and, with ?wait=30s, waits for it
// and returns it.
func (n *Node) enqueueAndWait(enqueue func(context.Context, *web.Request) ([]byte, error)) func(context.Context, *web.Request) ([]byte, error) {
	return func(ctx context.Context, req *web.Request) ([]byte, error) {
		text := req.Query.Get("wait")
		if text == "" {
			return enqueue(ctx, req)
		}
		wait, err := time.ParseDuration(text)
		if err != nil || wait < time.Millisecond {
			return nil, &api.Error{Code: api.CodeInvalid, Text: fmt.Sprintf("parameter wait is %q; must be a duration, such as 30s", text)}
		}
		req.Waited = true
		end := cluster.Endpoint{Handle: jsonHandler(func(ctx context.Context, r *cluster.Request) (any, error) {
			return n.enqueueAndShow(ctx, r, min(wait, maxWait))
		})}
		return httpHandler(&end)(ctx, req)
	}
}

// enqueueAndShow enqueues a job, waits for it to end and returns it.
func (n *Node) enqueueAndShow(ctx context.Context, r *cluster.Request, wait time.Duration) (any, error) {
	var req api.EnqueueRequest
	body, err := readJob(r, &req, &req)
	if err != nil {
		return nil, err
	}
	reply, err := n.enqueueAndAwait(ctx, r, req, body, wait)
	if err != nil {
		return nil, err
	}
	view, err := n.viewer.Full(ctx, reply.ID)
	if err != nil {
		return nil, waitError(err, reply.ID, wait)
	}
	return api.JobOf(&view), nil
}
