package cli

import (
	"strings"
	"testing"
)

func TestVersion(t *testing.T) {
	verb, flag := runLine(t, "", "version"), runLine(t, "", "--version")
	if verb != flag || flag.code != 0 || !strings.HasPrefix(flag.out, "yardmaster 1.2.3 (go") {
		t.Errorf("version shows %+v, --version %+v", verb, flag)
	}
}
