package sim

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var mutantsFlag = flag.Bool("mutants", false, "have TestMutants build each mutant and simulate it until a plan or a seed finds it")

// mutantSeeds is how many seeds findFailure tries, after the plans, before it reports
// that a mutant survives.
const mutantSeeds = 10000

// mutant is the code with one mistake in it: one that was made once, or one that a
// rule of the design excludes.
type mutant struct {
	name  string
	edits []edit
	test  string // "PACKAGE TEST": the test that finds it; "": the simulation does
}

// edit replaces old, which must occur exactly once in file, by new.
type edit struct{ file, old, new string }

var mutants = []mutant{
	{"a stale outcome settles the current dispatch", []edit{
		{"ledger/dispatch.go", "if old == nil || old.n != settlement.N || old.state", "if old == nil || old.state"}}, ""},
	{"a given-back attempt is subtracted twice", []edit{
		{"ledger/dispatch.go", "next.attempt--\n", "next.attempt -= min(2, next.attempt)\n"}}, ""},
	{"a queue's limit is not checked", []edit{
		{"ledger/dispatch.go", "|| old.queue.limitReached() ||", "||"},
		{"scheduler/place.go", "headroom != math.MaxInt && headroom <= pl.byQueue[w.Queue]", "headroom != math.MaxInt && headroom <= 0"}}, ""},
	{"the slots of a limit's keys are not checked", []edit{
		{"ledger/limits.go", "if m.PerKey >= 0 && k.running >= int(m.PerKey) {", "if m.PerKey == 0 {"}}, ""},
	{"a restored ledger forgets what is to be made up for of a rate", []edit{
		{"ledger/setlimit.go", "bucket := max(int64(m.bucket), ls.elapsed)", "bucket := ls.elapsed"}}, ""},
	{"placements in flight do not count for a limit", []edit{
		{"ledger/dispatch.go", " || !d.limitsPermit(old) {", " {"},
		{"scheduler/limits.go", "if f.byUse[use] += n; f.byUse", "if f.byUse[use] += 0; f.byUse"}}, ""},
	{"a placement is committed although its queue is paused", []edit{
		{"ledger/dispatch.go", "|| old.queue.paused ||", "||"}}, ""},
	{"a gap in a lane is skipped", []edit{
		{"scheduler/lanes.go", "case m.seq == lane.next:", "case m.seq >= lane.next:\n\t\t\tlane.next = m.seq"},
		{"scheduler/ingest.go", "from := messages[0].seq - 1", "from := l.Lanes()[lane.number].Cursor"}}, ""},
	{"a message is ingested of which only a part was received", []edit{
		{"scheduler/lanes.go", "case !m.complete():", "case false:"}}, "./scheduler TestLanes_PackedRecords"},
	{"a known job id makes a second job", []edit{
		{"ledger/ingest.go", "if existing := in.jobs.find(j.ID); existing != nil {", "if existing := in.jobs.find(j.ID); existing != nil && existing.state != job.Completed {"}}, ""},
	{"a new authority does not adopt running dispatches", []edit{
		{"scheduler/dispatches.go", "ds.running[job.DispatchID{Job: a.ID, N: a.N}] = ds.adopt(a, l.Index())", "_ = ds.adopt"}}, ""},
	{"a dispatch is reassigned before its node's lease has ended", []edit{
		{"scheduler/dispatches.go", "case now.Sub(lastContact) > reassignAfter:", "case now.Sub(lastContact) > reassignAfter/2:"}}, ""},
	{"a node works after its lease has expired", []edit{
		{"agent/heartbeat.go", "func (l *lease) expired() bool { return !time.Now().Before(l.until) }", "func (l *lease) expired() bool { return false }"}}, ""},
	{"a node obeys a replaced authority", []edit{
		{"agent/agent.go", "return epoch == a.epoch\n", "return true\n"}}, ""},
	{"a node starts a dispatch that it refused before", []edit{
		{"agent/inflight.go", " || a.table.refused.has(d.DispatchID)", ""}}, ""},
	{"a node accepts assignments meant for its previous incarnation", []edit{
		{"agent/inflight.go", "case b.Incarnation != 0 && b.Incarnation != a.cfg.Incarnation, !a.observeEpoch(b.Epoch):", "case !a.observeEpoch(b.Epoch):"}}, ""},
	{"leases that the previous authority granted late are not waited for", []edit{
		{"scheduler/dispatches.go", "ds.loop.startedAt.Add(trustTime-nodeLease)", "ds.loop.startedAt"}}, ""},
	{"a worker's lease outlasts its node's", []edit{
		{"agent/heartbeat.go", "\tif a.lease.until.Before(until) {\n\t\treturn a.lease.until\n\t}\n", ""}}, ""},
	{"a late recall stops a dispatch that a later move brought back", []edit{
		{"agent/recall.go", "d != nil && !r.Outdated(d.moveIndex) && d.recall(r.Reason, r.Message)", "d != nil && d.recall(r.Reason, r.Message)"},
		{"job/report.go", "return r.Reason == RecallSuperseded && r.MoveIndex != 0", "return false && r.MoveIndex != 0"},
		{"scheduler/reports.go", "\tt.dispatches.endMissing(n, &b)\n", ""}}, ""},
	{"a new lease does not wake the lease's watcher", []edit{
		{"agent/heartbeat.go", "\t\tcase <-a.leaseRenewed:\n", ""}}, ""},
	{"a node accepts assignments meant for its previous lease", []edit{
		{"agent/inflight.go", "case !a.lease.canWork(), a.lease.previous.covers(b):", "case !a.lease.canWork():"}}, ""},
	{"a unique key is not held", []edit{
		{"ledger/guards.go", "if keys.Unique.IsSet() {", "if keys.Unique.IsSet() && now == 0 {"}}, ""},
	{"a rate limit ends after half its time", []edit{
		{"ledger/guards.go", "c.elapsed + int64(keys.Rate.TTL)", "c.elapsed + int64(keys.Rate.TTL)/2"}}, ""},
	{"a tick that is proposed twice fires twice", []edit{
		{"ledger/cron.go", "c.waits() && c.Rev == tick.Rev && c.Next.Equal(tick.At)", "c.Rev == tick.Rev"},
		{"scheduler/cron.go", "if !cr.inFlight[c.Name] {", "{"}}, ""},
	{"a tick's job that was not stored is not published again", []edit{
		{"scheduler/cron.go", "cr.published[tick.Job] = time.Now().Add(tickRetryDelay)", "cr.published[tick.Job] = time.Time{}"},
		{"scheduler/cron.go", "retryAt, known := cr.published[t.Job]", "retryAt, known := cr.published[t.Job]\n\t\tknown = known || len(cr.schedules) == 0"}}, ""},
	{"a truncated lane counts as healthy", []edit{
		{"scheduler/lanereader.go", "case info.Last < ingested:", "case false && info.Last < ingested:"}}, ""},
	{"a moved dispatch is lost when the node it left reports so", []edit{
		{"ledger/dispatch.go", "if settlement.Node != \"\" && (settlement.Node != old.run.node || settlement.Incarnation != old.run.incarnation) {", "if settlement.Node != \"\" && settlement.Node == \"none\" {"}}, ""},
	{"a moved dispatch is lost because its new node was silent before", []edit{
		{"scheduler/dispatches.go", "lastContact := latest(ds.loop.startedAt.Add(trustTime-nodeLease), d.movedAt)", "lastContact := ds.loop.startedAt.Add(trustTime-nodeLease)"}}, ""},
	{"a loss that a node reports of an earlier stay counts", []edit{
		{"scheduler/dispatches.go", "return !d.movedAt.IsZero() && (o.MoveIndex == 0 ||", "return false && (o.MoveIndex == 0 ||"}}, ""},
	{"a recalled dispatch ends when a node that its worker has left reports so", []edit{
		{"scheduler/reports.go", "if given && !o.Snoozes() || o.ByNode {", "if given {"}},
		"./scheduler TestMove_LostOnlyAtCurrentNode"},
	{"a heartbeat of an earlier incarnation ends what a node runs", []edit{
		{"scheduler/dispatches.go", "case n == nil || n.silent || n.incarnation < d.incarnation:", "case n == nil || n.silent:"},
		{"scheduler/dispatches.go", "case n.incarnation > d.incarnation:", "case n.incarnation != d.incarnation:"}},
		"./scheduler TestHeartbeat_OfEarlierIncarnation"},
	{"one member's clock sets the time of all entries", []edit{
		{"scheduler/clock.go", "return offsets[(len(offsets)-1)/2], true", "return offsets[len(offsets)-1], true"}}, ""},
	{"a new authority ignores the elapsed time that members have kept", []edit{
		{"scheduler/clock.go", "if !before && c.kept(&b) {", "if !before && c.kept(&b) && b.Node == \"none\" {"}}, ""},
	{"a new authority takes the elapsed time from its own wall clock", []edit{
		{"scheduler/clock.go", "if passed = max(0, passed); passed == 0 && single {", "if passed = max(0, passed); passed == 0 {"}}, ""},
	{"the ledger's time goes back with the wall clocks", []edit{
		{"scheduler/clock.go", "\t\tnext.lead = ahead\n", "\t\tt.Now = t.Wall\n"},
		{"ledger/clock.go", "\tl.now = max(l.now, at.At.UnixNano())\n\tacquires", "\tl.now = at.At.UnixNano()\n\tacquires"}}, ""},
	{"the clocks of members that were set are not followed", []edit{
		{"scheduler/clock.go", "if wall.Sub(t.Wall).Abs() > clockSlack {", "if wall.Sub(t.Wall).Abs() > clockSlack && c.lead < 0 {"}}, ""},
	{"the elapsed time follows the wall clocks", []edit{
		{"scheduler/clock.go", "\t\tt.Wall = wall\n", "\t\tt.Elapsed, t.Wall = t.Elapsed.Add(max(0, wall.Sub(t.Wall))), wall\n"}}, ""},
	{"the age of a delay is taken off although its lane was read", []edit{
		{"ledger/ingest.go", "if until := in.lanes[j.Position.Lane].IngestedUntil; !until.IsZero() {", "if until := in.lanes[j.Position.Lane].IngestedUntil; until.Unix() < 0 {"}}, ""},
	{"a new authority takes jobs before it knows the elapsed time", []edit{
		{"scheduler/tenure.go", "if !t.clocks.elapsedKnown { // the", "if t.loop.epoch == 0 { // the"}}, ""},
	{"a delay ends by the wall clock", []edit{
		{"ledger/ingest.go", "stored.runAt(in.after(j.Delay - in.age(j)))", "stored.runAt(moment{at: in.wall + int64(j.Delay-in.age(j)), wall: true})"}}, ""},
	{"a new authority shows a time that has not come", []edit{
		{"scheduler/clock.go", "ago = max(0, ago-clockSlack/2)", "ago = max(0, ago+clockSlack)"}}, ""},
	{"a large body is freed before its job has ended", []edit{
		{"scheduler/blobs.go", "if l.NeedsBody(body.Owner) || letters[body.Owner] {", "if letters[body.Owner] {"}}, ""},
	{"a cached body keeps its whole message in memory", []edit{
		{"scheduler/ingest.go", "r.record.Body = bytes.Clone(r.record.Body)", "r.record.Body = bytes.TrimSpace(r.record.Body)"}},
		"./scheduler TestBodies_KeepOnlyThemselvesAlive"},
	{"an id is forgotten before every lane was ingested past it", []edit{
		{"ledger/horizon.go", "in.trimForgotten(until)", "in.trimForgotten(max(until, in.now))"}},
		"./ledger TestForget_UnreadableLane|TestForget_Properties"},
	{"a repeated enqueue that was merged is decided again", []edit{
		{"ledger/alias.go", "case IngestedDuplicate, IngestedDebounced:", "case IngestedDuplicate:"}}, ""},
	{"a repeated enqueue that met the holder of its unique key is decided again", []edit{
		{"ledger/alias.go", "case IngestedDuplicate, IngestedDebounced:", "case IngestedDebounced:"}}, ""},
	{"a late copy of a refused record is decided again", []edit{
		{"ledger/refusals.go", "if refused == nil || refused.accepted < j.Accepted.UnixNano() {", "if refused == nil || refused.at > 0 {"}},
		"./ledger TestRefusals|TestAlias_Properties"},
	{"the waitlists of a runner are never deleted", []edit{
		{"ledger/waitlist.go", "wl.queue.waitlists.Delete(wl.name)", "_ = wl.name"}},
		"./ledger TestWaitlists_RemovedWithLastJob"},
	{"a delayed job that starts to wait is counted as delayed, too", []edit{
		{"ledger/jobs.go", "\told.queue.counts[old.state]--\n", "\tif old.state != job.Delayed {\n\t\told.queue.counts[old.state]--\n\t}\n"}}, ""},
	{"history does not say what became of a job whose dispatch has failed", []edit{
		{"ledger/outbox.go", "To: o.given(f.to)", "To: o.given(placeOf(job.Waiting))"}}, ""},
	{"a paused operation changes jobs", []edit{
		{"ledger/operate.go", "case old.State != OperationRunning:", "case old.State.Ended():"}}, ""},
	{"an operation ends before it has come to all jobs", []edit{
		{"server/operations/page.go", "Done: !found.More}", "Done: !found.More || len(found.Documents) > 1}"}}, ""},
	{"an operation passes over a job whose delay ends", []edit{
		{"server/operations/page.go", "states.Add(state)", "_ = states"}}, ""},
	{"an operation changes jobs that have come to match since it began", []edit{
		{"server/operations/page.go", "now.Ended.After(op.Started) && ", "false && "}}, ""},
	{"an operation goes by an index that has not reached its start", []edit{
		{"server/operations/runner.go", "found.Index < op.Index", "found.Index == 0"}}, ""},
	{"a search drops the document of a job that has failed since", []edit{
		{"index/live.go", "case !now.Created.Equal(d.Created):", "case !now.Created.Equal(d.Created) || (d.Fault == nil) != (now.Fault == nil) || d.Fault != nil && d.Fault.Message != now.Fault.Message:"}}, ""},
	{"a search passes over a job that ends meanwhile", []edit{
		{"index/live.go", "case now.State.Ended() && now.Ended.Before(s.since), ended[", "case now.State.Ended(), ended["}},
		"./index TestIndex_ChangesAfterSnapshot"},
	{"a search passes over a job that ends and is forgotten meanwhile", []edit{
		{"index/live.go", "forgotten = append(forgotten, start+i)", "_ = i"}},
		"./index TestIndex_ChangesAfterSnapshot"},
	{"a search passes over a job that is retried meanwhile", []edit{
		{"index/segment/find.go", "within.andNot(s.deleted)\n", "within.andNot(s.Segment.deleted.Load())\n"}},
		"./index TestIndex_ChangesAfterSnapshot"},
	{"several batches of history are in flight", []edit{
		{"scheduler/outbox/publisher.go", "batchWindow     = 1\n", "batchWindow     = 4\n"}}, ""},
}

