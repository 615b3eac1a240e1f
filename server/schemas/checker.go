// Package schemas checks the payloads of jobs against the schemas in the ledger: at the
// doors, where a job that does not match is refused, and when the authority ingests a record.
// There it is rejected, because a client may have published the record without a door, or the
// schema may have changed since. ADR 58 has the reasons.
package schemas

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/internal/logthrottle"
	"github.com/yardmaster-dev/yardmaster/internal/payloadschema"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
)

// Config configures a [Checker]. All fields are required.
type Config struct {
	Schemas  func() *ledger.Schemas                                   // of the local ledger, now
	Msgpack  func(payload []byte) error                               // why no worker can be given the MessagePack, or nil
	ToJSON   func(msgpack []byte) ([]byte, error)                     // fails for values that JSON cannot represent
	LoadBody func(ctx context.Context, record []byte) ([]byte, error) // returns the body that a record refers to; an error that wraps [streams.ErrNotStored] is final
	Secret   func() []byte                                            // of the cluster
	Log      *slog.Logger
}

// Checker checks payloads. Its methods may be called from any goroutine, and a nil Checker
// finds every payload valid.
type Checker struct {
	cfg     Config
	current atomic.Pointer[compiledSet]
	mu      crash.Mutex // held while current is replaced
}

// New returns a checker.
func New(cfg Config) *Checker { return &Checker{cfg: cfg} }

// compiledSet has the schemas of a set with their compiled forms.
type compiledSet struct {
	set      *ledger.Schemas
	compiled map[*ledger.Schema]*compiled
}

// compiled is a schema, its compiled form, and what was found by it on this node.
type compiled struct {
	*ledger.Schema
	compile func() (*payloadschema.Schema, error)
	counters
}

// counters count the payloads that did not match a version of a schema.
type counters struct {
	throttle logthrottle.Throttle

	mu     crash.Mutex
	counts api.SchemaCounts
}

// add counts one violation in the counter that field returns.
func (c *counters) add(v *payloadschema.Violation, field func(*api.SchemaCounts) *uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*field(&c.counts)++
	c.counts.Last = &api.SchemaViolation{At: time.Now().UTC(), Path: v.Path, Reason: v.Reason}
}

func (c *counters) read() api.SchemaCounts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts
}

// find returns the schema that applies to a queue's function, or nil. A queue without schemas
// costs one look-up.
func (c *Checker) find(queue, function string) *compiled {
	if c == nil || c.cfg.Schemas().Find(queue, function) == nil {
		return nil
	}
	current := c.compiledSet()
	return current.compiled[current.set.Find(queue, function)]
}

