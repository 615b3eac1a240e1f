package pages

import (
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
)

// A node that starts with another version than before is a deploy, and one that starts with the
// same version, or for the first time, is not.
func TestHappeningsOf(t *testing.T) {
	now := time.Date(2026, 1, 2, 15, 0, 0, 0, time.UTC)
	start := func(node, version string) api.OverviewHappening {
		return api.OverviewHappening{At: now, Action: nodeStart, Target: node, Actor: "yard", Reason: "version " + version}
	}
	all := happeningsOf([]api.OverviewHappening{
		start("n1", "v2"), {At: now, Action: "worker.drain"}, start("n2", "v1"), {At: now, Action: "queue.pause", Queue: "mail"}, start("n1", "v1"), start("n1", "v1"), {At: now.Add(-time.Hour), Action: authorityAcquired, Target: "n1"},
	})
	var kinds []string
	for _, h := range all {
		kinds = append(kinds, h.Kind)
	}
	if got, want := strings.Join(kinds, " "), "deploy drain start change start start election"; got != want {
		t.Errorf("kinds are %s, want %s", got, want)
	}
	if all[0].Before != "version v1" {
		t.Errorf("before the deploy there was %q", all[0].Before)
	}
	marks := marksOf(all, now.Add(-time.Minute))
	if len(marks) != 6 || marks[0].Label != "15:00:00 UTC deploy n1 version v2" || marks[0].Kind != "deploy" || marks[3].Label != "15:00:00 UTC queue.pause mail" {
		t.Errorf("marks are %+v", marks)
	}
}
