package node

import (
	"os"
	"regexp"
	"testing"
)

// What members of each level agree on, as its constants stand in the sources.
// A changed constant needs a new level with a row of its own: without one, a
// member of the build before would take this one for its like.
var levels = map[int]map[string]string{
	1: {
		"../consensus/roster/hello.go: helloVersion": "1",
		"../consensus/entry.go: entryVersion":        "1",
		"../cluster/wire/buffer.go: version":         "2",
		"../ledger/encode.go: formatVersion":         "7",
	},
}

func TestProtocolLevel(t *testing.T) {
	parts := levels[protocolLevel]
	if len(parts) == 0 {
		t.Fatalf("level %d has no row", protocolLevel)
	}
	place := regexp.MustCompile(`^(\S+): (\S+)$`)
	for part, want := range parts {
		at := place.FindStringSubmatch(part)
		text, err := os.ReadFile(at[1])
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(`(?m)^\s*(?:const )?` + at[2] + `\s*=\s*(\d+)$`).FindSubmatch(text)
		if found == nil {
			t.Fatalf("%s: no such constant", part)
		}
		if string(found[1]) != want {
			t.Errorf("%s is %s, at level %d it was %s: raise protocolLevel and add a row", part, found[1], protocolLevel, want)
		}
	}
}
