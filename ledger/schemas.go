package ledger

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Limits of payload schemas.
const (
	MaxSchemas    = 1000
	MaxSchemaText = 32 << 10 // bytes of one
)

// AnyFunction, in place of a function, stands for the functions of a queue that have no
// schema of their own, and for jobs without a function.
const AnyFunction = "*"

// Errors of commands about schemas.
var (
	ErrTooManySchemas = fmt.Errorf("the yard already has the maximum of %d schemas; remove one first", MaxSchemas)
	ErrSchemaNotFound = errors.New("there is no such schema")
)

// Schema is the JSON Schema of the payloads of a queue's function. The ledger does not
// interpret Text: the node that proposes a schema checks that it is valid, and jobs are
// checked before they are ingested.
type Schema struct {
	Queue    string
	Function string // "": jobs without a function; see also [AnyFunction]
	Text     []byte
	Warn     bool      // jobs that do not match are counted, and accepted
	Version  uint64    // increases with every change of any schema
	Changed  time.Time // when the command that made this version was applied
}

// Schemas is a set of schemas. It is immutable, and so are the schemas in it. A nil set is
// empty.
type Schemas struct {
	sorted  []*Schema // by queue and function
	byQueue map[string]map[string]*Schema
}

// Len returns the number of schemas.
func (s *Schemas) Len() int {
	if s == nil {
		return 0
	}
	return len(s.sorted)
}

// Sorted returns the schemas in the order of their queues and functions. The slice must not
// be changed.
func (s *Schemas) Sorted() []*Schema {
	if s == nil {
		return nil
	}
	return s.sorted
}

// Find returns the schema that applies to jobs of a queue's function, or nil.
func (s *Schemas) Find(queue, function string) *Schema {
	if s == nil {
		return nil
	}
	functions := s.byQueue[queue]
	if functions == nil {
		return nil
	}
	if own := functions[function]; own != nil {
		return own
	}
	return functions[AnyFunction]
}

// Has reports whether a queue has schemas.
func (s *Schemas) Has(queue string) bool { return s != nil && s.byQueue[queue] != nil }

// Get returns the schema of exactly this function or [AnyFunction], or nil.
func (s *Schemas) Get(queue, function string) *Schema {
	if s == nil {
		return nil
	}
	return s.byQueue[queue][function]
}

// newSchemas returns the set of the given schemas, or nil if there are none.
func newSchemas(schemas []*Schema) *Schemas {
	if len(schemas) == 0 {
		return nil
	}
	slices.SortFunc(schemas, func(a, b *Schema) int {
		return cmp.Or(cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Function, b.Function))
	})
	s := &Schemas{sorted: schemas, byQueue: make(map[string]map[string]*Schema)}
	for _, schema := range schemas {
		if s.byQueue[schema.Queue] == nil {
			s.byQueue[schema.Queue] = make(map[string]*Schema)
		}
		s.byQueue[schema.Queue][schema.Function] = schema
	}
	return s
}

// without returns the schemas of s in a new slice, except that of exactly this function.
func (s *Schemas) without(queue, function string) []*Schema {
	return slices.DeleteFunc(slices.Clone(s.Sorted()), func(schema *Schema) bool {
		return schema.Queue == queue && schema.Function == function
	})
}

// schemas are the schemas of the cluster.
type schemas struct {
	set     *Schemas
	version uint64 // of the last change
}

// Schemas returns the schemas. The result remains valid when the ledger changes.
func (s *schemas) Schemas() *Schemas { return s.set }

// SetSchema creates the schema of a queue's function, or replaces it. The queue need not
// exist. The proposer has checked that Text is a valid schema.
type SetSchema struct {
	Queue, Function string
	Text            []byte
	Warn            bool
	Asked
}

// RemoveSchema removes the schema of a queue's function.
type RemoveSchema struct {
	Queue, Function string
	Asked
}

func (*SetSchema) Kind() Kind    { return KindSetSchema }
func (*RemoveSchema) Kind() Kind { return KindRemoveSchema }

// apply succeeds without a change, and keeps the version, if the schema is already as
// requested.
func (c *SetSchema) apply(l *Ledger) Result {
	if err := job.ValidQueue(c.Queue); err != nil {
		return Result{Err: err}
	}
	old := l.schemas.set.Get(c.Queue, c.Function)
	switch {
	case old != nil && bytes.Equal(old.Text, c.Text) && old.Warn == c.Warn:
		return Result{}
	case old == nil && l.schemas.set.Len() >= MaxSchemas:
		return Result{Err: ErrTooManySchemas}
	}
	l.schemas.version++
	added := &Schema{Queue: c.Queue, Function: c.Function, Text: c.Text, Warn: c.Warn, Version: l.schemas.version, Changed: l.Now()}
	l.schemas.set = newSchemas(append(l.schemas.set.without(c.Queue, c.Function), added))
	l.act(c.By, "schema.set", Event{B: c.Queue}, c.Function, nil)
	return Result{}
}

func (c *RemoveSchema) apply(l *Ledger) Result {
	if l.schemas.set.Get(c.Queue, c.Function) == nil {
		return Result{Err: ErrSchemaNotFound}
	}
	l.schemas.version++
	l.schemas.set = newSchemas(l.schemas.set.without(c.Queue, c.Function))
	l.act(c.By, "schema.remove", Event{B: c.Queue}, c.Function, nil)
	return Result{}
}

// schemas encodes or decodes the schemas in the order of their queues and functions.
func (c *codec) schemas(s *schemas) {
	c.fields(&s.version)
	all := s.set.Sorted()
	list(c, &all, func(p **Schema) {
		if c.decoding() {
			*p = new(Schema)
		}
		schema := *p
		c.fields(&schema.Queue, &schema.Function, &schema.Text, &schema.Warn, &schema.Version, &schema.Changed)
	})
	if c.decoding() {
		s.set = newSchemas(all)
	}
}
