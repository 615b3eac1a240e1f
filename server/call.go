package server

import (
	"context"
	"encoding/json"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Handler handles the requests of one endpoint, as [cluster.Endpoint].Handle.
type Handler = func(context.Context, *cluster.Request) ([]byte, error)

// callKey is the key of a call's [cluster.Request] in its context.
type callKey struct{}

// WithCall returns a context in which the functions of this package find r.
func WithCall(ctx context.Context, r *cluster.Request) context.Context {
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

// JSON adapts a handler of a request that is JSON, without unknown keys. An empty body
// is the zero request.
func JSON[Q, R any](handle func(context.Context, *Q) (*R, error)) Handler {
	return NamedJSON("request", handle)
}

// NamedJSON is [JSON] for a request that errors about it call name.
func NamedJSON[Q, R any](name string, handle func(context.Context, *Q) (*R, error)) Handler {
	return func(ctx context.Context, r *cluster.Request) ([]byte, error) {
		q := new(Q)
		if len(r.Data) > 0 {
			if err := job.UnmarshalStrict(name, r.Data, q); err != nil {
				return nil, err
			}
		}
		reply, err := handle(WithCall(ctx, r), q)
		return encode(reply, err)
	}
}

// JSONReply adapts a handler that takes no request. It ignores the request's body.
func JSONReply[R any](handle func(context.Context) (*R, error)) Handler {
	return func(ctx context.Context, r *cluster.Request) ([]byte, error) {
		reply, err := handle(WithCall(ctx, r))
		return encode(reply, err)
	}
}

// Raw adapts a handler that decodes the request's body and encodes its reply itself.
func Raw(handle func(ctx context.Context, body []byte) ([]byte, error)) Handler {
	return func(ctx context.Context, r *cluster.Request) ([]byte, error) {
		return handle(WithCall(ctx, r), r.Data)
	}
}

// encode returns a reply as JSON, or err.
func encode[R any](reply *R, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	return json.Marshal(reply)
}
