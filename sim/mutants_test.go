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

var mutantsFlag = flag.Bool("mutants", false, "have TestMutants build each mutant and play it")

// mutantSeeds is how many stories a mutant may survive.
const mutantSeeds = 10000

// mutant is the code with a mistake in it: one that was made once, or one that
// a rule of ours exists to prevent.
type mutant struct {
	name  string
	edits []edit
}

// edit replaces a text that stands once in a file.
type edit struct{ file, old, new string }

var mutants = []mutant{
	{"an outcome counts for whatever dispatch is current", []edit{
		{"ledger/dispatch.go", "if r == nil || r.n != e.N || r.state != job.Active {\n\t\treturn l.late(r, e)", "if r == nil || r.state != job.Active {\n\t\treturn l.late(r, e)"}}},
	{"an attempt is given back twice", []edit{
		{"ledger/dispatch.go", "next.attempt--\n", "next.attempt -= min(2, next.attempt)\n"}}},
	{"a limit is looked at by nobody", []edit{
		{"ledger/dispatch.go", " || r.queue.paused || r.queue.full() {", " || r.queue.paused {"},
		{"scheduler/place.go", "room != math.MaxInt && room <= m.taking[w.Queue]", "room != math.MaxInt && room <= 0"}}},
	{"a placement is checked against no pause", []edit{
		{"ledger/dispatch.go", " || r.queue.paused || r.queue.full() {", " || r.queue.full() {"}}},
	{"a gap in a lane is passed over", []edit{
		{"scheduler/intake.go", "case seq == lane.next:", "case seq >= lane.next:\n\t\t\tlane.next = seq"}}},
	{"a known id makes a second job", []edit{
		{"ledger/fold.go", "if known := l.jobs.byID[j.ID]; known != nil {", "if known := l.jobs.byID[j.ID]; known != nil && known.state != job.Completed {"}}},
	{"a new authority forgets what runs", []edit{
		{"scheduler/intake.go", "m.flights[dispatchKey{a.ID, a.N}] = m.adoptFlight(a, l.Index())", "_ = m.adoptFlight"}}},
	{"work is given to others before a lease is over", []edit{
		{"scheduler/sweep.go", "case now.Sub(heard) > reassignAfter:", "case now.Sub(heard) > reassignAfter/2:"}}},
	{"a node works on after its lease", []edit{
		{"agent/beat.go", "func (a *Agent) expired() bool { return !time.Now().Before(a.lease) }", "func (a *Agent) expired() bool { return false }"}}},
	{"a node obeys an authority of the past", []edit{
		{"agent/agent.go", "return epoch == a.epoch\n", "return true\n"}}},
	{"a node begins what it has refused", []edit{
		{"agent/inflight.go", " || a.table.refused.has(d.key)", ""}}},
	{"a node obeys orders to its former life", []edit{
		{"agent/inflight.go", "case b.Incarnation != 0 && b.Incarnation != a.cfg.Incarnation, !a.sees(b.Epoch):", "case !a.sees(b.Epoch):"}}},
	{"a node that thaws beats before it looks at its lease", []edit{
		{"agent/beat.go", "	a.lapse() // a node that was frozen may hear this before it has looked at its lease\n", ""},
		{"agent/beat.go", "	if a.over() {\n		return // just now: the next beat is for a new lease\n	}\n", ""}}},
	{"a new lease is not looked at before the old one's end", []edit{
		{"agent/beat.go", "		case <-a.leased:\n", ""}}},
	{"a node takes orders meant for its former lease", []edit{
		{"agent/inflight.go", "case !a.works(), a.former.meant(b):", "case !a.works():"}}},
	{"a unique key is held by nobody", []edit{
		{"ledger/guards.go", "if g.Unique.Given() {\n		l.guards.hold", "if g.Unique.Given() && l.now == 0 {\n		l.guards.hold"}}},
	{"a rate limit ends half way", []edit{
		{"ledger/guards.go", "until: l.now + int64(g.Rate.For), rate: true", "until: l.now + int64(g.Rate.For)/2, rate: true"}}},
	{"a tick comes again under the next authority", []edit{
		{"ledger/cron.go", "old.Rev != t.Rev || old.Next.IsZero() || !old.Next.Equal(t.At) || old.tick != nil", "old.Rev != t.Rev || old.tick != nil"}}},
	{"a tick's job is stored once or never", []edit{
		{"scheduler/cron.go", "m.crons.sent[t.Job] = time.Now().Add(tickAgainWait)", "m.crons.sent[t.Job] = time.Time{}"},
		{"scheduler/cron.go", "again, known := d.sent[t.Job]", "again, known := d.sent[t.Job]\n		known = known || len(d.times) == 0"}}},
	{"a lane that went back is believed", []edit{
		{"scheduler/intake.go", "case info.Last < folded:", "case false && info.Last < folded:"}}},
	{"a moved dispatch is lost by the node it left", []edit{
		{"ledger/dispatch.go", "if e.Node != \"\" && (e.Node != r.run.node || e.Incarnation != r.run.incarnation) {", "if e.Node != \"\" && e.Node == \"nobody\" {"}}},
	{"a moved dispatch is lost for what its node left unsaid before", []edit{
		{"scheduler/sweep.go", "heard := later(m.began, f.movedAt)", "heard := m.began"}}},
	{"a worker brings a job that has ended", []edit{
		{"ledger/dispatch.go", "if r == nil || r.n != c.N || r.state != job.Active {\n		return Result{Err: job.ErrLeaseLost}", "if r == nil || r.run == nil {\n		return Result{Err: job.ErrLeaseLost}"}}},
	{"a member's clock is the yard's", []edit{
		{"scheduler/clock.go", "return offs[(len(offs)-1)/2], true", "return offs[len(offs)-1], true"}}},
	{"several messages of history are on their way", []edit{
		{"scheduler/publish.go", "taleWindow = 1", "taleWindow = 4"}}},
}

