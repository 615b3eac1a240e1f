package node

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"yardmaster/cluster"
	"yardmaster/ledger"
	"yardmaster/web"
)

// openWeb opens the HTTP door, so that who looks after the process can ask it
// from the first moment, once the certificates of all doors are good. close ends it, when everything else has ended.
func (n *Node) openWeb(ctx context.Context) (close func() error, err error) {
	if err := n.openCertificates(); err != nil {
		return nil, err
	}
	n.warnOfOpenDoors()
	n.metrics = web.NewMetrics()
	n.web = web.New(web.Config{Version: n.version, Token: string(n.cfg.HTTP.Token), Ready: n.ready, Metrics: n.metrics, TLS: serverTLS(n.certs.http)}, n.log)
	if n.cfg.HTTP.Off() {
		return func() error { return nil }, nil
	}
	listener, err := net.Listen("tcp", n.cfg.HTTP.Listen)
	if err != nil {
		return nil, portInUse(fmt.Errorf("open the HTTP door: %w", err), "http.listen")
	}
	n.httpAddr = listener.Addr().String()
	door := newFloor(ctx)
	door.Go(func(ctx context.Context) error { return n.web.Serve(ctx, listener) })
	return door.stop, nil
}

// ready tells over HTTP what the status tells of readiness.
func (n *Node) ready(ctx context.Context) (bool, any) {
	select {
	case <-n.serving:
	default:
		why := "the node is starting"
		if waiting := n.waiting.Load(); waiting != nil && len(*waiting) > 0 {
			why = "the node waits: " + strings.Join(*waiting, "; ")
		}
		return false, ReadinessStatus{Readiness: ledger.Readiness{Reasons: []string{why}}}
	}
	r := n.readiness(ctx, n.look(ctx), n.laneStatus(ctx))
	return r.Ready, r
}

// webRoutes gives the endpoints their places under /v1.
func (n *Node) webRoutes(endpoints []cluster.Endpoint) []web.Route {
	var bound []web.Route
	for _, e := range endpoints {
		r, ok := routes[e.Name]
		if !ok {
			continue // the table's test does not let this happen
		}
		r.Name, r.About, r.Waits = e.Name, e.Description, e.Waits
		r.Do = over(&e)
		if e.Name == "enqueue" {
			r.Do = n.enqueueAndWait(r.Do)
		}
		bound = append(bound, r)
	}
	return bound
}

// over asks an endpoint what came over HTTP.
func over(e *cluster.Endpoint) func(context.Context, *web.Question) ([]byte, error) {
	return func(ctx context.Context, q *web.Question) ([]byte, error) {
		type reply struct {
			data    []byte
			refusal *cluster.APIError
		}
		replied := make(chan reply, 1)
		header := func(name string) string {
			if name == cluster.HeaderMsgID {
				name = headerKey
			}
			return q.Header.Get(name)
		}
		r := cluster.NewRequest(q.Data, q.Token, header, func(data []byte, refusal *cluster.APIError) error {
			replied <- reply{data, refusal}
			return nil
		})
		r.Free = q.Free
		if e.Do != nil {
			data, err := e.Do(ctx, r)
			q.Index = r.Index()
			return data, webRefusal(err)
		}
		e.Go(r)
		// It is answered in bounded time, also while the node stops; who has
		// gone away does not hear it.
		said := <-replied
		if said.refusal != nil {
			return nil, webRefusal(said.refusal)
		}
		return said.data, nil
	}
}

// headerKey is the header of HTTP that names a producer's key.
const headerKey = "Idempotency-Key"

// webRefusal gives an error the status that is its code over NATS.
func webRefusal(err error) error {
	if err == nil {
		return nil
	}
	known := cluster.RefusalOf(err)
	status, bad := strconv.Atoi(known.Code)
	if bad != nil || status < 400 || status > 599 {
		status = http.StatusInternalServerError
	}
	return &web.Refusal{Status: status, Text: known.Text, RetryAfter: known.RetryAfter, Data: known.Data}
}

// enqueueAndWait lets who enqueues by ?wait=30s have the job when it has ended.
func (n *Node) enqueueAndWait(enqueue func(context.Context, *web.Question) ([]byte, error)) func(context.Context, *web.Question) ([]byte, error) {
	return func(ctx context.Context, q *web.Question) ([]byte, error) {
		text := q.Query.Get("wait")
		if text == "" {
			return enqueue(ctx, q)
		}
		wait, err := time.ParseDuration(text)
		if err != nil || wait < time.Millisecond {
			return nil, &web.Refusal{Status: http.StatusBadRequest, Text: fmt.Sprintf("parameter wait is %q; must be a duration, such as 30s", text)}
		}
		q.Waited = true
		end := cluster.Endpoint{Do: answer(func(ctx context.Context, r *cluster.Request) (any, error) {
			return n.enqueueAndShow(ctx, r, min(wait, maxWait))
		})}
		return over(&end)(ctx, q)
	}
}

func (n *Node) enqueueAndShow(ctx context.Context, r *cluster.Request, wait time.Duration) (any, error) {
	var ask enqueueRequest
	body, err := readJob(r, &ask, &ask)
	if err != nil {
		return nil, err
	}
	reply, err := n.enqueueAndAwait(ctx, r, ask, body, wait)
	if err != nil {
		return nil, err
	}
	view, err := n.viewer.show(ctx, reply.ID)
	if err != nil {
		return nil, notEnded(err, reply.ID, wait)
	}
	return jobToJSON(&view), nil
}
