package main

import (
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestRun checks the report of a package that passes, one that fails, and one that
// does not compile.
func TestRun(t *testing.T) {
	const events = `{"Action":"start","Package":"m/good"}
{"Action":"run","Package":"m/good","Test":"TestA"}
{"Action":"output","Package":"m/good","Test":"TestA","Output":"    a_test.go:1: seen by nobody\n"}
{"Action":"pass","Package":"m/good","Test":"TestA","Elapsed":0.1}
{"Action":"pass","Package":"m/good","Elapsed":0.2}
{"Action":"skip","Package":"m/none","Elapsed":0}
{"Action":"start","Package":"m/bad"}
{"Action":"output","Package":"m/bad","Test":"TestB","Output":"    testlog.go:81: a log\n"}
{"Action":"output","Package":"m/bad","Test":"TestB","Output":"    b_test.go:7: got 1, want 2\n"}
{"Action":"fail","Package":"m/bad","Test":"TestB","Elapsed":0.1}
{"Action":"fail","Package":"m/bad","Elapsed":0.2}
{"Action":"build-output","ImportPath":"m/broken","Output":"broken.go:3: undefined: x\n"}
{"Action":"build-fail","ImportPath":"m/broken"}
{"Action":"fail","Package":"m/broken","Elapsed":0}
`
	const want = `TIME  ok    m/good, 1 tests in 0.2 s
TIME  FAIL  m/bad
    testlog.go:81: a log
    b_test.go:7: got 1, want 2
TIME  FAIL  m/broken

What failed, without the logs:
m/bad
    b_test.go:7: got 1, want 2
broken.go:3: undefined: x
m/broken

1 packages ok, 2 failed, after 0s
`
	var out strings.Builder
	failed, err := run(strings.NewReader(events), &out, nil)
	if got := regexp.MustCompile(` +\d+\.\ds`).ReplaceAllString(out.String(), "TIME"); !failed || err != nil || got != want {
		t.Errorf("failed %t, %v, and reported:\n%s\nwant:\n%s", failed, err, got, want)
	}
}

// TestRun_Progress checks the line of progress, which counts the tests of a package
// that runs.
func TestRun_Progress(t *testing.T) {
	var out strings.Builder
	r := &report{out: &out, began: time.Now(), running: make(map[string]*result)}
	r.add(&event{Action: "pass", Package: "m/long", Test: "TestA"})
	r.progress()
	if got := out.String(); !strings.HasSuffix(got, "0 packages ok, 0 failed; running: m/long (1 tests passed)\n") {
		t.Errorf("reported %q", got)
	}
}
