package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	boundRow      = regexp.MustCompile("(?m)^\\| [^|]+ \\| [^|]+ \\| [^|]+ \\|$")
	boundConstant = regexp.MustCompile("`([A-Za-z]+) = ([^`]+)`(?: in ([a-z/]+\\.go))?")
)

// TestLimits compares the bounds in docs/reference/config.md with the code: each
// constant has its value in its file.
func TestLimits(t *testing.T) {
	page := documents(t)["docs/reference/config.md"]
	_, bounds, found := strings.Cut(page, "\n## Bounds\n")
	if !found {
		t.Fatal("docs/reference/config.md has no section Bounds")
	}
	checked := 0
	for _, row := range boundRow.FindAllString(bounds, -1) {
		file := ""
		for _, m := range boundConstant.FindAllStringSubmatch(row, -1) {
			if m[3] != "" {
				file = m[3] // also of the following constants without a file
			}
			source, err := os.ReadFile(filepath.Join(root, file))
			if err != nil {
				t.Error(err)
				continue
			}
			checked++
			if !regexp.MustCompile(`(?m)\b` + m[1] + `\s+= ` + regexp.QuoteMeta(m[2]) + `(\s|$)`).Match(source) {
				t.Errorf("%s does not contain %s = %s", file, m[1], m[2])
			}
		}
	}
	if checked < 30 {
		t.Errorf("only %d bounds were found", checked)
	}
}
