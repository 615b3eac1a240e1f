package edge

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
)

// vectors returns the frames in a directory of overhop's testdata, by file
// name.
func vectors(t testing.TB, dir string) map[string][]byte {
	files, err := filepath.Glob(filepath.Join("overhop", "testdata", dir, "*.hex"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no vectors to %s: %v", dir, err)
	}
	frames := map[string][]byte{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if frames[filepath.Base(file)], err = hex.DecodeString(strings.TrimSpace(string(text))); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	return frames
}

// Malformed bytes end a connection without an answer, whether it has registered
// or not.
func TestVectors_Rejected(t *testing.T) {
	for name, b := range vectors(t, "reject") {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{}, func(r *harness) {
				for _, p := range []*peer{r.connect(), r.register(true)} {
					go p.nc.Write(b)
					p.expectClosed()
				}
			})
		})
	}
}

// Every accepted form of a request is answered, on one connection.
func TestVectors_Accepted(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p := r.register(true)
		for name, b := range vectors(t, "accept") {
			t.Log(name)
			p.write(b)
			p.expect(overhop.TOK, "a")
		}
	})
}
