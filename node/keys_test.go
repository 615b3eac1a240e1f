package node

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// Every key of the configuration stands in docs/configuration.md, and nothing
// stands there that is no key.
func TestConfigurationDocument(t *testing.T) {
	text, err := os.ReadFile("../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	table, documented := "", map[string]bool{}
	heading := regexp.MustCompile("^## `\\[+([^]]*)\\]+`")
	row := regexp.MustCompile("^\\| `([a-z_]+)` \\|(.*)\\|$")
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		if m := heading.FindStringSubmatch(line); m != nil {
			table = m[1]
		}
		if m := row.FindStringSubmatch(line); m != nil {
			key := table + "." + m[1]
			if documented[key] {
				t.Errorf("%s is documented twice", key)
			}
			documented[key] = true
			for i, cell := range strings.Split(m[2], " | ") {
				if strings.TrimSpace(cell) == "" {
					t.Errorf("%s: cell %d of its row is empty", key, i+2)
				}
			}
		}
	}
	keys := configKeys(reflect.TypeFor[Config](), "")
	for _, key := range keys {
		if !documented[key] {
			t.Errorf("%s is not documented", key)
		}
		delete(documented, key)
	}
	for key := range documented {
		t.Errorf("%s is documented and is no key", key)
	}
}
