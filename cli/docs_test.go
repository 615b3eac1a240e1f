package cli

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/spf13/cobra"
)

func rrqPage(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../docs/reference/rrq.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// All verbs and flags in docs/reference/rrq.md exist.
func TestRRQDocument_Verbs(t *testing.T) {
	root := testRoot()
	found := regexp.MustCompile("(?:`|\n)yardmaster ([a-z][^`\n]*)").FindAllStringSubmatch(rrqPage(t), -1)
	if len(found) < 20 {
		t.Fatalf("%d verbs found", len(found))
	}
	for _, f := range found {
		words := strings.Fields(f[1])
		c, _, err := root.Find(words)
		if err != nil || !c.Runnable() {
			t.Errorf("yardmaster %s: verb does not exist: %v", f[1], err)
			continue
		}
		for _, word := range words {
			if name, ok := strings.CutPrefix(word, "--"); ok && c.Flag(name) == nil {
				t.Errorf("yardmaster %s: flag %s does not exist", f[1], word)
			}
		}
	}
}

// docs/guides/producers.md lists every field of a job and every flag of enqueue, and
// every flag in it is one of enqueue's.
func TestProducersDocument(t *testing.T) {
	text, err := os.ReadFile("../docs/guides/producers.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	for field := range reflect.TypeFor[job.Spec]().Fields() {
		key, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if key != "blob" && key != "indexed" && !strings.Contains(page, "`"+key+"`") {
			t.Errorf("docs/guides/producers.md does not list field %s", key)
		}
	}
	enqueue, _, err := testRoot().Find([]string{"enqueue"})
	if err != nil {
		t.Fatal(err)
	}
	for _, flag := range regexp.MustCompile("[` ]--([a-z-]+)`").FindAllStringSubmatch(page, -1) {
		if enqueue.Flag(flag[1]) == nil {
			t.Errorf("enqueue has no flag %s", flag[1])
		}
	}
	for _, name := range strings.Fields(regexp.MustCompile("--[a-z-]+").ReplaceAllStringFunc(enqueue.LocalFlags().FlagUsages(), func(s string) string { return " " + s + " " })) {
		if strings.HasPrefix(name, "--") && name != "--json" && !strings.Contains(page, name+"`") {
			t.Errorf("docs/guides/producers.md does not list flag %s", name)
		}
	}
}

// The table of producers in docs/reference/rrq.md lists every option of RRQ's producers,
// with existing JSON keys.
func TestRRQDocument_Producers(t *testing.T) {
	keys := map[string]bool{"id": true, "Nats-Msg-Id": true, "Yard-Delay": true}
	spec := reflect.TypeFor[job.Spec]()
	for i := range spec.NumField() {
		key, _, _ := strings.Cut(spec.Field(i).Tag.Get("json"), ",")
		keys[key] = true
	}
	_, table, found := strings.Cut(rrqPage(t), "\n| RRQ's producers |")
	if !found {
		t.Fatal("the page has no table of producers")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	word := regexp.MustCompile("`([A-Za-z_-]+)[^`]*`")
	checked := 0
	for row := range strings.Lines(table) {
		cells := strings.Split(row, "|")
		if len(cells) != 4 || strings.Contains(row, "yard.api") || strings.Contains(row, "`queue_name`") {
			continue
		}
		for _, key := range word.FindAllStringSubmatch(cells[2], -1) {
			checked++
			if !keys[key[1]] {
				t.Errorf("a job has no key %s: %s", key[1], row)
			}
		}
	}
	if checked < 15 {
		t.Errorf("found %d keys, want more", checked)
	}
	for _, option := range []string{"queue_name", "job_id", "unique_key", "unique_ttl_seconds", "max_retries", "job_timeout_seconds",
		"result_ttl_seconds", "trace_context", "defer_by_seconds", "defer_until", "enqueue_time", "rate_limit_key",
		"rate_limit_seconds", "debounce_key", "debounce_seconds"} {
		if !regexp.MustCompile("(?m)^\\| [^|]*`" + option + "`").MatchString(table) {
			t.Errorf("docs/reference/rrq.md does not list option %s", option)
		}
	}
}

// TestCLIDocument compares the list of verbs in docs/reference/cli.md with the
// commands of the program: each visible verb that has no subcommands has one
// entry, and each entry is a verb.
func TestCLIDocument(t *testing.T) {
	text, err := os.ReadFile("../docs/reference/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "\n## Verbs\n\n")
	if !found {
		t.Fatal("the page has no list of verbs")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^- `([a-z -]+)`: .+$").FindAllStringSubmatch(table, -1) {
		if documented[m[1]] {
			t.Errorf("%s is documented twice", m[1])
		}
		documented[m[1]] = true
	}
	root := testRoot()
	var check func(c *cobra.Command)
	check = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if sub.Hidden || sub.Name() == "help" {
				continue
			}
			name := strings.TrimPrefix(sub.CommandPath(), "yardmaster ")
			if !sub.HasSubCommands() && !documented[name] {
				t.Errorf("%s is not documented", name)
			}
			delete(documented, name)
			check(sub)
		}
	}
	check(root)
	for name := range documented {
		t.Errorf("%s is documented and does not exist", name)
	}
}