// TestMutants looks that each mistake can still be made, and with -mutants that
// it is found.
func TestMutants(t *testing.T) {
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			overlay := filepath.Join(t.TempDir(), "overlay.json")
			m.write(t, root, overlay)
			if *mutantsFlag {
				t.Logf("%s", hunt(t, root, overlay))
			}
		})
	}
}

// write makes what go build takes for the mutant's files.
func (m *mutant) write(t *testing.T, root, overlay string) {
	t.Helper()
	files := map[string]string{}
	for i, e := range m.edits {
		name := filepath.Join(root, e.file)
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), e.old); n != 1 {
			t.Fatalf("%s has %d times\n%s\nwant it once: write the mistake anew", e.file, n, e.old)
		}
		files[name] = filepath.Join(filepath.Dir(overlay), fmt.Sprintf("%d.go", i))
		if err := os.WriteFile(files[name], []byte(strings.Replace(string(text), e.old, e.new, 1)), 0o600); err != nil {
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

var found = regexp.MustCompile(`FIRST=(\d+) SEEDS=1\n\s*(.*)`)

// hunt plays a mutant until it is found, and tells by which seed.
func hunt(t *testing.T, root, overlay string) string {
	t.Helper()
	c := exec.Command("go", "test", "-count=1", "-timeout", "1h", "-overlay", overlay, "-run", "TestSeeds", "./sim", "-shrink=false", fmt.Sprintf("-seeds=%d", mutantSeeds))
	c.Dir = root
	out, err := c.CombinedOutput()
	seed := found.FindSubmatch(out)
	switch {
	case err == nil:
		t.Fatalf("not found in %d seeds", mutantSeeds)
	case seed == nil:
		t.Fatalf("%v\n%s", err, out)
	}
	return fmt.Sprintf("found by seed %s: %s", seed[1], seed[2])
}
