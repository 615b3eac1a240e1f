package cli

import (
	"encoding/json"
	"testing"
)

// What the nats command line reads of a plugin: every verb that is shown, by its
// name and help, and no flag that it has itself.
func TestIntrospect(t *testing.T) {
	got := runLine(t, "", introspect)
	if got.code != 0 || got.err != "" {
		t.Fatalf("got %+v", got)
	}
	var root pluginVerb
	if err := json.Unmarshal([]byte(got.out), &root); err != nil {
		t.Fatal(err)
	}
	if root.Name != "yardmaster" || root.Version != "1.2.3" || len(root.Flags) != 9 {
		t.Errorf("the root is %s %s with %d flags", root.Name, root.Version, len(root.Flags))
	}
	verbs := map[string]pluginVerb{}
	var walk func(path string, v pluginVerb)
	walk = func(path string, v pluginVerb) {
		verbs[path] = v
		if v.Help == "" {
			t.Errorf("%s has no help", path)
		}
		shorts := map[rune]string{}
		for _, f := range v.Flags {
			if f.Name == "help" || f.Help == "" || shorts[f.Short] != "" {
				t.Errorf("%s: flag %+v", path, f)
			}
			if f.Short != 0 {
				shorts[f.Short] = f.Name
			}
		}
		for _, below := range v.Commands {
			walk(path+" "+below.Name, below)
		}
	}
	walk("", root)
	for path, args := range map[string]int{" status": 0, " enqueue": 1, " job show": 1, " job": 0, " dlq list": 1} {
		if v, ok := verbs[path]; !ok || len(v.Args) != args {
			t.Errorf("%q: there %t, with %d arguments", path, ok, len(v.Args))
		}
	}
	for _, hidden := range []string{" warden", " help", " completion"} {
		if _, ok := verbs[hidden]; ok {
			t.Errorf("%q is told of", hidden)
		}
	}
	for _, f := range verbs[" status"].Flags {
		if f.Name == "json" && (!f.Boolean || f.Short != 'j') {
			t.Errorf("--json is %+v", f)
		}
	}
}
