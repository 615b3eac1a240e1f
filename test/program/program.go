// Package program provides the built program yardmaster to tests, drills and
// benchmarks.
package program

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// variable names the environment variable with the path of the program.
const variable = "YARD_BIN"

// Find returns the absolute path of the program: the one that YARD_BIN names or, if
// it is not set, one that Find builds in dir from the source around the working
// directory.
func Find(dir string) (string, error) {
	if path := os.Getenv(variable); path != "" {
		path, err := filepath.Abs(path)
		if err == nil {
			_, err = os.Stat(path)
		}
		if err != nil {
			return "", fmt.Errorf("find the program that %s names: %w", variable, err)
		}
		return path, nil
	}
	path := filepath.Join(dir, "yardmaster")
	build := exec.Command("go", "build", "-o", path, "github.com/yardmaster-dev/yardmaster/cmd/node")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the program: %w: %s; run it in a checkout, or name a built program with %s", err, out, variable)
	}
	return path, nil
}

// Version returns the version that the program at path shows.
func Version(path string) (string, error) {
	out, err := exec.Command(path, "version").Output()
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", path, err)
	}
	words := strings.Fields(string(out))
	if len(words) < 2 {
		return "", errors.New(path + " shows no version")
	}
	return words[1], nil
}
