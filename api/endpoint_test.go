package api

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/ledger"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/contract.txt")

// The endpoints and their types are those in testdata/contract.txt: with -rewrite the
// file is written, and its diff is the change of the contract.
func TestContract(t *testing.T) {
	const name = "testdata/contract.txt"
	var c contract
	for _, table := range [][]Endpoint{Endpoints, NodeEndpoints, BackupEndpoints} {
		for i := range table {
			c.addEndpoint(&table[i])
		}
	}
	c.addEndpoint(&BackupRoute)
	c.typeName(reflect.TypeFor[ErrorReply]()) // of any endpoint
	c.addTypes()
	got := strings.TrimLeft(c.String(), "\n")
	if *rewrite {
		if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the contract differs from %s; if that is intended, run the test with -rewrite and read the diff", name)
	}
}

// contract is the text of the endpoints, followed by that of the types of their JSON.
type contract struct {
	strings.Builder
	types []reflect.Type
}

func (c *contract) addEndpoint(e *Endpoint) {
	fmt.Fprintf(c, "\n%s %s %s\n", e.Name, e.Subject, e.Pattern)
	for _, set := range []struct {
		name  string
		value any
	}{
		{"status", e.Status}, {"accepts", e.Accepts}, {"required", e.Required}, {"token", e.Token}, {"query", e.Query}, {"headers", e.Headers}, {"media", e.Media},
		{"long-running", e.LongRunning}, {"large", e.Large}, {"indexed", e.Indexed}, {"no reply", e.AllowNoReply},
	} {
		if !reflect.ValueOf(set.value).IsZero() {
			fmt.Fprintf(c, "\t%s: %v\n", set.name, set.value)
		}
	}
	for _, part := range []struct {
		name  string
		value any
	}{{"request", e.Request}, {"reply", e.Reply}, {"reply after a wait", e.WaitReply}} {
		if part.value != nil {
			fmt.Fprintf(c, "\t%s: %s\n", part.name, c.typeName(reflect.TypeOf(part.value)))
		}
	}
	for _, f := range e.Forms {
		fmt.Fprintf(c, "\tform: %s, answered by %s: %s\n", f.Request, f.Reply, c.typeName(reflect.TypeOf(f.Fields)))
	}
	for key, s := range e.Shapes { // one at most
		fmt.Fprintf(c, "\t%s: list %t of %s without %s\n", key, s.List, c.typeName(reflect.TypeOf(s.Of)), s.Without)
	}
}

// typeName returns the name of t, and remembers it if it is a struct.
func (c *contract) typeName(t reflect.Type) string {
	kind := t
	for kind.Kind() == reflect.Pointer || kind.Kind() == reflect.Slice {
		kind = kind.Elem()
	}
	if kind.Kind() == reflect.Struct && kind != reflect.TypeFor[time.Time]() && !slices.Contains(c.types, kind) {
		c.types = append(c.types, kind)
	}
	return t.String()
}

// addTypes adds the fields of all structs, in the order of their JSON.
func (c *contract) addTypes() {
	for i := 0; i < len(c.types); i++ { // fields add types
		fmt.Fprintf(c, "\n%s\n", c.types[i])
		c.addFields(c.types[i])
	}
}

func (c *contract) addFields(t reflect.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		if tag := f.Tag.Get("json"); tag != "" {
			fmt.Fprintf(c, "\t%s %s\n", tag, c.typeName(f.Type))
		} else if f.Anonymous {
			c.addFields(f.Type)
		}
	}
}

