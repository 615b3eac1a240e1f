package web

import (
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
)

// item is an item of a list that the request holds as raw JSON.
type item struct {
	Function string `json:"function"`
	Secret   string `json:"secret"`
}

// The document describes what the types do not: which paths need a token, the
// items of a list of raw JSON, and that metrics are text.
func TestDescribe_Auth(t *testing.T) {
	e, err := newEndpoint(&Route{Endpoint: api.Endpoint{
		Name: "make", Pattern: "POST /v1/things", Accepts: "*", Required: "things",
		Request: struct {
			Things []json.RawMessage `json:"things"`
		}{}, Shapes: map[string]api.Shape{"things": {Of: item{}, List: true, Without: "secret"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, guarded := range []bool{true, false} {
		text, err := describe("1.2.3", guarded, []*endpoint{e})
		if err != nil {
			t.Fatal(err)
		}
		var document map[string]any
		if err := json.Unmarshal(text, &document); err != nil {
			t.Fatal(err)
		}
		at := func(path string) any {
			var v any = document
			for _, key := range strings.Split(path, " ") {
				held, _ := v.(map[string]any)
				v = held[key]
			}
			return v
		}
		if got := at("paths /v1/things post requestBody content application/json schema $ref"); got != schemaPath+"MakeRequest" {
			t.Errorf("the body's schema is %v", got)
		}
		body := "components schemas MakeRequest properties things items properties function type"
		if got := at(body); got != "string" {
			t.Errorf("type of an item's function is %v", got)
		}
		if got := at(strings.ReplaceAll(body, "function type", "secret")); got != nil {
			t.Errorf("type of an item's secret is %v, want none", got)
		}
		if got := at("paths /metrics get responses 200 content text/plain schema type"); got != "string" {
			t.Errorf("type of the metrics is %v", got)
		}
		if got := at("components securitySchemes token scheme"); got != "bearer" {
			t.Errorf("security scheme %v", got)
		}
		want := []any{map[string]any{"token": []any{}}}
		if !guarded { // a token is optional
			want = append([]any{map[string]any{}}, want...)
		}
		if got := document["security"]; !reflect.DeepEqual(got, want) {
			t.Errorf("guarded %t: security %v, want %v", guarded, got, want)
		}
		for _, open := range []string{"/healthz", "/readyz"} {
			if got := at("paths " + open + " get security"); !reflect.DeepEqual(got, []any{}) {
				t.Errorf("%s: security %v, want none", open, got)
			}
		}
	}
}

// Two schemas must not have one name.
func TestDescribe_Names(t *testing.T) {
	type Error struct{ A int }
	e, err := newEndpoint(&Route{Endpoint: api.Endpoint{Name: "show", Pattern: "GET /v1/things", Reply: Error{}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := describe("1.2.3", false, []*endpoint{e}); err == nil || err.Error() != "two schemas are named Error" {
		t.Error(err)
	}
}

// Every operation of the API has a schema of its answer and, if it takes anything but what
// the path has, of its body or its parameters. The schemas of bodies are named, and not
// empty, so that generated clients have types for them; only Value is any JSON. All references
// have a schema.
func TestDocument_Complete(t *testing.T) {
	routes := make([]Route, len(api.Endpoints))
	for i := range api.Endpoints {
		routes[i].Endpoint = api.Endpoints[i]
	}
	text, err := Document("v1", true, routes)
	if err != nil {
		t.Fatal(err)
	}
	type content map[string]struct {
		Schema map[string]any
	}
	type operation struct {
		Parameters  []struct{ Name, In, Description string }
		RequestBody *struct{ Content content }
		Responses   map[string]struct{ Content content }
	}
	var document struct {
		Paths      map[string]map[string]operation
		Components struct{ Schemas map[string]map[string]any }
	}
	if err := json.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	for _, ref := range regexp.MustCompile(`"#/components/schemas/(\w+)"`).FindAllStringSubmatch(string(text), -1) {
		if document.Components.Schemas[ref[1]] == nil {
			t.Errorf("no schema is named %s", ref[1])
		}
	}
	checkNamed := func(where string, bodies content) {
		t.Helper()
		for media, body := range bodies {
			ref, _ := body.Schema["$ref"].(string)
			name, ok := strings.CutPrefix(ref, schemaPath)
			named := document.Components.Schemas[name]
			switch {
			case media != "application/json": // text or bytes
			case !ok:
				t.Errorf("%s: the schema of the body has no name: %v", where, body.Schema)
			case named["type"] == nil && named["oneOf"] == nil && name != "Value":
				t.Errorf("%s: the schema %s is empty: %v", where, name, named)
			}
		}
	}
	for path, operations := range document.Paths {
		for method, o := range operations {
			for status, response := range o.Responses {
				checkNamed(method+" "+path+" "+status, response.Content)
			}
			if o.RequestBody != nil {
				checkNamed(method+" "+path, o.RequestBody.Content)
			}
		}
	}
	for i := range routes {
		e, err := newEndpoint(&routes[i])
		if err != nil {
			t.Fatal(err)
		}
		o := document.Paths[e.path][strings.ToLower(e.method)]
		for status, response := range o.Responses {
			if s := response.Content["application/json"].Schema; len(s) == 0 {
				t.Errorf("%s: no schema of the answer %s", e.Pattern, status)
			}
		}
		if body := o.RequestBody; e.hasBody() && len(e.keys) > 0 && (body == nil || len(body.Content["application/json"].Schema) == 0) {
			t.Errorf("%s: no schema of the body", e.Pattern)
		}
		described := map[string]bool{}
		for _, p := range o.Parameters {
			described[p.In+" "+p.Name] = true
			if p.In == "header" && p.Description == "" {
				t.Errorf("%s: header %s has no description", e.Pattern, p.Name)
			}
		}
		for _, name := range e.wildcards {
			if !described["path "+name] {
				t.Errorf("%s: {%s} is not described", e.Pattern, name)
			}
		}
		if strings.HasPrefix(e.path, "/v1/jobs/{id}") && !described["query queue"] {
			t.Errorf("%s: the queue of a job that is named by its key is no parameter", e.Pattern)
		}
		if makesJobs := e.Name == "enqueue" || e.Name == "call" || e.Name == "job-bulk"; described["header Idempotency-Key"] != makesJobs {
			t.Errorf("%s: a key in the header: %t", e.Pattern, !makesJobs)
		}
		if changes := e.method != http.MethodGet && e.Headers == ""; described["header Yard-Reason"] != changes {
			t.Errorf("%s: a reason in the header: %t", e.Pattern, !changes)
		}
	}
	for _, path := range []string{"/v1/exec", "/v1/exec/{command}"} {
		o := document.Paths[path]["post"]
		for name, body := range map[string]content{"ContractCommand": o.RequestBody.Content, "ContractEvent": o.Responses["200"].Content} {
			if got := body["application/json"].Schema["$ref"]; got != schemaPath+name {
				t.Errorf("%s has the body %v, want %s", path, got, name)
			}
			if forms, _ := document.Components.Schemas[name]["oneOf"].([]any); len(forms) != len(api.ContractForms) {
				t.Errorf("%s has %d forms", name, len(forms))
			}
		}
	}
}

// HEAD gives the status and the content type of GET, and no body.
func TestHeadRequests(t *testing.T) {
	_, addr := startServer(t, nil, Route{Endpoint: api.Endpoint{Name: "show", Pattern: "GET /v1/things"}, Handle: echo})
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/v1/things", "/v1/nothing", "/v1/openapi.json"} {
		ask := func(method string) (status int, kind string, body int64) {
			r, err := http.NewRequest(method, "http://"+addr+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			w, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Body.Close()
			n, err := io.Copy(io.Discard, w.Body)
			if err != nil {
				t.Fatal(err)
			}
			return w.StatusCode, w.Header.Get("Content-Type"), n
		}
		status, kind, _ := ask("GET")
		hStatus, hKind, n := ask("HEAD")
		if hStatus != status || hKind != kind || n > 0 || kind == "" {
			t.Errorf("%s: GET is %d as %s, HEAD %d as %s with %d bytes", path, status, kind, hStatus, hKind, n)
		}
	}
}
