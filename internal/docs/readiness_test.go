package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// reasonTests maps the beginning of each reason to the test that covers it: a
// file, and a text in that file.
var reasonTests = map[string]string{
	"authority lease not acquired":       "ledger/testdata/readiness.txt: authority lease not acquired",
	"authority lease is stale":           "ledger/testdata/readiness.txt: authority lease is stale",
	"the ledger differs from":            "chronicle/chronicle_test.go: the ledger differs from its history",
	"the ledger's numbers":               "test/sim/mutants_test.go: is counted as delayed, too",
	"no quorum":                          "test/clustertest/isolate_test.go: TestIsolate",
	"no authority is known":              "health/report_test.go: TestReadiness_NoAuthority",
	"this node holds the lease":          "health/report_test.go: TestReadiness_NoAuthority",
	"the authority, ":                    "test/clustertest/isolate_test.go: TestIsolate",
	"the authority's lease":              "scheduler/reasons_test.go: TestReasons_LeaseUncertain",
	"member … sends no heartbeat":        "scheduler/reasons_test.go: TestReasons_MembersSilent",
	"member …'s clock":                   "scheduler/clock_test.go: TestClock_AheadAtTakeOver",
	"members are out of step":            "membership/reconciler_test.go: TestReconciler_SyncsMembers",
	"the node is starting":               "node/readyz_test.go: TestReadyz_Starting",
	"the node waits":                     "node/readyz_test.go: TestReadyz_Starting",
	"the yard's streams are not":         "health/report_test.go: TestStreamsNotMade",
	"a restore of":                       "ledger/restore_test.go: a restore of elsewhere was begun",
	"the yard's streams are being":       "scheduler/reasons_test.go: TestReasons_StreamsBeingCreated",
	"streams are not as":                 "scheduler/reasons_test.go: TestReasons_StreamsMissing",
	"JetStream is not healthy":           "test/clustertest/isolate_test.go: TestIsolate",
	"no lane has a leader":               "health/report_test.go: TestAcceptingJobs",
	"lane … is not ingested":             "scheduler/lanereader_test.go: TestVerifyLane_ReplacedDuringTenure",
	"lane … is full":                     "scheduler/blocked_test.go: lane 0 is full and takes no jobs",
	"replay has":                         "ledger/testdata/readiness.txt: replay has 2 pending events",
	"lane …: record … missing":           "ledger/testdata/replay.txt: missing from the stream",
	"lane …: record … not what":          "ledger/testdata/replay.txt: not what was ingested",
	"the replay found damage":            "ledger/idring_test.go: TestReplay_MoreDamage",
	"runner …":                           "test/clustertest/waitreason_test.go: func runnerFails",
	"jobs wait for runner …, which only": "scheduler/flow_test.go: which only members that are down have",
	"jobs wait for runner …, which no":   "scheduler/flow_test.go: which no member with a heartbeat has",
	"history is not":                     "scheduler/reasons_test.go: TestReasons_NotPublished",
	"results are not":                    "scheduler/reasons_test.go: TestReasons_NotPublished",
	"dead letters are not":               "scheduler/reasons_test.go: TestReasons_NotPublished",
	"the outbox is half full":            "scheduler/publish_test.go: half full",

	"node …: less than … is free where the data lies: this node takes no jobs in until": "health/monitor_test.go: TestDisk_Conditions",
	"node …: less than … is free where the data lies: this node takes no jobs in and":   "health/monitor_test.go: TestDisk_Conditions",
	"node …: measure the room in":             "health/monitor_test.go: TestMonitor_DiskUnreadable",
	"node …: the log cannot be written":       "consensus/guardedstore_test.go: TestGuardedStore_FailedVoteIsFatal",
	"node …: it follows a Raft leader":        "test/clustertest/routes_test.go: TestRoutesCut",
	"node …: partial partition":               "health/check_test.go: TestPartitionWatch",
	"member …'s ledger is not":                "health/consistency/check_test.go: TestCompareHashes",
	"the ledgers of … differ":                 "health/consistency/check_test.go: TestCompareHashes",
	"the disk of the authority's node":        "scheduler/publish_test.go: TestBlockedReason",
	"node …: its replica of … lacks messages": "health/check_test.go: TestGapText",
	"node …: its copy of … lags":              "cluster/stalls_test.go: TestStalledReplicas",
}

var reasonRow = regexp.MustCompile("(?m)^\\| `([^`]+)` \\|")

// TestReadiness checks that every reason in docs/reference/readiness.md occurs in
// the code and is covered by a test, and that every covered reason is documented.
func TestReadiness(t *testing.T) {
	code := sources(t)
	page, _, found := strings.Cut(documents(t)["docs/reference/readiness.md"], "\n## Explain\n")
	if !found {
		t.Fatal("docs/reference/readiness.md has no section Explain")
	}
	rows := reasonRow.FindAllStringSubmatch(page, -1)
	if len(rows) != len(reasonTests) {
		t.Errorf("%d reasons are documented, %d are covered by tests", len(rows), len(reasonTests))
	}
	for _, row := range rows {
		reason := row[1]
		for _, part := range regexp.MustCompile("…|: ").Split(reason, -1) {
			if part = strings.Trim(part, " :;,"); len(part) > 3 && !strings.Contains(code, part) {
				t.Errorf("%q: %q is not in the code", reason, part)
			}
		}
		covering := ""
		for prefix, test := range reasonTests {
			if strings.HasPrefix(reason, prefix) {
				covering = test
			}
		}
		file, name, _ := strings.Cut(covering, ": ")
		text, err := os.ReadFile(filepath.Join(root, file))
		if covering == "" || err != nil || !strings.Contains(string(text), name) {
			t.Errorf("%q is not covered by a test (%s)", reason, covering)
		}
	}
}

// sources returns the product code of the packages with reasons, with "…" in place
// of formatting verbs.
func sources(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, pkg := range []string{"ledger", "scheduler", "node", "cluster", "membership", "health", "chronicle"} {
		err := filepath.WalkDir(filepath.Join(root, pkg), func(name string, d fs.DirEntry, err error) error {
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
