package jobs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/cli/command"
)

// TestByteOrderMark checks that files of JSON may begin with a byte order mark, as some editors write it.
func TestByteOrderMark(t *testing.T) {
	path := filepath.Join(t.TempDir(), "params.json")
	if err := os.WriteFile(path, []byte("\ufeff{\"to\":\"ann\"}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, env := range []struct{ path, in string }{{path, ""}, {"-", "\ufeff{\"to\":\"ann\"}"}} {
		text, err := readText(&command.Env{Streams: command.Streams{In: strings.NewReader(env.in)}}, env.path)
		if err != nil || string(text) != `{"to":"ann"}` {
			t.Errorf("%s: %q, %v", env.path, text, err)
		}
	}
	lines := 0
	err := new(bulk).read(strings.NewReader("\ufeff{\"queue\":\"mail\"}\n{\"queue\":\"mail\"}\n"), func(c *chunk) bool {
		for _, item := range c.items {
			lines++
			if item.Error != nil || !strings.HasPrefix(string(item.job), `{"queue":"mail"`) {
				t.Errorf("line %d: %s, %+v", item.Line, item.job, item.Error)
			}
		}
		return true
	})
	if err != nil || lines != 2 {
		t.Errorf("%d lines, %v", lines, err)
	}
}
