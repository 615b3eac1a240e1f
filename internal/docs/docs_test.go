// Package docs checks the Markdown documents against the code. It has only tests.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/job"
)

var root = filepath.Join("..", "..")

// documents returns the text of every Markdown file, by its path below the root.
func documents(t *testing.T) map[string]string {
	t.Helper()
	texts := make(map[string]string)
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if base := d.Name(); d.IsDir() && name != root && (base[0] == '.' || base == "node_modules" || base == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".md") {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		below, err := filepath.Rel(root, name)
		texts[filepath.ToSlash(below)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if texts["docs/glossary.md"] == "" {
		t.Fatal("docs/glossary.md not found: is this the root of the module?")
	}
	return texts
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// TestLinks checks that links within the documents have a target.
func TestLinks(t *testing.T) {
	for name, text := range documents(t) {
		for _, found := range link.FindAllStringSubmatch(text, -1) {
			target, anchor, _ := strings.Cut(found[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			file := filepath.Join(root, filepath.Dir(name), target)
			if target == "" {
				file = filepath.Join(root, name)
			}
			linked, err := os.ReadFile(file)
			if info, statErr := os.Stat(file); err != nil && (statErr != nil || !info.IsDir()) {
				t.Errorf("%s: the target of %s does not exist", name, found[1])
			} else if anchor != "" && !slices.Contains(anchors(string(linked)), anchor) {
				t.Errorf("%s: the heading of %s does not exist", name, found[1])
			}
		}
	}
}

var (
	heading        = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	nonAnchorChars = regexp.MustCompile("[^a-z0-9 _-]")
)

// anchors returns the anchors of a document's headings.
func anchors(text string) []string {
	var names []string
	for _, found := range heading.FindAllStringSubmatch(text, -1) {
		name := nonAnchorChars.ReplaceAllString(strings.ToLower(found[1]), "")
		names = append(names, strings.ReplaceAll(name, " ", "-"))
	}
	return names
}

var makeCommand = regexp.MustCompile("(?m)(?:^|`)make ([a-z][a-z-]*)")

// TestMakeTargets checks that the make targets in the documents exist.
func TestMakeTargets(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range documents(t) {
		for _, found := range makeCommand.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(string(makefile), "\n"+found[1]+":") {
				t.Errorf("%s: the target of `make %s` does not exist", name, found[1])
			}
		}
	}
}

// TestNoMachinePaths checks that the documents have no paths of one machine.
func TestNoMachinePaths(t *testing.T) {
	machine := regexp.MustCompile(`/(work|root|home)/|/tmp/[a-z]`)
	for name, text := range documents(t) {
		if found := machine.FindString(text); found != "" {
			t.Errorf("%s has %q, a path of one machine", name, found)
		}
	}
}

var vector = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| `([^`]+)` \\| `([0-9a-f-]{36})` \\|$")

// TestVectors checks the job ids in the glossary.
func TestVectors(t *testing.T) {
	rows := vector.FindAllStringSubmatch(documents(t)["docs/glossary.md"], -1)
	if len(rows) < 3 {
		t.Fatalf("%d job ids in docs/glossary.md, want at least 3", len(rows))
	}
	for _, row := range rows {
		if id, err := job.KeyID(row[1], row[2]); err != nil || id.String() != row[3] {
			t.Errorf("key %q of queue %q is %s, %v; the glossary has %s", row[2], row[1], id, err, row[3])
		}
	}
}
