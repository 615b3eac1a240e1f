package runnerscript

import (
	"os"
	"path/filepath"
)

// membersConfig extends a node's settings to the settings of a member of three. A
// standalone node would refuse a route to a runner it does not have.
const membersConfig = `
[node]
name = "n1"
[cluster]
members = [
  { name = "n1", route = "127.0.0.1:1", raft = "127.0.0.1:2" },
  { name = "n2", route = "127.0.0.1:3", raft = "127.0.0.1:4" },
  { name = "n3", route = "127.0.0.1:5", raft = "127.0.0.1:6" },
]
`

// WriteSettings copies yard.toml from the directory from to the directory to,
// extended to the settings of a member of three, and returns the copy's path.
func WriteSettings(from, to string) (string, error) {
	text, err := os.ReadFile(filepath.Join(from, "yard.toml"))
	if err != nil {
		return "", err
	}
	path := filepath.Join(to, "yard.toml")
	return path, os.WriteFile(path, append(text, membersConfig...), 0o644)
}
