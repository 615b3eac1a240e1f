package yardtest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The guide shows the tests that run here.
func TestGuide(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "guides", "testing.md"))
	if err != nil {
		t.Fatal(err)
	}
	for file, from := range map[string]string{"failover_test.go": "func TestFailover", "retry_test.go": "package"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		code := string(text)[strings.Index(string(text), from):]
		if !strings.Contains(string(page), "```go\n"+code+"```\n") {
			t.Errorf("the guide does not show %s from %q on, as it is", file, from)
		}
	}
}
