// Package httproutes serves the endpoints of the API over HTTP.
package httproutes

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/server"
	"github.com/yardmaster-dev/yardmaster/web"
)

// Handlers are the handlers of routes that do more than their endpoints over NATS. All
// fields are required.
type Handlers struct {
	Enqueue *server.Enqueue
	Jobs    *server.Jobs
	Backup  func(context.Context) (io.ReadCloser, error) // starts a backup and returns the file
}

// Routes returns the HTTP routes of endpoints, and that of a backup. The route that
// enqueues a job also waits for its end if the client asks for that. The routes of content
// stream it.
func (h *Handlers) Routes(endpoints []cluster.Endpoint) []web.Route {
	routes := make([]web.Route, len(endpoints), len(endpoints)+1)
	for i := range endpoints {
		routes[i] = web.Route{Endpoint: endpoints[i].Endpoint, Handle: handler(&endpoints[i])}
		switch endpoints[i].Name {
		case "enqueue":
			routes[i].Handle = enqueueAndWait(routes[i].Handle, h.Enqueue)
		case "job-result":
			routes[i].Open = openContent(h.Jobs.OpenResult)
		case "job-params":
			routes[i].Open = openContent(h.Jobs.OpenParams)
		}
	}
	return append(routes, web.Route{Endpoint: api.BackupRoute, Stream: h.openBackup})
}

// handler returns an HTTP handler that calls an endpoint.
func handler(e *cluster.Endpoint) func(context.Context, *web.Request) ([]byte, error) {
	return func(ctx context.Context, req *web.Request) ([]byte, error) {
		type reply struct {
			data   []byte
			apiErr *api.Error
		}
		replied := make(chan reply, 1)
		header := func(name string) string {
			if name == subjects.HeaderMsgID {
				name = headerIdempotencyKey
			}
			return req.Header.Get(name)
		}
		r := cluster.NewRequest(req.Data, req.Token, header, func(data []byte, apiErr *api.Error) error {
			replied <- reply{data, apiErr}
			return nil
		})
		r.OnRelease = req.Release
		r.Sender = senderOf(req)
		r.Actor = cluster.HTTPActor(req.Client, req.Header.Get(api.HeaderReason))
		if e.Handle != nil {
			data, err := e.Handle(ctx, r)
			req.Index, req.Event, req.AsOf = r.Index(), r.Event(), r.AsOf()
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

// senderOf returns a function that returns what the user of a request may do.
func senderOf(req *web.Request) func() cluster.Sender {
	return func() cluster.Sender { return cluster.Sender{Queues: req.Queues, Quota: req.Quota} }
}

// headerIdempotencyKey is the HTTP header of a producer's key.
const headerIdempotencyKey = "Idempotency-Key"

// enqueueAndWait returns a handler that enqueues a job and, with ?wait=30s, waits for it
// and returns it.
func enqueueAndWait(handle func(context.Context, *web.Request) ([]byte, error), enqueue *server.Enqueue) func(context.Context, *web.Request) ([]byte, error) {
	return func(ctx context.Context, req *web.Request) ([]byte, error) {
		text := req.Query.Get("wait")
		if text == "" {
			return handle(ctx, req)
		}
		wait, err := duration.Parse(text)
		if err != nil || wait < time.Millisecond || wait > server.MaxWait {
			return nil, &api.Error{Code: api.CodeInvalid, Text: fmt.Sprintf("parameter wait is %q; must be a duration, such as 30s, of 1ms to %s", text, duration.Format(server.MaxWait))}
		}
		req.Waited = true
		end := cluster.Endpoint{Handle: enqueue.AndWait(wait)}
		return handler(&end)(ctx, req)
	}
}

// WithOpenAPI returns s with one more endpoint, which returns the OpenAPI document. It
// sets the metadata of the other endpoints: the pattern of the HTTP route, and the place
// in the document that describes it. authenticated means that HTTP clients need a token.
func (h *Handlers) WithOpenAPI(s cluster.Service, version string, authenticated bool) cluster.Service {
	openAPI := api.Endpoint{
		Name: "openapi", Subject: api.SubjectAPI + ".openapi", Summary: "the OpenAPI document: what every endpoint takes and answers",
	}
	document := sync.OnceValues(func() ([]byte, error) {
		return web.Document(version, authenticated, h.Routes(s.Endpoints))
	})
	described := slices.Clone(s.Endpoints)
	for i := range described {
		e := &described[i]
		e.Metadata = map[string]string{"http": e.Pattern, "schema": openAPI.Subject + "#" + e.Name} // the operation with this id
	}
	s.Endpoints = append(described, cluster.Endpoint{
		Endpoint: openAPI, Handle: func(context.Context, *cluster.Request) ([]byte, error) { return document() },
	})
	return s
}
