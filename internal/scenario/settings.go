package scenario

import (
	"os"
	"path/filepath"
)

// members make a file of settings one of a yard's: a node alone refuses a route
// to a runner that it has not.
const members = `
[node]
name = "n1"
[cluster]
members = [
  { name = "n1", route = "127.0.0.1:1", raft = "127.0.0.1:2" },
  { name = "n2", route = "127.0.0.1:3", raft = "127.0.0.1:4" },
  { name = "n3", route = "127.0.0.1:5", raft = "127.0.0.1:6" },
]
`

// Settings copies the settings of the scenarios in from to the directory to, as
// those of a member of three, and gives the copy's path.
func Settings(from, to string) (string, error) {
	text, err := os.ReadFile(filepath.Join(from, "yard.toml"))
	if err != nil {
		return "", err
	}
	path := filepath.Join(to, "yard.toml")
	return path, os.WriteFile(path, append(text, members...), 0o644)
}