// compiledSet returns the schemas of the ledger. Those that have not changed keep their
// compiled forms and counts; the others are compiled when they are used for the first time.
func (c *Checker) compiledSet() *compiledSet {
	if current := c.current.Load(); current != nil && current.set == c.cfg.Schemas() {
		return current
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	set, current := c.cfg.Schemas(), c.current.Load()
	switch {
	case current == nil:
		current = &compiledSet{}
	case current.set == set:
		return current
	}
	next := &compiledSet{set, make(map[*ledger.Schema]*compiled, set.Len())}
	for _, schema := range set.Sorted() {
		old := current.compiled[current.set.Get(schema.Queue, schema.Function)]
		if old != nil && old.Version == schema.Version && old.Warn == schema.Warn && bytes.Equal(old.Text, schema.Text) {
			next.compiled[schema] = old
			continue
		}
		next.compiled[schema] = &compiled{Schema: schema, compile: sync.OnceValues(func() (*payloadschema.Schema, error) {
			return payloadschema.Compile(schema.Text)
		})}
	}
	c.current.Store(next)
	return next
}

// checkMsgpack returns a [*job.InvalidError] if no worker can be given the MessagePack of a job's
// payload, because it is damaged, contains a fraction, or is nested too deep.
func (c *Checker) checkMsgpack(spec *job.Spec) error {
	if c == nil || len(spec.Payload) == 0 {
		return nil
	}
	if err := c.cfg.Msgpack(spec.Payload); err != nil {
		return &job.InvalidError{Reason: "payload_msgpack: " + err.Error()}
	}
	return nil
}

// Check checks the payload of a job for a queue, which must not be a reference to a blob. The
// error is a [*job.PayloadError] if the payload does not match a schema that is enforced, and a
// [*job.InvalidError] if no worker can be given it.
// version is that of the schema, 0 if none is enforced. A schema that only warns is left to
// [Checker.CheckRecord], so that each job counts once.
func (c *Checker) Check(queue string, spec *job.Spec) (version uint64, err error) {
	if err := c.checkMsgpack(spec); err != nil {
		return 0, err
	}
	schema := c.find(queue, spec.Function)
	if schema == nil || schema.Warn {
		return 0, nil
	}
	if v := c.violation(schema, spec); v != nil {
		schema.add(v, func(n *api.SchemaCounts) *uint64 { return &n.Refused })
		return schema.Version, payloadError(schema, v)
	}
	return schema.Version, nil
}

func payloadError(schema *compiled, v *payloadschema.Violation) error {
	return &job.PayloadError{Path: v.Path, Reason: v.Reason, Version: schema.Version}
}

// violation returns why a job's payload does not match a schema, or nil. A job without a
// payload has an empty object.
func (c *Checker) violation(schema *compiled, spec *job.Spec) *payloadschema.Violation {
	compiled, err := schema.compile()
	if err != nil { // the node that accepted it is of another build
		return &payloadschema.Violation{Reason: "cannot be checked, because this build cannot use the schema: " + err.Error()}
	}
	payload := []byte(spec.Params)
	switch {
	case len(payload) > 0:
	case len(spec.Payload) == 0:
		payload = []byte("{}")
	case !isMap(spec.Payload[0]):
		return &payloadschema.Violation{Reason: "must be an object"}
	default:
		if payload, err = c.cfg.ToJSON(spec.Payload); err != nil {
			return &payloadschema.Violation{Reason: "must be an object that JSON can represent, without binary"}
		}
	}
	return compiled.Check(payload)
}

// isMap reports whether a MessagePack value that begins with the byte is a map.
func isMap(first byte) bool { return first&0xf0 == 0x80 || first == 0xde || first == 0xdf }

// errBodyNeeded is returned for a record whose body has to be read.
var errBodyNeeded = errors.New("the payload is stored apart from its record")

// CheckRecord checks the payload of a record that the authority is about to ingest. The
// rejection is a [*job.PayloadError] if the payload does not match; if the schema only warns,
// there is none. Either is counted when the record is ingested, because a record may be checked
// more than once. Unless mayRead is set, an error means that the body, which is stored apart,
// has to be read; else that this failed, and has to be tried again.
func (c *Checker) CheckRecord(ctx context.Context, r *job.Record, spec *job.Spec, mayRead bool) (verdict scheduler.Verdict, err error) {
	if err := c.checkMsgpack(spec); err != nil {
		return scheduler.Verdict{Rejection: err}, nil
	}
	schema := c.find(r.Queue, spec.Function)
	if schema == nil {
		return verdict, nil
	}
	var v *payloadschema.Violation
	switch {
	case spec.Blob == nil:
		v = c.violation(schema, spec)
	case !schema.Warn && c.wasChecked(schema, spec.Function, spec.Blob):
		return verdict, nil
	case !mayRead:
		return verdict, errBodyNeeded
	default:
		if v, err = c.violationOfBody(ctx, schema, r); err != nil {
			return verdict, err
		}
	}
	switch {
	case v == nil:
	case schema.Warn:
		function := strings.Clone(spec.Function) // it shares memory with the record
		verdict.Ingested = func() { c.warn(schema, function, v) }
	default:
		verdict.Rejection = payloadError(schema, v)
		verdict.Ingested = func() { schema.add(v, func(n *api.SchemaCounts) *uint64 { return &n.Rejected }) }
	}
	return verdict, nil
}

// warn counts a payload that does not match a schema which only warns, and logs it now and
// then.
func (c *Checker) warn(schema *compiled, function string, v *payloadschema.Violation) {
	schema.add(v, func(n *api.SchemaCounts) *uint64 { return &n.Warned })
	if n, ok := schema.throttle.Allow(time.Now()); ok {
		c.cfg.Log.Warn("payload does not match its schema", "queue", schema.Queue, "function", function, "schema_version", schema.Version, "path", v.Path, "reason", v.Reason, "count", n)
	}
}

// violationOfBody is violation for a record whose body is stored apart.
func (c *Checker) violationOfBody(ctx context.Context, schema *compiled, r *job.Record) (*payloadschema.Violation, error) {
	body, err := c.cfg.LoadBody(ctx, r.Body)
	_, isCorrupt := errors.AsType[*streams.CorruptBlobError](err)
	switch {
	case isCorrupt, errors.Is(err, streams.ErrNotStored):
		return &payloadschema.Violation{Reason: "cannot be checked: " + err.Error()}, nil
	case err != nil:
		return nil, err
	}
	spec, err := job.ParseShared(body)
	if err != nil || spec.Blob != nil {
		return &payloadschema.Violation{Reason: "cannot be checked: its body is not that of a job"}, nil
	}
	return c.violation(schema, &spec), nil
}
