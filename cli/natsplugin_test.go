package cli

import (
	"encoding/json"
	"testing"
)

// The plugin description has every visible verb with a help text, and no flag
// that the nats CLI has itself.
func TestIntrospection(t *testing.T) {
	got := runLine(t, "", introspect)
	if got.code != 0 || got.err != "" {
		t.Fatalf("got %+v", got)
	}
	var root pluginVerb
	if err := json.Unmarshal([]byte(got.out), &root); err != nil {
		t.Fatal(err)
	}
	if root.Name != "yardmaster" || root.Version != "1.2.3" || len(root.Flags) != 10 {
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
		for _, sub := range v.Commands {
			walk(path+" "+sub.Name, sub)
		}
	}
	walk("", root)
	for path, args := range map[string]int{" status": 0, " enqueue": 1, " job show": 1, " job": 0, " dlq list": 1} {
		if v, ok := verbs[path]; !ok || len(v.Args) != args {
			t.Errorf("%q: present %t, with %d arguments, want %d", path, ok, len(v.Args), args)
		}
	}
	for _, hidden := range []string{" warden", " help"} {
		if _, ok := verbs[hidden]; ok {
			t.Errorf("hidden verb %q is listed", hidden)
		}
	}
	for _, f := range verbs[" status"].Flags {
		if f.Name == "json" && (!f.Boolean || f.Short != 'j') {
			t.Errorf("--json is %+v", f)
		}
	}
}
