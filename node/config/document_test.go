package config

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// TestConfigurationDocument compares docs/reference/config.md with the keys of
// Config: each key has one row, and each row is a key. A heading may name several
// tables with the same keys.
func TestConfigurationDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/config.md")
	if err != nil {
		t.Fatal(err)
	}
	var tables []string
	documented := map[string]bool{}
	heading := regexp.MustCompile("`\\[+([^]]*)\\]+`")
	row := regexp.MustCompile("^\\| `([a-z_]+)` \\|(.*)\\|$")
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "## ") {
			tables = nil
			for _, m := range heading.FindAllStringSubmatch(line, -1) {
				tables = append(tables, m[1])
			}
		}
		if m := row.FindStringSubmatch(line); m != nil {
			if len(tables) == 0 {
				t.Errorf("the row of %s belongs to no table", m[1])
			}
			for _, table := range tables {
				key := table + "." + m[1]
				if documented[key] {
					t.Errorf("%s is documented twice", key)
				}
				documented[key] = true
			}
			for i, cell := range strings.Split(m[2], " | ") {
				if strings.TrimSpace(cell) == "" {
					t.Errorf("%s: cell %d of its row is empty", m[1], i+2)
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
		t.Errorf("%s is documented but is not a key", key)
	}
}
