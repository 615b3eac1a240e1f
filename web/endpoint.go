package web

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"
)

// endpoint is a validated route.
type endpoint struct {
	*Route
	method     string
	path       string
	wildcards  []string // of the path, in order
	keys       []field  // accepted in the body or the query
	parameters []field  // those of keys that are accepted in the query
}

// newEndpoints returns the endpoints of routes, in their order.
func newEndpoints(routes []Route) ([]*endpoint, error) {
	endpoints := make([]*endpoint, len(routes))
	for i := range routes {
		e, err := newEndpoint(&routes[i])
		if err != nil {
			return nil, fmt.Errorf("route %s: %w", routes[i].Name, err)
		}
		endpoints[i] = e
	}
	return endpoints, nil
}

// newEndpoint returns the endpoint of a route, with its status if the route has none. It
// returns an error if a name in the route is not a field of its request.
func newEndpoint(r *Route) (*endpoint, error) {
	e := &endpoint{Route: r}
	e.Status = cmp.Or(e.Status, http.StatusOK)
	e.method, e.path, _ = strings.Cut(r.Pattern, " ")
	for part := range strings.SplitSeq(e.path, "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			e.wildcards = append(e.wildcards, strings.TrimSuffix(name, "}"))
		}
	}
	fields := fieldsOf(reflect.TypeOf(r.Request))
	for _, name := range e.wildcards {
		if name != r.Token && findField(fields, name) == nil {
			return nil, fmt.Errorf("{%s} is not a field of %T", name, r.Request)
		}
	}
	for _, name := range append(strings.Fields(r.Accepts), strings.Fields(r.Required)...) {
		if name != "*" && findField(fields, strings.TrimPrefix(name, "-")) == nil {
			return nil, fmt.Errorf("%s is not a field of %T", name, r.Request)
		}
	}
	accepted := strings.Fields(r.Accepts)
	for _, f := range fields {
		excluded := slices.Contains(e.wildcards, f.key) || slices.Contains(accepted, "-"+f.key)
		if !excluded && (slices.Contains(accepted, "*") || slices.Contains(accepted, f.key)) {
			e.keys = append(e.keys, f)
			if !e.hasBody() || slices.Contains(strings.Fields(r.Query), f.key) {
				e.parameters = append(e.parameters, f)
			}
		}
	}
	return e, nil
}

// hasBody reports whether the method has a body.
func (e *endpoint) hasBody() bool {
	return e.method == http.MethodPost || e.method == http.MethodPut || e.method == http.MethodPatch
}

// bodyLimit returns the size of the largest accepted body, in bytes.
func (e *endpoint) bodyLimit() int64 {
	if e.Large {
		return maxLargeBody
	}
	return maxBody
}

// request returns the request for the endpoint's handler. Its Data is the body, with the
// values of the wildcards in the path and of the query parameters merged in as keys. The
// value of the wildcard that the route calls Token, and the parameters in Query that are
// not keys, become fields of the request instead. The error is for the client: an unknown
// parameter, or a value that is invalid or contradicts the body.
func (e *endpoint) request(r *http.Request, body []byte) (*Request, error) {
	q := &Request{Header: r.Header, Query: url.Values{}}
	fromURL := map[string]json.RawMessage{} // by key
	for _, name := range e.wildcards {
		value := r.PathValue(name)
		if name == e.Token {
			q.Token = value
			continue
		}
		text, err := literal(findField(fieldsOf(reflect.TypeOf(e.Request)), name).kind, []string{value})
		if err != nil {
			return nil, badRequest("%s in the path is %q: %v", name, value, err)
		}
		fromURL[name] = text
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, badRequest("the query cannot be read: %v", err)
	}
	for name, values := range query {
		if slices.Contains(strings.Fields(e.Query), name) && findField(e.parameters, name) == nil {
			q.Query[name] = values
			continue
		}
		key, text, err := e.parameter(name, values)
		if err != nil {
			return nil, err
		}
		fromURL[key] = text
	}
	if len(body) > 0 && !e.hasBody() {
		return nil, badRequest("%s takes no body; use query parameters", e.Pattern)
	}
	q.Data, err = merge(body, fromURL)
	return q, err
}

