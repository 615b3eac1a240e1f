package config

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// keyName matches what looks like a key of the configuration file in a text.
var keyName = regexp.MustCompile(`\b(?:nats|raft|http|limits|scheduler|server|node|disk|wire)\.[a-z_]+\b`)

// fileNames are names in texts that look like keys.
var fileNames = []string{"nats.go", "raft.db", "node.json", "node.lock", "raft.log"}

// TestNamedKeys checks that the configuration keys that texts to users name exist: in the
// string literals of product code that are sentences, and in the alerts.
func TestNamedKeys(t *testing.T) {
	keys := configKeys(reflect.TypeFor[Config](), "")
	named := 0
	check := func(path, text string) {
		for _, key := range keyName.FindAllString(text, -1) {
			named++
			exists := slices.ContainsFunc(keys, func(k string) bool { return k == key || strings.HasPrefix(k, key+".") })
			if !exists && !slices.Contains(fileNames, key) {
				t.Errorf("%s: there is no key %s: %s", path, key, text)
			}
		}
	}
	alerts := "../../deploy/observability/alerts.yaml"
	text, err := os.ReadFile(alerts)
	if err != nil {
		t.Fatal(err)
	}
	check(alerts, string(text))
	err = filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		isProduct := strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") && !strings.HasPrefix(path, "../../test/")
		if err != nil || !isProduct {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if text, err := strconv.Unquote(lit.Value); err == nil && strings.Contains(text, " ") {
					check(path, text)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if named < 20 {
		t.Errorf("only %d keys are named: the test does not find them", named)
	}
}
