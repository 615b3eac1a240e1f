package web

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
)

// endpoint is a validated route.
type endpoint struct {
	*Route
	method    string
	path      string
	wildcards []string // of the path, in order
	keys      []field  // accepted in the body or the query
}

// newEndpoint returns the endpoint of a route, with its status if the route has none. It
// returns an error if a name in the route is not a field of its request.
func newEndpoint(r *Route) (*endpoint, error) {
	e := &endpoint{Route: r}
	if e.Status == 0 {
		e.Status = http.StatusOK
	}
	e.method, e.path, _ = strings.Cut(r.Pattern, " ")
	for part := range strings.SplitSeq(e.path, "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			e.wildcards = append(e.wildcards, strings.TrimSuffix(name, "}"))
		}
	}
	fields := requestFields(reflect.TypeOf(r.Request))
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
	for _, f := range fields {
		accepted := strings.Fields(r.Accepts)
		if !slices.Contains(e.wildcards, f.key) && !slices.Contains(accepted, "-"+f.key) &&
			(slices.Contains(accepted, "*") || slices.Contains(accepted, f.key)) {
			e.keys = append(e.keys, f)
		}
	}
	return e, nil
}

// hasBody reports whether the method has a body.
func (e *endpoint) hasBody() bool { return e.method == http.MethodPost || e.method == http.MethodPut }

// bodyLimit returns the size of the largest accepted body, in bytes.
func (e *endpoint) bodyLimit() int64 {
	if e.Large {
		return maxLargeBody
	}
	return maxBody
}

// request returns the handler's request: the body, with the values of the path
// and the query merged in. The value of the wildcard Token, and the parameters in Query,
// become fields of the request instead.
func (e *endpoint) request(r *http.Request, body []byte) (*Request, error) {
	q := &Request{Header: r.Header, Query: url.Values{}}
	set := map[string]json.RawMessage{}
	for _, name := range e.wildcards {
		value := r.PathValue(name)
		if name == e.Token {
			q.Token = value
			continue
		}
		text, err := literal(findField(requestFields(reflect.TypeOf(e.Request)), name).kind, []string{value})
		if err != nil {
			return nil, badRequest("%s in the path is %q: %v", name, value, err)
		}
		set[name] = text
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, badRequest("the query cannot be read: %v", err)
	}
	for name, values := range query {
		if slices.Contains(strings.Fields(e.Query), name) {
			q.Query[name] = values
			continue
		}
		k, text, err := e.parameter(name, values)
		if err != nil {
			return nil, err
		}
		set[k] = text
	}
	if len(body) > 0 && !e.hasBody() {
		return nil, badRequest("%s takes no body; use query parameters", e.Pattern)
	}
	q.Data, err = merge(body, set)
	return q, err
}

// parameter returns the key of a request and its JSON value for a query parameter. A key
// that ends in _ms may also be given without the suffix, as a duration: timeout=30s. If
// the method has a body, no key may be given as a parameter.
func (e *endpoint) parameter(name string, values []string) (string, json.RawMessage, error) {
	if !e.hasBody() {
		if k := findField(e.keys, name); k != nil {
			text, err := literal(k.kind, values)
			if err != nil {
				return "", nil, badRequest("parameter %s is %q: %v", name, strings.Join(values, ", "), err)
			}
			return k.key, text, nil
		}
		if k := findField(e.keys, name+"_ms"); k != nil {
			d, err := time.ParseDuration(values[0])
			if err != nil || d < time.Millisecond || len(values) > 1 {
				return "", nil, badRequest("parameter %s is %q; must be one duration, such as 30s", name, strings.Join(values, ", "))
			}
			return k.key, json.RawMessage(strconv.FormatInt(d.Milliseconds(), 10)), nil
		}
	}
	allowed := strings.Join(e.parameters(), ", ")
	if allowed == "" {
		allowed = "none"
	}
	return "", nil, badRequest("unknown parameter %s; known are: %s", name, allowed)
}

// parameters returns the names of the query parameters.
func (e *endpoint) parameters() []string {
	names := strings.Fields(e.Query)
	if !e.hasBody() {
		for _, k := range e.keys {
			names = append(names, strings.TrimSuffix(k.key, "_ms"))
		}
	}
	return names
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

// merge returns the JSON object in body with the values in set added. It returns an
// error if the body has a key of set with another value. If set is empty it returns
// body unchanged.
func merge(body []byte, set map[string]json.RawMessage) ([]byte, error) {
	if len(set) == 0 {
		return body, nil
	}
	whole := map[string]json.RawMessage{}
	if len(bytes.TrimSpace(body)) > 0 {
		if err := json.Unmarshal(body, &whole); err != nil {
			return nil, badRequest("request is not a JSON object: %v", err)
		}
		if whole == nil { // the body is null
			whole = map[string]json.RawMessage{}
		}
	}
	for name, value := range set {
		if given, ok := whole[name]; ok && !bytes.Equal(bytes.TrimSpace(given), value) {
			return nil, badRequest("%s is %s in the body and %s in the path", name, given, value)
		}
		whole[name] = value
	}
	return json.Marshal(whole)
}

// badRequest returns an error with the status 400.
func badRequest(format string, args ...any) error {
	return &api.Error{Code: api.CodeInvalid, Text: fmt.Sprintf(format, args...)}
}

// requestFields returns the fields of a struct, including the fields of embedded
// structs. It returns nil for other types.
func requestFields(kind reflect.Type) []field {
	if kind == nil || kind.Kind() != reflect.Struct {
		return nil
	}
	return slices.Collect(fieldsIn(kind))
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
