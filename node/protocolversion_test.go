package node

import (
	"os"
	"regexp"
	"testing"
)

// protocolVersions are the constants in the sources that each version covers. A changed
// constant needs a new version with a row here, or members of the build before would accept
// this one.
var protocolVersions = map[int]map[string]string{
	1: {
		"../consensus/peers/hello.go: helloVersion": "1",
		"../consensus/entry.go: entryVersion":       "1",
		"../cluster/wire/buffer.go: version":        "2",
		"../ledger/encode.go: formatVersion":        "7",
	},
	2: { // heartbeats list the dispatches of a node
		"../consensus/peers/hello.go: helloVersion": "1",
		"../consensus/entry.go: entryVersion":       "1",
		"../cluster/wire/buffer.go: version":        "3",
		"../ledger/encode.go: formatVersion":        "7",
	},
	3: { // messages between nodes are MessagePack
		"../consensus/peers/hello.go: helloVersion": "1",
		"../consensus/entry.go: entryVersion":       "1",
		"../cluster/wire/wire.go: version":          "4",
		"../ledger/encode.go: formatVersion":        "13",
	},
	4: { // a message of a lane holds several records, so a position has an index
		"../consensus/peers/hello.go: helloVersion": "1",
		"../consensus/entry.go: entryVersion":       "1",
		"../cluster/wire/wire.go: version":          "5",
		"../ledger/encode.go: formatVersion":        "14",
	},
	5: { // the ledger has schemas
		"../consensus/peers/hello.go: helloVersion": "1",
		"../consensus/entry.go: entryVersion":       "1",
		"../cluster/wire/wire.go: version":          "5",
		"../ledger/encode.go: formatVersion":        "15",
	},
	6: { // the ledger has limits
		"../consensus/peers/hello.go: helloVersion": "1",
		"../consensus/entry.go: entryVersion":       "1",
		"../cluster/wire/wire.go: version":          "5",
		"../ledger/encode.go: formatVersion":        "16",
	},
	7: { // the history is sufficient to rebuild the state, and jobs have labels for the index
		"../consensus/peers/hello.go: helloVersion": "1",
		"../consensus/entry.go: entryVersion":       "1",
		"../cluster/wire/wire.go: version":          "5",
		"../ledger/encode.go: formatVersion":        "17",
		"../ledger/level.go: Level":                 "7",
	},
	8: { // repeats are recognized by all their ids, and relative times follow the ledger's clock
		"../consensus/peers/hello.go: helloVersion": "1",
		"../consensus/entry.go: entryVersion":       "1",
		"../cluster/wire/wire.go: version":          "5",
		"../ledger/encode.go: formatVersion":        "18",
		"../ledger/level.go: Level":                 "8",
	},
}

func TestProtocolVersion(t *testing.T) {
	parts := protocolVersions[protocolVersion]
	if len(parts) == 0 {
		t.Fatalf("version %d has no row", protocolVersion)
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
			t.Errorf("%s is %s, in version %d it was %s: raise protocolVersion and add a row", part, found[1], protocolVersion, want)
		}
	}
}
