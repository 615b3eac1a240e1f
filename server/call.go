package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Handler handles the requests of one endpoint, as [cluster.Endpoint].Handle.
type Handler = func(context.Context, *cluster.Request) ([]byte, error)

// callKey is the key of a call's [cluster.Request] in its context.
type callKey struct{}

// WithCall returns a context in which the functions of this package find r, its commands the
// actor of r, and its handlers what the sender of r may do.
func WithCall(ctx context.Context, r *cluster.Request) context.Context {
	if r.Actor != nil {
		ctx = cluster.WithActor(ctx, r.Actor)
	}
	if r.Sender != nil {
		ctx = cluster.WithSender(ctx, sync.OnceValue(r.Sender))
	}
	return context.WithValue(ctx, callKey{}, r)
}

// call returns the request that is being answered, an empty one if a handler is called
// without a request, as in tests.
func call(ctx context.Context) *cluster.Request {
	if r, ok := ctx.Value(callKey{}).(*cluster.Request); ok {
		return r
	}
	return cluster.NewRequest(nil, "", func(string) string { return "" }, nil)
}

// Header returns the value of a header of the request, "" if it is missing.
func Header(ctx context.Context, name string) string { return call(ctx).Header(name) }

// Token returns the last token of the request's subject, such as the queue of
// yard.enqueue.<queue>.
func Token(ctx context.Context) string { return call(ctx).Token() }

// Release frees the memory of the request. Handlers that go on to wait call it.
func Release(ctx context.Context) { call(ctx).Release() }

// SetIndex sets the index of the last ledger entry that the reply shows. Without it the
// reply of an indexed endpoint has the index at the time of the request.
func SetIndex(ctx context.Context, index uint64) { call(ctx).SetIndex(index) }

// SetEvent is like SetIndex for the number of the last event.
func SetEvent(ctx context.Context, number uint64) { call(ctx).SetEvent(number) }

// Shows sets the index and the event of a reply that shows l as it is.
func Shows(ctx context.Context, l *ledger.Ledger) {
	SetIndex(ctx, l.Index())
	SetEvent(ctx, l.LastEvent())
}

// requestName is the name of the body of a request in errors, unless the body has another one.
const requestName = "request"

// JSON returns a handler that decodes a request's body from JSON, calls handle, and
// encodes its reply as JSON. An empty body is the zero request. A body that is not JSON or
// has unknown keys is an error, without a call of handle.
func JSON[Req, Resp any](handle func(context.Context, *Req) (*Resp, error)) Handler {
	return NamedJSON(requestName, handle)
}

// NamedJSON is like [JSON], but errors of decoding refer to the request's body as name.
func NamedJSON[Req, Resp any](name string, handle func(context.Context, *Req) (*Resp, error)) Handler {
	return func(ctx context.Context, r *cluster.Request) ([]byte, error) {
		decoded := new(Req)
		if len(r.Data) > 0 {
			if err := job.UnmarshalStrict(name, r.Data, decoded); err != nil {
				return nil, err
			}
		}
		return encode(handle(WithCall(ctx, r), decoded))
	}
}

// JSONReply is like [JSON] for a handler that takes no request. It ignores the body.
func JSONReply[Resp any](handle func(context.Context) (*Resp, error)) Handler {
	return func(ctx context.Context, r *cluster.Request) ([]byte, error) {
		return encode(handle(WithCall(ctx, r)))
	}
}

// Raw returns a handler for a handle that decodes the body and encodes its reply itself.
func Raw(handle func(ctx context.Context, body []byte) ([]byte, error)) Handler {
	return func(ctx context.Context, r *cluster.Request) ([]byte, error) {
		return handle(WithCall(ctx, r), r.Data)
	}
}

// encode returns what a handler has returned, with the reply as JSON, in which a list
// without items is [] and never null. If err is not nil, it returns err and ignores the
// reply.
func encode[Resp any](reply *Resp, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	complete, _ := withLists(reflect.ValueOf(reply))
	return job.EncodeJSON(complete.Interface())
}

