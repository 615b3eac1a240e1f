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
	boundKey      = regexp.MustCompile("`([a-z]+)\\.([a-z_]+)` ([0-9]+)")
)

// TestLimits compares the bounds in docs/reference/config.md with the code: each
// constant has its value in its file, and each key its default in the tables of
// the same page, which another test compares with the code.
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
		for _, m := range boundKey.FindAllStringSubmatch(row, -1) {
			checked++
			table := "## `[" + m[1] + "]`"
			_, rest, found := strings.Cut(page, table)
			rest, _, _ = strings.Cut(rest, "\n## ")
			if !found || !regexp.MustCompile("\\| `"+m[2]+"` \\| `"+m[3]+"` \\|").MatchString(rest) {
				t.Errorf("docs/reference/config.md does not list the default %[3]s of %[1]s.%[2]s", m[1], m[2], m[3])
			}
		}
	}
	if checked < 30 {
		t.Errorf("only %d bounds were found", checked)
	}
}