// TestMutants verifies that each mutant's edits still apply to the source and,
// with -mutants, that the simulation or the mutant's test finds each mutant.
func TestMutants(t *testing.T) {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			overlay := filepath.Join(t.TempDir(), "overlay.json")
			m.writeOverlay(t, root, overlay)
			if *mutantsFlag {
				if m.test == "" {
					t.Log(findFailure(t, root, overlay))
				} else {
					t.Log(m.runTest(t, root, overlay))
				}
			}
		})
	}
}

// writeOverlay writes the mutant's files beside overlay, and to overlay the JSON
// that go build's -overlay flag reads.
func (m *mutant) writeOverlay(t *testing.T, root, overlay string) {
	t.Helper()
	edited := map[string]string{} // the text of each file
	for _, e := range m.edits {
		name := filepath.Join(root, e.file)
		if _, ok := edited[name]; !ok {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			edited[name] = string(text)
		}
		if n := strings.Count(edited[name], e.old); n != 1 {
			t.Fatalf("%s contains %d times\n%s\nwant once: adapt the mutant to the changed source", e.file, n, e.old)
		}
		edited[name] = strings.Replace(edited[name], e.old, e.new, 1)
	}
	files := map[string]string{}
	for name, text := range edited {
		files[name] = filepath.Join(filepath.Dir(overlay), fmt.Sprintf("%d.go", len(files)))
		if err := os.WriteFile(files[name], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": files})
	if err == nil {
		err = os.WriteFile(overlay, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// runTest runs the mutant's test and returns which part of it failed. It fails t if none
// did.
func (m *mutant) runTest(t *testing.T, root, overlay string) string {
	t.Helper()
	dir, tests, _ := strings.Cut(m.test, " ")
	c := exec.Command("go", "test", "-count=1", "-overlay", overlay, "-run", tests, dir)
	c.Dir = root
	out, err := c.CombinedOutput()
	failed := regexp.MustCompile(`--- FAIL: (\S+)`).FindSubmatch(out)
	switch {
	case err == nil:
		t.Fatalf("not found by %s", m.test)
	case failed == nil:
		t.Fatalf("%v\n%s", err, out)
	}
	return fmt.Sprintf("found by %s of %s", failed[1], dir)
}

// The output of a plan and of a seed that fail.
var (
	failingPlan = regexp.MustCompile(`--- FAIL: TestPlans/(\S+).*\n\s*\S+ (seed \d+: .*)`)
	failingSeed = regexp.MustCompile(`FIRST=(\d+) SEEDS=1\n\s*(.*)`)
)

// findFailure simulates the plans and then seeds with a mutant until one fails, and
// returns which and its failure as text. It fails t if none does.
func findFailure(t *testing.T, root, overlay string) string {
	t.Helper()
	test := func(name string) (output []byte, err error) {
		c := exec.Command("go", "test", "-count=1", "-timeout", "1h", "-overlay", overlay, "-run", name, "./test/sim", "-shrink=false", fmt.Sprintf("-seeds=%d", mutantSeeds))
		c.Dir = root
		return c.CombinedOutput()
	}
	out, err := test("TestPlans")
	if plan := failingPlan.FindSubmatch(out); plan != nil {
		return fmt.Sprintf("found by plan %s, %s", plan[1], plan[2])
	}
	if err == nil {
		out, err = test("TestSeeds")
	}
	seed := failingSeed.FindSubmatch(out)
	switch {
	case err == nil:
		t.Fatalf("not found by the plans or in %d seeds", mutantSeeds)
	case seed == nil:
		t.Fatalf("%v\n%s", err, out)
	}
	return fmt.Sprintf("found by seed %s: %s", seed[1], seed[2])
}
