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
)

// entry is a route, ready to be asked.
type entry struct {
	*Route
	method    string
	path      string
	wildcards []string // of the path, in order
	keys      []key    // taken from the body, or from the query
}

// key is a field of a question.
type key struct {
	name string
	kind reflect.Type
}

func newEntry(r *Route) (*entry, error) {
	e := &entry{Route: r}
	if e.Status == 0 {
		e.Status = http.StatusOK
	}
	e.method, e.path, _ = strings.Cut(r.Pattern, " ")
	for part := range strings.SplitSeq(e.path, "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			e.wildcards = append(e.wildcards, strings.TrimSuffix(name, "}"))
		}
	}
	fields := fieldsOf(reflect.TypeOf(r.Question))
	for _, name := range e.wildcards {
		if name != r.Token && find(fields, name) == nil {
			return nil, fmt.Errorf("{%s} is no field of %T", name, r.Question)
		}
	}
	for _, name := range append(named(r.Takes), named(r.Required)...) {
		if name != "*" && find(fields, strings.TrimPrefix(name, "-")) == nil {
			return nil, fmt.Errorf("%s is no field of %T", name, r.Question)
		}
	}
	for _, f := range fields {
		takes := named(r.Takes)
		if !slices.Contains(e.wildcards, f.name) && !slices.Contains(takes, "-"+f.name) &&
			(slices.Contains(takes, "*") || slices.Contains(takes, f.name)) {
			e.keys = append(e.keys, key{f.name, f.kind})
		}
	}
	return e, nil
}

// bodied tells that the method brings a body.
func (e *entry) bodied() bool { return e.method == http.MethodPost || e.method == http.MethodPut }

// most is the largest body, in bytes.
func (e *entry) most() int64 {
	if e.Large {
		return maxLargeBody
	}
	return maxBody
}

// question makes one of a request: the body, with what the path and the query
// say put in.
func (e *entry) question(r *http.Request, body []byte) (*Question, error) {
	q := &Question{Header: r.Header, Query: url.Values{}}
	set := map[string]json.RawMessage{}
	for _, name := range e.wildcards {
		value := r.PathValue(name)
		if name == e.Token {
			q.Token = value
			continue
		}
		text, err := literal(find(fieldsOf(reflect.TypeOf(e.Question)), name).kind, []string{value})
		if err != nil {
			return nil, malformed("%s in the path is %q: %v", name, value, err)
		}
		set[name] = text
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, malformed("the query cannot be read: %v", err)
	}
	for name, values := range query {
		if slices.Contains(named(e.Query), name) {
			q.Query[name] = values
			continue
		}
		k, text, err := e.parameter(name, values)
		if err != nil {
			return nil, err
		}
		set[k] = text
	}
	if len(body) > 0 && !e.bodied() {
		return nil, malformed("%s takes no body; ask by the query", e.Pattern)
	}
	q.Data, err = merge(body, set)
	return q, err
}

// parameter reads one of the query's. A key that ends in _ms may also be given
// without, as a duration: timeout=30s.
func (e *entry) parameter(name string, values []string) (string, json.RawMessage, error) {
	if !e.bodied() {
		if k := find(e.keys, name); k != nil {
			text, err := literal(k.kind, values)
			if err != nil {
				return "", nil, malformed("parameter %s is %q: %v", name, strings.Join(values, ", "), err)
			}
			return k.name, text, nil
		}
		if k := find(e.keys, name+"_ms"); k != nil {
			d, err := time.ParseDuration(values[0])
			if err != nil || d < time.Millisecond || len(values) > 1 {
				return "", nil, malformed("parameter %s is %q; must be one duration, such as 30s", name, strings.Join(values, ", "))
			}
			return k.name, json.RawMessage(strconv.FormatInt(d.Milliseconds(), 10)), nil
		}
	}
	allowed := strings.Join(e.parameters(), ", ")
	if allowed == "" {
		allowed = "none"
	}
	return "", nil, malformed("parameter %s is not known; there are: %s", name, allowed)
}

// parameters names those of the query.
func (e *entry) parameters() []string {
	names := named(e.Query)
	if !e.bodied() {
		for _, k := range e.keys {
			names = append(names, strings.TrimSuffix(k.name, "_ms"))
		}
	}
	return names
}

// literal is the JSON of a text that stands for a value of kind.
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
		_, err = strconv.ParseBool(values[0])
		if err != nil {
			return nil, fmt.Errorf("must be true or false")
		}
		b, _ := strconv.ParseBool(values[0])
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

// merge puts values into a JSON object. A body that needs none stays as it is.
func merge(body []byte, set map[string]json.RawMessage) ([]byte, error) {
	if len(set) == 0 {
		return body, nil
	}
	whole := map[string]json.RawMessage{}
	if len(bytes.TrimSpace(body)) > 0 {
		if err := json.Unmarshal(body, &whole); err != nil {
			return nil, malformed("request is not a JSON object: %v", err)
		}
	}
	for name, value := range set {
		if given, ok := whole[name]; ok && !bytes.Equal(bytes.TrimSpace(given), value) {
			return nil, malformed("%s is %s in the body and %s in the path", name, given, value)
		}
		if whole == nil {
			whole = map[string]json.RawMessage{}
		}
		whole[name] = value
	}
	return json.Marshal(whole)
}

func malformed(format string, args ...any) error {
	return &Refusal{Status: http.StatusBadRequest, Text: fmt.Sprintf(format, args...)}
}

// fieldsOf lists the fields of a struct by their JSON keys, those of embedded
// structs among them.
func fieldsOf(kind reflect.Type) (fields []key) {
	if kind == nil || kind.Kind() != reflect.Struct {
		return nil
	}
	for f := range fieldsIn(kind) {
		fields = append(fields, key{f.key, f.kind})
	}
	return fields
}

func find(keys []key, name string) *key {
	for i := range keys {
		if keys[i].name == name {
			return &keys[i]
		}
	}
	return nil
}
