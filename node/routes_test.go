package node

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/cluster"
)

// Every endpoint of the NATS API has an HTTP route, and no others exist.
func TestRoutes(t *testing.T) {
	n := &Node{version: "v1.2.3"}
	n.dlq = &dlq{}
	known := map[string]bool{}
	for _, e := range n.apiService().Endpoints {
		known[e.Name] = true
		if _, ok := routes[e.Name]; !ok {
			t.Errorf("endpoint %s has no entry in routes", e.Name)
		}
	}
	for name := range routes {
		if !known[name] {
			t.Errorf("routes has an entry for %s, which is not an endpoint", name)
		}
	}
}

// TestAPIDocument compares the table of operations in docs/reference/api.md with
// the endpoints: each has a row with its subject and its HTTP route, and each row
// is an endpoint.
func TestAPIDocument(t *testing.T) {
	page, err := os.ReadFile("../docs/reference/api.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{} // route by subject
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z.<>]+)` \\| `([A-Z]+ /v1/[^`]+)` \\| [^|]+ \\|$").FindAllStringSubmatch(string(page), -1) {
		if documented[m[1]] != "" {
			t.Errorf("%s is documented twice", m[1])
		}
		documented[m[1]] = m[2]
	}
	n := &Node{version: "v1.2.3"}
	n.dlq = &dlq{}
	want := map[string]string{"openapi": "GET /v1/openapi.json"}
	for _, e := range n.apiService().Endpoints {
		subject := strings.TrimPrefix(e.Subject, cluster.SubjectAPI+".")
		if token := routes[e.Name].Token; token != "" {
			subject = strings.TrimSuffix(subject, "*") + "<" + token + ">"
		}
		want[subject] = routes[e.Name].Pattern
	}
	for subject, route := range want {
		if documented[subject] != route {
			t.Errorf("%s is %s, documented as %q", subject, route, documented[subject])
		}
	}
	for subject := range documented {
		if want[subject] == "" {
			t.Errorf("%s is documented and is no operation", subject)
		}
	}
}
