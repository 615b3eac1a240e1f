package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/payloadschema"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/authority"
	"github.com/yardmaster-dev/yardmaster/server/schemas"
)

// Schemas answers requests about the schemas of payloads. All fields are required.
type Schemas struct {
	Authority *authority.Client
	View      func(func(*ledger.Ledger)) // reads the local ledger
	Counts    *schemas.Peers
}

// Handlers returns the handlers by the name of the endpoint.
func (h *Schemas) Handlers() map[string]Handler {
	return map[string]Handler{
		"schema-list": JSON(h.list), "schema-show": JSON(h.show), "schema-set": JSON(h.set), "schema-remove": JSON(h.remove),
	}
}

// list returns the schemas of the local ledger, without their texts.
func (h *Schemas) list(ctx context.Context, q *api.SchemaListRequest) (*api.SchemaList, error) {
	all := h.read(ctx)
	counts, missing := h.Counts.Counts(ctx, q.Queue)
	list := &api.SchemaList{Schemas: []api.Schema{}, Missing: missing}
	for _, s := range all.Sorted() {
		if q.Queue == "" || s.Queue == q.Queue {
			list.Schemas = append(list.Schemas, api.Schema{QueueSchema: api.QueueSchemaOf(s, counts[s.Version]), Queue: s.Queue})
		}
	}
	return list, nil
}

// read returns the schemas of the local ledger.
func (h *Schemas) read(ctx context.Context) (all *ledger.Schemas) {
	h.View(func(l *ledger.Ledger) {
		all = l.Schemas()
		Shows(ctx, l)
	})
	return all
}

// ofQueue returns the schemas of a queue as [api.Queue] shows them.
func (h *Schemas) ofQueue(ctx context.Context, queue string) ([]api.QueueSchema, error) {
	if !h.read(ctx).Has(queue) {
		return nil, nil
	}
	list, err := h.list(ctx, &api.SchemaListRequest{Queue: queue})
	if err != nil {
		return nil, err
	}
	shown := make([]api.QueueSchema, len(list.Schemas))
	for i := range list.Schemas {
		shown[i] = list.Schemas[i].QueueSchema
	}
	return shown, nil
}

// show returns a schema. That it does not exist is confirmed by a read barrier.
func (h *Schemas) show(ctx context.Context, q *api.SchemaRequest) (*api.Schema, error) {
	var found *ledger.Schema
	_, err := h.Authority.Find(ctx, func(l *ledger.Ledger) bool {
		found = l.Schemas().Get(q.Queue, q.Function)
		Shows(ctx, l)
		return found != nil
	})
	if err == nil && found == nil {
		err = ledger.ErrSchemaNotFound
	}
	if err != nil {
		return nil, namedSchemaError(q, err)
	}
	counts, missing := h.Counts.Counts(ctx, q.Queue)
	return &api.Schema{
		QueueSchema: api.QueueSchemaOf(found, counts[found.Version]), Queue: found.Queue, Schema: found.Text, Missing: missing,
	}, nil
}

// set checks a schema and sets it. The schema is stored without white space.
func (h *Schemas) set(ctx context.Context, q *api.SchemaChange) (*api.Schema, error) {
	if err := job.ValidQueue(q.Queue); err != nil {
		return nil, err
	}
	var text bytes.Buffer
	if err := json.Compact(&text, q.Schema); err != nil || text.Len() == 0 {
		return nil, &job.InvalidError{Reason: `schema is missing; give a JSON Schema, such as {"schema": {"type": "object", "required": ["to"]}}`}
	}
	if text.Len() > ledger.MaxSchemaText {
		return nil, &job.InvalidError{Reason: fmt.Sprintf("schema has %d bytes without white space; at most %d", text.Len(), ledger.MaxSchemaText)}
	}
	if _, err := payloadschema.Compile(text.Bytes()); err != nil {
		return nil, schemaError(err)
	}
	if _, err := commit(ctx, h.Authority, &ledger.SetSchema{Queue: q.Queue, Function: q.Function, Text: text.Bytes(), Warn: q.Warn}); err != nil {
		return nil, namedSchemaError(&q.SchemaRequest, err)
	}
	return h.show(ctx, &q.SchemaRequest)
}

func (h *Schemas) remove(ctx context.Context, q *api.SchemaRequest) (*api.SchemaRemoved, error) {
	if _, err := commit(ctx, h.Authority, &ledger.RemoveSchema{Queue: q.Queue, Function: q.Function}); err != nil {
		return nil, namedSchemaError(q, err)
	}
	return &api.SchemaRemoved{SchemaRequest: *q, Removed: true}, nil
}

// schemaError returns the answer to a schema that cannot be used, with the place.
func schemaError(err error) error {
	refused := &api.Error{Code: api.CodeInvalid, Text: err.Error()}
	if invalid, ok := errors.AsType[*payloadschema.SchemaError](err); ok {
		refused.Data, _ = json.Marshal(map[string]string{"path": invalid.Path}) // cannot fail
	}
	return refused
}

// namedSchemaError adds the name of the schema, and the code, to an error of the ledger.
func namedSchemaError(q *api.SchemaRequest, err error) error {
	code := api.CodeConflict
	switch {
	case errors.Is(err, ledger.ErrSchemaNotFound):
		code = api.CodeNotFound
	case !errors.Is(err, ledger.ErrTooManySchemas):
		return err
	}
	of := fmt.Sprintf("function %q", q.Function)
	if q.Function == "" {
		of = "jobs without a function"
	}
	return &api.Error{Code: code, Text: fmt.Sprintf("schema of queue %q, %s: %v", q.Queue, of, err)}
}
