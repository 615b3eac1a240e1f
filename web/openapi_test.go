package web

import (
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
)

// item is what a list holds that the question takes as any JSON.
type item struct {
	Function string `json:"function"`
	Secret   string `json:"secret"`
}

// What the types do not tell the document tells all the same: who is asked for
// the token and who is not, what a list of any JSON holds, and that the metrics
// are text.
func TestDescribe_Untold(t *testing.T) {
	e, err := newEntry(&Route{
		Name: "make", Pattern: "POST /v1/things", Takes: "*", Required: "things",
		Question: struct {
			Things []json.RawMessage `json:"things"`
		}{}, Shapes: map[string]Shape{"things": {Of: item{}, List: true, Without: "secret"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, guarded := range []bool{true, false} {
		text, err := describe("1.2.3", guarded, []*entry{e})
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
		body := "paths /v1/things post requestBody content application/json schema properties things items properties function type"
		if got := at(body); got != "string" {
			t.Errorf("an item's function is %v", got)
		}
		if got := at(strings.ReplaceAll(body, "function type", "secret")); got != nil {
			t.Errorf("an item's secret is %v", got)
		}
		if got := at("paths /metrics get responses 200 content text/plain schema type"); got != "string" {
			t.Errorf("the metrics are %v", got)
		}
		if got := at("components securitySchemes token scheme"); (got == "bearer") != guarded {
			t.Errorf("guarded %t: the scheme is %v", guarded, got)
		}
		if got := document["security"]; (got != nil) != guarded {
			t.Errorf("guarded %t: it asks for %v", guarded, got)
		}
		for _, open := range []string{"/healthz", "/readyz"} {
			if got := at("paths " + open + " get security"); !reflect.DeepEqual(got, []any{}) {
				t.Errorf("%s asks for %v", open, got)
			}
		}
	}
}

// Whoever asks by HEAD hears the same status and type, and no body.
func TestHead(t *testing.T) {
	_, addr := open(t, nil, Route{Name: "look", Pattern: "GET /v1/things", Do: echo})
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
