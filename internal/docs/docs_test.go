// Package docs holds the documents to what they speak of. It consists of
// tests alone.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"yardmaster/job"
)

var root = filepath.Join("..", "..")

// documents reads every Markdown file, by its path below the root.
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
		t.Fatal("no glossary found: is this the house?")
	}
	return texts
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

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
				t.Errorf("%s: %s leads nowhere", name, found[1])
			} else if anchor != "" && !slices.Contains(anchors(string(linked)), anchor) {
				t.Errorf("%s: %s leads to no heading", name, found[1])
			}
		}
	}
}

var (
	heading  = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	unlinked = regexp.MustCompile("[^a-z0-9 _-]")
)

// anchors are the names that a document's headings are linked by.
func anchors(text string) []string {
	var names []string
	for _, found := range heading.FindAllStringSubmatch(text, -1) {
		name := unlinked.ReplaceAllString(strings.ToLower(found[1]), "")
		names = append(names, strings.ReplaceAll(name, " ", "-"))
	}
	return names
}

var makeCommand = regexp.MustCompile("(?m)(?:^|`)make ([a-z][a-z-]*)")

func TestMakeTargets(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range documents(t) {
		for _, found := range makeCommand.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(string(makefile), "\n"+found[1]+":") {
				t.Errorf("%s: there is no `make %s`", name, found[1])
			}
		}
	}
}

// TestNoMachine: what is written holds on every machine.
func TestNoMachine(t *testing.T) {
	machine := regexp.MustCompile(`/(work|root|home)/|/tmp/[a-z]`)
	for name, text := range documents(t) {
		if found := machine.FindString(text); found != "" {
			t.Errorf("%s names %q, a place on somebody's machine", name, found)
		}
	}
}

var vector = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| `([^`]+)` \\| `([0-9a-f-]{36})` \\|$")

// TestVectors computes the ids that the glossary publishes.
func TestVectors(t *testing.T) {
	rows := vector.FindAllStringSubmatch(documents(t)["docs/glossary.md"], -1)
	if len(rows) < 3 {
		t.Fatalf("%d vectors published, want three", len(rows))
	}
	for _, row := range rows {
		if id, err := job.KeyID(row[1], row[2]); err != nil || id.String() != row[3] {
			t.Errorf("key %q of queue %q is %s, %v; published as %s", row[2], row[1], id, err, row[3])
		}
	}
}
