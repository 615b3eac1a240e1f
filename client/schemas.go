package client

import (
	"context"

	"github.com/yardmaster-dev/yardmaster/api"
)

// Schemas shows and changes the JSON Schemas of params, by queue and function. Jobs whose params
// do not match are refused with [ErrInvalid], and [Error.Path] is the place.
type Schemas struct{ c *Client }

// Schemas returns the operations on schemas.
func (c *Client) Schemas() Schemas { return Schemas{c} }

// SetSchema makes the cluster refuse jobs with the kind of A whose params do not match the
// schema of A: see [Schema]. Of the options, only [Queue] counts.
func SetSchema[A Args](ctx context.Context, c *Client, options ...Option) (api.Schema, error) {
	schema, err := Schema[A]()
	if err != nil {
		return api.Schema{}, err
	}
	s := NewSpec(zeroArgs[A](), options...)
	return c.Schemas().Set(ctx, api.SchemaChange{SchemaRequest: api.SchemaRequest{Queue: s.Queue, Function: s.Function}, Schema: schema})
}

// Set sets the schema of a queue's function. With Warn, jobs that do not match are accepted and
// counted.
func (s Schemas) Set(ctx context.Context, change api.SchemaChange) (api.Schema, error) {
	return operate[api.Schema](ctx, s.c, "schema.set", change)
}

// Get returns the schema of a queue's function, and how many jobs did not match it.
func (s Schemas) Get(ctx context.Context, queue, function string) (api.Schema, error) {
	return operate[api.Schema](ctx, s.c, "schema.show", api.SchemaRequest{Queue: queue, Function: function})
}

// List returns the schemas of a queue, or of all if queue is "", without their texts.
func (s Schemas) List(ctx context.Context, queue string) (api.SchemaList, error) {
	return operate[api.SchemaList](ctx, s.c, "schema.list", api.SchemaListRequest{Queue: queue})
}

// Remove removes the schema of a queue's function.
func (s Schemas) Remove(ctx context.Context, queue, function string) error {
	_, err := operate[api.SchemaRemoved](ctx, s.c, "schema.remove", api.SchemaRequest{Queue: queue, Function: function})
	return err
}
