package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// provoked: the test that brings each reason about, by how the reason begins.
var provoked = map[string]string{
	"authority lease not acquired":       "ledger/testdata/readiness.txt: authority lease not acquired",
	"authority lease is stale":           "ledger/testdata/readiness.txt: authority lease is stale",
	"no quorum":                          "internal/nodetest/fault_test.go: TestIsolate",
	"no authority is known":              "node/status_test.go: TestNoLook",
	"this node holds the lease":          "node/status_test.go: TestNoLook",
	"the authority, ":                    "internal/nodetest/fault_test.go: TestIsolate",
	"the authority's lease":              "scheduler/reasons_test.go: TestReasons_LeaseIsNotCertain",
	"member … is not heard":              "scheduler/reasons_test.go: TestReasons_MembersAreNotHeard",
	"member …'s clock":                   "scheduler/clock_test.go: TestClock_AheadAtTakeOver",
	"members are out of step":            "membership/keeper_test.go: TestKeeper_BringsInStep",
	"the node is starting":               "node/status_test.go: TestNoLook",
	"the node waits":                     "node/status_test.go: TestNoLook",
	"the yard's streams are not":         "node/status_test.go: TestStreamsNotMade",
	"a restore of":                       "ledger/bringback_test.go: a restore of elsewhere was begun",
	"the yard's streams are being":       "scheduler/reasons_test.go: TestReasons_StreamsAreBeingMade",
	"streams are not as":                 "scheduler/reasons_test.go: TestReasons_StreamsAreGone",
	"JetStream is not healthy":           "internal/nodetest/fault_test.go: TestIsolate",
	"no lane has a leader":               "node/status_test.go: TestAcceptance",
	"lane … is not folded":               "scheduler/verify_test.go: TestVerify_LaneChangesWithinATenure",
	"lane … is full":                     "scheduler/blocked_test.go: lane 0 is full and takes no jobs",
	"replay has":                         "ledger/testdata/readiness.txt: replay has 2 pending events",
	"keys of forgotten jobs":             "ledger/gone_test.go: TestGone_Short",
	"lane …: record … missing":           "ledger/testdata/replay.txt: missing from the stream",
	"lane …: record … not what":          "ledger/testdata/replay.txt: not what was folded",
	"the replay found damage":            "ledger/gone_test.go: TestReplay_MoreDamage",
	"runner …":                           "internal/nodetest/because_test.go: func runnerGoes",
	"jobs wait for runner …, which only": "scheduler/flow_test.go: which only members that are down have",
	"jobs wait for runner …, which no":   "scheduler/flow_test.go: which no member that was heard has",
	"history is not":                     "scheduler/reasons_test.go: TestReasons_NothingIsPublished",
	"results are not":                    "scheduler/reasons_test.go: TestReasons_NothingIsPublished",
	"dead letters are not":               "scheduler/reasons_test.go: TestReasons_NothingIsPublished",
	"the outbox is half full":            "scheduler/publish_test.go: half full",

	"node …: less than … is free where the data lies: this node takes no jobs in until": "vigil/keeper_test.go: TestDisk_Ailments",
	"node …: less than … is free where the data lies: this node takes no jobs in and":   "vigil/keeper_test.go: TestDisk_Ailments",
	"node …: measure the room in":                              "vigil/keeper_test.go: TestKeeper_ADiskThatDoesNotAnswer",
	"node …: the log cannot be written":                        "consensus/store_test.go: TestGuard_AFailedVoteIsSaid",
	"node …: it hears the yard agree":                          "internal/nodetest/routes_test.go: TestRoutesCut",
	"node …: partial partition":                                "node/keep_test.go: TestCutWatch",
	"member …'s ledger is not":                                 "node/proofs_test.go: TestCompare",
	"the ledgers of … differ":                                  "node/proofs_test.go: TestCompare",
	"node …: its copy of … lacks, or cannot read, what others": "node/scrub_test.go: TestCopyText",
	"node …: its copy of … is not what":                        "node/scrub_test.go: TestCopyText",
	"node …: its copy of … and that of":                        "node/scrub_test.go: TestCopyText",
	"node …: its copy of … lacks, or cannot read, what no":     "node/scrub_test.go: TestCopyText",
	"node …: its copy of … cannot be opened":                   "node/scrub_test.go: TestUnopenedText",
	"the disk of the authority's node":                         "scheduler/publish_test.go: TestHeld",
	"node …: its copy of … lags":                               "cluster/standstill_test.go: TestStandstill",
}

var reasonRow = regexp.MustCompile("(?m)^\\| `([^`]+)` \\|")

// TestReadiness holds the table of reasons against the code that says them, in
// both ways, and against the tests that provoke them.
func TestReadiness(t *testing.T) {
	says := sources(t)
	rows := reasonRow.FindAllStringSubmatch(documents(t)["docs/readiness.md"], -1)
	if len(rows) != len(provoked) {
		t.Errorf("%d reasons are documented, %d provoked", len(rows), len(provoked))
	}
	for _, row := range rows {
		reason := row[1]
		for _, part := range regexp.MustCompile("…|: ").Split(reason, -1) {
			if part = strings.Trim(part, " :;,"); len(part) > 3 && !strings.Contains(says, part) {
				t.Errorf("%q: nothing says %q", reason, part)
			}
		}
		by := ""
		for begin, test := range provoked {
			if strings.HasPrefix(reason, begin) {
				by = test
			}
		}
		file, word, _ := strings.Cut(by, ": ")
		text, err := os.ReadFile(filepath.Join(root, file))
		if by == "" || err != nil || !strings.Contains(string(text), word) {
			t.Errorf("%q is provoked by no test (%s)", reason, by)
		}
	}
}

// sources is the text of the program, with "…" for what its formats leave open.
func sources(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, room := range []string{"ledger", "scheduler", "node", "cluster", "membership", "vigil"} {
		err := filepath.WalkDir(filepath.Join(root, room), func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
				return err
			}
			text, err := os.ReadFile(name)
			all.Write(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return regexp.MustCompile(`%[a-z]`).ReplaceAllString(all.String(), "…")
}