// Every subject begins with one of the constants, and the names of a table are
// different.
func TestEndpoints(t *testing.T) {
	for _, table := range [][]Endpoint{Endpoints, NodeEndpoints, BackupEndpoints} {
		known := map[string]bool{}
		for _, e := range table {
			if known[e.Name] {
				t.Errorf("two endpoints have the name %s", e.Name)
			}
			known[e.Name] = true
			if want := SubjectAPI + "." + strings.Replace(e.Name, "-", ".", 1); strings.HasPrefix(e.Subject, SubjectAPI) && e.Subject != want {
				t.Errorf("the subject of %s is %s, want %s", e.Name, e.Subject, want)
			}
		}
	}
	for got, want := range map[string]string{
		Subject("status"): SubjectStatus, Subject("snapshot"): SubjectSnapshot, Subject("exec"): SubjectExec,
		Subject("enqueue", "mail"): SubjectEnqueue + ".mail", Subject("call", "mail"): SubjectCall + ".mail",
		Subject("exec-command", "release"): SubjectExec + ".release", Subject("restore-push"): SubjectAPI + ".restore.push",
		NodeSubject("n1", "drain"): SubjectNode + ".n1.drain",
	} {
		if got != want {
			t.Errorf("subject is %s, want %s", got, want)
		}
	}
	for _, e := range NodeEndpoints {
		if want := NodeSubject("*", e.Name); e.Subject != want {
			t.Errorf("the subject of %s is %s, want %s", e.Name, e.Subject, want)
		}
	}
}

// Every endpoint describes its reply, and those with an HTTP route of a method with a body
// the request, unless the path has all of it.
func TestEndpoints_Described(t *testing.T) {
	for _, e := range Endpoints {
		if e.Reply == nil {
			t.Errorf("%s has no reply", e.Name)
		}
		method, path, _ := strings.Cut(e.Pattern, " ")
		if withBody := method == "POST" || method == "PUT" || method == "PATCH"; withBody && e.Request == nil && strings.Contains(path, "{") {
			t.Errorf("%s has no request", e.Name)
		}
	}
}

// The commands of the runtime contract have the fields that their forms list.
func TestContractForms(t *testing.T) {
	for _, f := range ContractForms {
		command := map[string]any{"command": f.Request}
		fields := reflect.TypeOf(f.Fields)
		for i := range fields.NumField() {
			name, options, _ := strings.Cut(fields.Field(i).Tag.Get("json"), ",")
			if options == "" && fields.Field(i).Type.Kind() != reflect.Pointer {
				command[name] = "x"
			}
		}
		parses := func() bool {
			text, err := json.Marshal(command)
			if err == nil {
				_, err = ledger.ParseCommand(text)
			}
			return err == nil
		}
		if !parses() {
			t.Errorf("%v is refused", command)
		}
		for name, value := range command {
			delete(command, name)
			if parses() {
				t.Errorf("%s is accepted without %s", f.Request, name)
			}
			command[name] = value
		}
	}
	if len(ContractForms) != len(ledger.CommandNames) {
		t.Errorf("%d forms, want %d", len(ContractForms), len(ledger.CommandNames))
	}
}

// The list of operations in docs/reference/api.md has an entry with the subject and the
// HTTP route of each endpoint, and no other entries.
func TestDocument(t *testing.T) {
	page, err := os.ReadFile("../docs/reference/api.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{} // route by subject
	for _, m := range regexp.MustCompile("(?m)^- `([a-z.<>-]+)`: `([A-Z]+ /v1/[^`]+)`$").FindAllStringSubmatch(string(page), -1) {
		if documented[m[1]] != "" {
			t.Errorf("%s is documented twice", m[1])
		}
		documented[m[1]] = m[2]
	}
	want := map[string]string{"openapi": "GET /v1/openapi.json"}
	for _, e := range Endpoints {
		subject := strings.TrimPrefix(e.Subject, SubjectAPI+".")
		if e.Token != "" {
			subject = strings.TrimSuffix(subject, "*") + "<" + e.Token + ">"
		}
		want[subject] = e.Pattern
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

// The status of an error is its code if that is the status of an error.
func TestError_Status(t *testing.T) {
	for code, want := range map[string]int{CodeNotFound: 404, CodeUnknown: 504, "202": 500, "600": 500, "no-tenure": 500, "": 500} {
		if got := (&Error{Code: code}).Status(); got != want {
			t.Errorf("status of %q is %d, want %d", code, got, want)
		}
	}
}

// A replay with the job's own params can be requested with the type: a server takes
// null for other params, which are invalid.
func TestReplayRequest_Marshal(t *testing.T) {
	text, err := json.Marshal(ReplayRequest{ID: "j", Queue: "q"})
	if want := `{"id":"j","queue":"q","to":"","new_id":""}`; string(text) != want || err != nil {
		t.Errorf("request is %s, %v, want %s", text, err, want)
	}
}
