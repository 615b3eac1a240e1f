package node

import (
	"testing"
	"time"
)

func TestBuildTime(t *testing.T) {
	built, err := time.Parse(time.RFC3339, buildTime())
	if err != nil || built.After(time.Now()) || built.Year() < 2020 {
		t.Errorf("built at %q, %v", buildTime(), err)
	}
}
