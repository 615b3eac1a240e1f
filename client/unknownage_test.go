package client

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
)

// TestUnknownFunction_Age checks that the age of a job is measured by the node's clock, whatever this
// machine's shows.
func TestUnknownFunction_Age(t *testing.T) {
	node := time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)
	for age, want := range map[time.Duration]string{
		0: "snooze for 5s", 10 * time.Minute: "snooze for 5m", 2 * time.Hour: "snooze for 10m", 25 * time.Hour: "",
	} {
		job := infoOf(&overhop.Quest{Function: "f", Created: node.Add(-age), LeaseUntil: node.Add(6 * time.Second), Lease: 6 * time.Second})
		_, err := unknownFunction("q", nil)(t.Context(), job)
		if got := fmt.Sprint(err); !strings.Contains(got, "no handler") || !strings.HasSuffix(got, want) || strings.Contains(got, "snooze") != (want != "") {
			t.Errorf("after %s: %s, want %q at the end", age, got, want)
		}
	}
}