// parameter returns the key of the request that a query parameter sets, and the key's
// value as JSON. A key that ends in _ms may also be given without the suffix, as a
// duration: timeout=30s. The error is for the client.
func (e *endpoint) parameter(name string, values []string) (key string, value json.RawMessage, err error) {
	if k := findField(e.parameters, name); k != nil {
		text, err := literal(k.kind, values)
		if err != nil {
			return "", nil, badRequest("parameter %s is %q: %v", name, strings.Join(values, ", "), err)
		}
		return k.key, text, nil
	}
	if k := findField(e.parameters, name+"_ms"); k != nil {
		d, err := duration.Parse(values[0])
		if err != nil || d < time.Millisecond || len(values) > 1 {
			return "", nil, badRequest("parameter %s is %q; must be one duration, such as 30s", name, strings.Join(values, ", "))
		}
		return k.key, json.RawMessage(strconv.FormatInt(d.Milliseconds(), 10)), nil
	}
	if findField(e.keys, name) != nil {
		return "", nil, badRequest("%s takes %s in the body, not as a parameter", e.Pattern, name)
	}
	known := strings.Fields(e.Query)
	for _, k := range e.parameters {
		if !slices.Contains(known, k.key) {
			known = append(known, strings.TrimSuffix(k.key, "_ms"))
		}
	}
	return "", nil, badRequest("unknown parameter %s; known are: %s", name, cmp.Or(strings.Join(known, ", "), "none"))
}

// literal returns the JSON of a value of type kind that is given as text. A slice has
// one text per item; for other types values must have one element.
func literal(kind reflect.Type, values []string) (json.RawMessage, error) {
	for kind.Kind() == reflect.Pointer {
		kind = kind.Elem()
	}
	if kind.Kind() == reflect.Slice && kind.Elem().Kind() != reflect.Uint8 {
		parts := make([]json.RawMessage, len(values))
		for i, v := range values {
			part, err := literal(kind.Elem(), []string{v})
			if err != nil {
				return nil, err
			}
			parts[i] = part
		}
		return json.Marshal(parts)
	}
	if len(values) != 1 {
		return nil, fmt.Errorf("must be given once")
	}
	var err error
	switch kind.Kind() {
	case reflect.Bool:
		b, err := strconv.ParseBool(values[0])
		if err != nil {
			return nil, fmt.Errorf("must be true or false")
		}
		return json.Marshal(b)
	case reflect.Int, reflect.Int64, reflect.Int32:
		_, err = strconv.ParseInt(values[0], 10, kind.Bits())
	case reflect.Uint, reflect.Uint64, reflect.Uint32, reflect.Uint8:
		_, err = strconv.ParseUint(values[0], 10, kind.Bits())
	default:
		return json.Marshal(values[0])
	}
	if err != nil {
		return nil, fmt.Errorf("must be a whole number")
	}
	return json.RawMessage(strings.TrimPrefix(values[0], "+")), nil
}

// merge returns the JSON object in body with the keys and values in added. It returns an
// error if body has one of these keys with another value. If added is empty it returns
// body unchanged.
func merge(body []byte, added map[string]json.RawMessage) ([]byte, error) {
	if len(added) == 0 {
		return body, nil
	}
	merged := map[string]json.RawMessage{}
	if len(bytes.TrimSpace(body)) > 0 {
		err := json.Unmarshal(body, &merged)
		if mismatch, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return nil, badRequest("request must be a JSON object, not %s", mismatch.Value)
		}
		if err != nil {
			return nil, badRequest("request is not valid JSON: %v", err)
		}
		if merged == nil { // the body is null
			merged = map[string]json.RawMessage{}
		}
	}
	for name, value := range added {
		if inBody, ok := merged[name]; ok && !bytes.Equal(bytes.TrimSpace(inBody), value) {
			return nil, badRequest("%s is %s in the body and %s in the URL", name, inBody, value)
		}
		merged[name] = value
	}
	return job.EncodeJSON(merged)
}

// badRequest returns an error with the status 400.
func badRequest(format string, args ...any) error {
	return &api.Error{Code: api.CodeInvalid, Text: fmt.Sprintf(format, args...)}
}

// findField returns the field with a JSON key, or nil.
func findField(fields []field, key string) *field {
	for i := range fields {
		if fields[i].key == key {
			return &fields[i]
		}
	}
	return nil
}