// Binding is what an API needs besides its handlers.
type Binding struct {
	Node string                     // name of this node, the "*" in the subjects of [api.NodeEndpoints]
	View func(func(*ledger.Ledger)) // reads the local ledger

	NoQuorum func() bool // reports whether the node reaches no majority of the members; nil: it does not

	Enqueue func(*cluster.Request) // handles the endpoint enqueue, whose replies are sent later
}

// Bind returns the endpoints of a table with their handlers, which are by endpoint name;
// an endpoint without one has a nil Handle. The replies of indexed endpoints carry the
// index of the ledger that they show, and its last event: those at the time of the request, unless the
// handler sets later ones. A reply may show newer state, never older. Without a majority of the members, they
// carry the time of the ledger.
func (b Binding) Bind(table []api.Endpoint, handlers map[string]Handler) []cluster.Endpoint {
	bound := make([]cluster.Endpoint, len(table))
	for i, described := range table {
		e := &bound[i]
		e.Endpoint, e.Handle = described, handlers[described.Name]
		if e.Name == "enqueue" {
			e.HandleAsync = b.Enqueue
		}
		e.Subject = strings.Replace(e.Subject, api.SubjectNode+".*", api.SubjectNode+"."+b.Node, 1)
		if handle := e.Handle; handle != nil && e.Indexed {
			e.Handle = func(ctx context.Context, r *cluster.Request) ([]byte, error) {
				outdated := b.NoQuorum != nil && b.NoQuorum()
				b.View(func(l *ledger.Ledger) {
					r.SetIndex(l.Index())
					r.SetEvent(l.LastEvent())
					if outdated {
						r.SetAsOf(l.Now())
					}
				})
				return handle(ctx, r)
			}
		}
		if handle := e.Handle; handle != nil && e.Request != nil {
			e.Handle = func(ctx context.Context, r *cluster.Request) ([]byte, error) {
				request, isLarge := r.Data, len(r.Data) > maxNamedRequest
				if isLarge {
					request = nil // a handler that waits has released it
				}
				reply, err := handle(ctx, r)
				if err != nil {
					err = nameKeys(&e.Endpoint, request, isLarge, err)
				}
				return reply, err
			}
		}
	}
	return bound
}

// maxNamedRequest is the size of the largest request, in bytes, in which a missing key is named.
const maxNamedRequest = 16 << 10

// nameKeys makes err, the error of a request to an endpoint, more precise: if the request has an unknown key,
// the result names the keys that the endpoint takes; if it lacks a key that the endpoint needs, it names that
// key. The request is nil if it isLarge.
func nameKeys(e *api.Endpoint, request []byte, isLarge bool, err error) error {
	unknown, ok := errors.AsType[*job.UnknownKeyError](err)
	switch {
	case ok && unknown.Subject == requestName:
		return &job.UnknownKeyError{Subject: unknown.Subject, Key: unknown.Key, Keys: e.Keys(unknown.Keys)}
	case ok, isLarge:
		return err
	}
	return nameNeeded(e, request, err)
}

// nameNeeded returns err or, if the request to an endpoint was refused and lacks a key that it needs, an
// error that names the key.
func nameNeeded(e *api.Endpoint, request []byte, err error) error {
	refusal, given := cluster.AsAPIError(err), map[string]json.RawMessage{}
	isAboutKeys := refusal.Code == api.CodeInvalid || refusal.Code == api.CodeNotFound
	if !isAboutKeys || len(request) > 0 && json.Unmarshal(request, &given) != nil {
		return err
	}
	for _, needed := range e.NeededKeys() {
		isGiven := e.Name == "dlq-show" && given["jobs"] != nil // a job names its dead letter
		for key, value := range given {                         // encoding/json ignores the case of keys
			isGiven = isGiven || strings.EqualFold(key, needed) && !slices.Contains([]string{`""`, "null", "[]"}, string(value))
		}
		if !isGiven && !strings.Contains(refusal.Text, strconv.Quote(needed)) {
			if refusal.Code == api.CodeNotFound { // it speaks of something without a name
				return &job.InvalidError{Reason: fmt.Sprintf("%s lacks the key %q", requestName, needed)}
			}
			return &job.InvalidError{Reason: fmt.Sprintf("%s lacks the key %q: %s", requestName, needed, refusal.Text)}
		}
	}
	return err
}
