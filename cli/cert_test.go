package cli

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestCert(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		line string
		code int
		want string
	}{
		{"cert node n1 --dir " + dir, 1, "create the authority with 'yardmaster cert ca'"},
		{"cert ca --days 5 --dir " + dir, 0, `authority "yard authority"`},
		{"cert ca --dir " + dir, 1, "--force"},
		{"cert node n1 --host 10.0.0.1 --host n1.example.org --dir " + dir, 0, "n1, n1.example.org, 10.0.0.1"},
		{"cert node n1 --dir " + dir, 1, "--force"},
		{"cert node n1 --host 10.0.0.9 --force --dir " + dir, 0, "n1, 10.0.0.9"},
		{"cert client shop --days 90 --dir " + dir, 0, `client "shop"`},
		{"cert node N1 --dir " + dir, 2, "must be a member's"},
		{"cert client ca --dir " + dir, 2, "authority's files"},
		{"cert client eve --days 0 --dir " + dir, 2, "--days is 0"},
		{"cert node n2 --host 10.0.0.2:4222 --dir " + dir, 2, "without a port"},
		{"cert client late --dir /nowhere/pki", 1, "cert ca"},
		{"cert show", 2, "file is missing"},
		{"cert show /nowhere.pem", 1, "name files"},
	} {
		got := runLine(t, "", strings.Fields(c.line)...)
		if got.code != c.code || !strings.Contains(got.out+got.err, c.want) {
			t.Errorf("%s: code %d, %q %q, want %d, %q", c.line, got.code, got.out, got.err, c.code, c.want)
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.pem"))
	if err != nil || len(files) != 6 {
		t.Fatalf("files %v, %v", files, err)
	}
	got := runLine(t, "", append([]string{"cert", "show", "--json"}, files...)...)
	var shown []struct {
		File, For, State string
		Names            []string
		Until            time.Time
	}
	if err := json.Unmarshal([]byte(got.out), &shown); err != nil || got.code != 0 {
		t.Fatalf("cert show: code %d, %v: %q %q", got.code, err, got.out, got.err)
	}
	var lines []string
	for _, s := range shown {
		lines = append(lines, fmt.Sprintf("%s %v %s, %s", filepath.Base(s.File), s.Names, s.For, s.State))
		if s.Until.After(shown[0].Until) {
			t.Errorf("%s outlives its authority", s.File)
		}
	}
	want := "ca.pem [] authority, ends soon; n1.pem [n1 10.0.0.9] client, server, ends soon; shop.pem [] client, ends soon"
	if strings.Join(lines, "; ") != want {
		t.Errorf("cert show: %q, want %q", lines, want)
	}
}
