package drill

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/test/drill/check"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// TestJudge_Witnesses checks that the judge detects wrong evidence.
func TestJudge_Witnesses(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, lines ...string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a, b, c, d := job.ID{1}, job.ID{2}, job.ID{3}, job.ID{4}
	write("w1.witness", // two at the same time; b has no end
		"begin limited:"+a.String()+" 1 10 100", "begin limited:"+b.String()+" 1 11 150", "end limited:"+a.String()+" 1 10 300")
	write("w2.witness", // a runs again during its first run; three at the same time with c
		"begin limited:"+a.String()+" 1 20 200", "begin limited:"+c.String()+" 1 21 210",
		"end limited:"+c.String()+" 1 21 220", "end limited:"+a.String()+" 1 20 230")
	write("n1.witness", job.RequestID(d, 2)+" "+d.String()+" 1 30")
	cl := &Cluster{Dir: dir}
	v := Verdict{MaxConcurrent: map[string]int{}}
	completed := map[job.ID]bool{a: true, b: true, c: true, d: true, {5}: true}
	if err := must.Try(func() { cl.judgeWitnesses(&v, completed) }); err != nil {
		t.Fatal(err)
	}
	if v.Runs != 5 || v.Reruns != 1 || v.Overlaps != 1 || v.CompletedUnseen != 1 || v.MaxConcurrent["limited"] != 3 {
		t.Errorf("%s", v.String())
	}
	if flaws := v.Flaws(); len(flaws) != 2 || !strings.Contains(flaws[0], "without a witness") || !strings.Contains(flaws[1], "without a reason") {
		t.Errorf("flaws %q", flaws)
	}
	justified := Verdict{MaxConcurrent: map[string]int{}}
	justified.events.ends = []check.End{{Job: a.String(), Failed: true, Reason: "lease is over", At: 190}}
	if err := must.Try(func() { cl.judgeWitnesses(&justified, nil) }); err != nil || justified.Overlaps != 1 || justified.Unjustified != 0 {
		t.Errorf("the overlap is justified by history: %s, %v", justified.String(), err)
	}
	write("w3.witness", "begin limited:nobody 1 10 100")
	if err := must.Try(func() { cl.judgeWitnesses(&v, completed) }); err == nil {
		t.Error("a malformed witness file was accepted")
	}
}

func TestVerdict_Flaws(t *testing.T) {
	v := Verdict{Lost: 1, Unexpected: 2, Duplicates: 3, HistoryGaps: 4, CompletedUnseen: 5}
	if got := v.Flaws(); len(got) != 5 || got[0] != "1 lost" {
		t.Errorf("%q", got)
	}
	if got := (&Verdict{Acknowledged: 9, Completed: 9, Reruns: 3, Overlaps: 1}).Flaws(); len(got) != 0 {
		t.Errorf("%q", got)
	}
}
