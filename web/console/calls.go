package console

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
)

// mayUse reports whether a user may use an endpoint, or with a node that member's.
func mayUse(u *User, endpoint, node string) bool {
	if node != "" {
		return u.May(api.NodeSubject(node, endpoint))
	}
	return u.May(api.Subject(endpoint))
}

// ask returns the reply of an endpoint to a user, who must be allowed to use it.
func ask[Reply any](ctx context.Context, c *Console, u *User, endpoint string, request any) (reply Reply, err error) {
	if !mayUse(u, endpoint, "") {
		return reply, forbidden(u, endpoint)
	}
	call := &Call{Endpoint: endpoint}
	if request != nil {
		if call.Data, err = json.Marshal(request); err != nil {
			return reply, err
		}
	}
	return get[Reply](ctx, c, call)
}

// forbidden returns the error for a request that the role of a user does not allow.
func forbidden(u *User, endpoint string) error {
	return &api.Error{Code: api.CodeForbidden, Text: fmt.Sprintf("%s has the role %s, which does not allow %s", u, u.Role, strings.ReplaceAll(endpoint, "-", " "))}
}

// String returns the user as messages name it.
func (u *User) String() string {
	if u.Name == "" {
		return "a visitor without a sign-in"
	}
	return "user " + u.Name
}

// get sends a request and decodes the reply.
func get[Reply any](ctx context.Context, c *Console, call *Call) (reply Reply, err error) {
	data, err := c.cfg.Call(ctx, call)
	if err == nil {
		err = json.Unmarshal(data, &reply)
	}
	return reply, err
}
