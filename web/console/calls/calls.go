// Package calls sends the requests of the console to the endpoints of the API, on behalf of
// its users.
package calls

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/web/console/session"
)

// Call is a request to an endpoint, on behalf of a user.
type Call struct {
	Endpoint string // name in [api.Endpoints]
	Node     string // instead: the member whose endpoint in [api.NodeEndpoints] it is
	Token    string // of the subject
	Data     []byte
	Actor    string // the user, or else the remote address
	Reason   string // for an act; "" means none
	Quota    string // of the user; [Act] sets it
}

// Func sends a request and returns the reply.
type Func func(context.Context, *Call) ([]byte, error)

// Ask returns the reply of an endpoint to a user, who must be allowed to use it. A nil request
// is an empty one.
func Ask[Reply any](ctx context.Context, send Func, u *session.User, endpoint string, request any) (reply Reply, err error) {
	return Act[Reply](ctx, send, u, &Call{Endpoint: endpoint}, request)
}

// Act is like [Ask] for a call that has an actor.
func Act[Reply any](ctx context.Context, send Func, u *session.User, call *Call, request any) (reply Reply, err error) {
	if !u.MayUse(call.Endpoint, call.Node) {
		return reply, Forbidden(u, call.Endpoint)
	}
	call.Quota = u.Quota
	if request != nil {
		if call.Data, err = json.Marshal(request); err != nil {
			return reply, err
		}
	}
	return Get[Reply](ctx, send, call)
}

// Get sends a request of the console itself, and decodes the reply.
func Get[Reply any](ctx context.Context, send Func, call *Call) (reply Reply, err error) {
	data, err := send(ctx, call)
	if err == nil {
		err = json.Unmarshal(data, &reply)
	}
	return reply, err
}

// Forbidden returns the error for a request that the role of a user does not allow.
func Forbidden(u *session.User, endpoint string) error {
	return &api.Error{Code: api.CodeForbidden, Text: fmt.Sprintf("%s has the role %s, which does not allow %s", u, u.Role, strings.ReplaceAll(endpoint, "-", " "))}
}

// Problem returns an error as the API describes it.
func Problem(err error) *api.Error {
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return &api.Error{Code: api.CodeTimeout, Text: "the yard did not answer in time; it may have no quorum"}
	}
	return &api.Error{Code: api.CodeInternal, Text: err.Error()}
}
