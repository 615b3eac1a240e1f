package similar

import (
	"strings"
	"testing"
)

func TestName(t *testing.T) {
	names := []string{"max_attempts", "priority", "id", strings.Repeat("n", 80)}
	for text, want := range map[string]string{
		"max_attemps": "max_attempts", "Priorty": "priority", "pirority": "priority", "attempts": "", "ix": "",
		strings.Repeat("n", 79): "", "": "",
	} {
		if got := Name(text, names); got != want {
			t.Errorf("%q is taken for %q, want %q", text, got, want)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"abc", "abc", 0}, {"", "ab", 2}, {"abc", "", 3}, {"abc", "axc", 1}, {"abc", "bc", 1}, {"kitten", "sitting", 3}, {"abc", "bac", 1}} {
		if got := Distance(tt.a, tt.b); got != tt.want {
			t.Errorf("%q to %q: %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}
