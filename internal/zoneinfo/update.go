//go:build ignore

package main

import (
	"bytes"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
)

// main replaces the database by the one of the Go release that runs it.
func main() {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		log.Fatal(err)
	}
	dir := filepath.Join(string(bytes.TrimSpace(root)), "lib", "time")
	archive := read(filepath.Join(dir, "zoneinfo.zip"))
	release := regexp.MustCompile(`(?m)^DATA=(\w+)$`).FindSubmatch(read(filepath.Join(dir, "update.bash")))
	if release == nil {
		log.Fatal("update.bash of this Go release does not name the release of the database")
	}
	write("zoneinfo.zip", archive)
	write("release.txt", append(release[1], '\n'))
}

func read(path string) []byte {
	data, err := os.ReadFile(path)
	if err != nil {
		log.Fatal(err)
	}
	return data
}

func write(path string, data []byte) {
	if err := os.WriteFile(path, data, 0o644); err != nil {
		log.Fatal(err)
	}
}
