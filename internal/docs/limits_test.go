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

// TestLimits holds the table of limits against the code: each constant has its
// value in its file, and each key its default in the table of keys, which another
// test holds against the code.
func TestLimits(t *testing.T) {
	texts := documents(t)
	checked := 0
	for _, row := range boundRow.FindAllString(texts["docs/limits.md"], -1) {
		file := ""
		for _, m := range boundConstant.FindAllStringSubmatch(row, -1) {
			if m[3] != "" {
				file = m[3] // and the next one's, if that names none
			}
			source, err := os.ReadFile(filepath.Join(root, file))
			if err != nil {
				t.Error(err)
				continue
			}
			checked++
			if !regexp.MustCompile(`(?m)\b` + m[1] + `\s+= ` + regexp.QuoteMeta(m[2]) + `(\s|$)`).Match(source) {
				t.Errorf("%s has no %s = %s", file, m[1], m[2])
			}
		}
		for _, m := range boundKey.FindAllStringSubmatch(row, -1) {
			checked++
			table := "## `[" + m[1] + "]`"
			_, rest, found := strings.Cut(texts["docs/configuration.md"], table)
			rest, _, _ = strings.Cut(rest, "\n## ")
			if !found || !regexp.MustCompile("\\| `"+m[2]+"` \\| [^|]+ \\| `"+m[3]+"` ").MatchString(rest) {
				t.Errorf("%s.%s has not the default %s in docs/configuration.md", m[1], m[2], m[3])
			}
		}
	}
	if checked < 30 {
		t.Errorf("only %d bounds were found", checked)
	}
}
