// Command testreport reads the output of `go test -json` and reports it while the
// tests run: a line per package, a line of progress every ten seconds, and at the
// end what failed. It exits with 1 if anything failed.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// progressInterval is the time between two lines of progress.
const progressInterval = 10 * time.Second

// main reports the events on standard input.
func main() {
	tick := time.NewTicker(progressInterval)
	defer tick.Stop()
	failed, err := run(os.Stdin, os.Stdout, tick.C)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
	}
	if err != nil || failed {
		os.Exit(1)
	}
}

// event is a line of `go test -json`.
type event struct {
	Action     string
	Package    string
	ImportPath string // of a build, instead of Package
	Test       string
	Output     string
	Elapsed    float64 // seconds
}

// testLog marks the lines in the output of a test that are logs of the code under
// test.
const testLog = "testlog.go:"

// result is what is known about a package.
type result struct {
	tests  int                 // that have passed
	output map[string][]string // lines of the running and the failed tests; "" is the package's own
}

// report is the state of a run.
type report struct {
	out     io.Writer
	began   time.Time
	running map[string]*result
	ok      int
	failed  []string // packages
	details []string // output of what failed
}

// run reports the events of in until it ends, and progress when tick fires. It
// reports whether anything failed.
func run(in io.Reader, out io.Writer, tick <-chan time.Time) (failed bool, err error) {
	r := &report{out: out, began: time.Now(), running: make(map[string]*result)}
	lines, ended := make(chan []byte), make(chan error, 1)
	go func() { // ends with in
		s := bufio.NewScanner(in)
		s.Buffer(nil, 16<<20)
		for s.Scan() {
			lines <- bytes.Clone(s.Bytes())
		}
		close(lines)
		ended <- s.Err()
	}()
	for {
		select {
		case line, more := <-lines:
			if !more {
				r.summarize()
				return len(r.failed) > 0, <-ended
			}
			var e event
			if err := json.Unmarshal(line, &e); err != nil {
				fmt.Fprintf(out, "%s\n", line) // of the go command itself
				r.failed = append(r.failed, "the go command")
				continue
			}
			r.add(&e)
		case <-tick:
			r.progress()
		}
	}
}

// add adds an event.
func (r *report) add(e *event) {
	name := e.Package + e.ImportPath
	p := r.running[name]
	if p == nil {
		p = &result{output: make(map[string][]string)}
		r.running[name] = p
	}
	switch e.Action {
	case "output", "build-output":
		p.output[e.Test] = append(p.output[e.Test], e.Output)
		return
	case "pass", "skip":
		delete(p.output, e.Test)
		if e.Test != "" {
			p.tests++
			return
		}
		if e.Action == "pass" {
			r.ok++
			fmt.Fprintf(r.out, "%6.1fs  ok    %s, %d tests in %.1f s\n", time.Since(r.began).Seconds(), name, p.tests, e.Elapsed)
		}
	case "build-fail":
		r.details = append(r.details, p.output[""]...)
	case "fail":
		if e.Test != "" {
			return
		}
		r.failed = append(r.failed, name)
		fmt.Fprintf(r.out, "%6.1fs  FAIL  %s\n", time.Since(r.began).Seconds(), name)
		r.keepDetails(name, p)
	default:
		return
	}
	delete(r.running, name)
}

// keepDetails keeps the output of the tests of a package that have failed or not
// ended: with logs for the reader now, without them for the end.
func (r *report) keepDetails(name string, p *result) {
	var tests []string
	for test := range p.output {
		tests = append(tests, test)
	}
	slices.Sort(tests)
	r.details = append(r.details, name+"\n")
	for _, test := range tests {
		for _, line := range p.output[test] {
			fmt.Fprint(r.out, line)
			if !strings.Contains(line, testLog) && !strings.HasPrefix(line, "=== ") {
				r.details = append(r.details, line)
			}
		}
	}
}

// progress reports the packages that run, and how many of their tests have passed.
func (r *report) progress() {
	var running []string
	for name, p := range r.running {
		running = append(running, fmt.Sprintf("%s (%d tests passed)", name, p.tests))
	}
	slices.Sort(running)
	if len(running) == 0 {
		running = []string{"the compiler"}
	}
	fmt.Fprintf(r.out, "%6.1fs  ...   %d packages ok, %d failed; running: %s\n",
		time.Since(r.began).Seconds(), r.ok, len(r.failed), strings.Join(running, ", "))
}

// summarize reports what failed, and the numbers of packages.
func (r *report) summarize() {
	if len(r.details) > 0 {
		fmt.Fprintf(r.out, "\nWhat failed, without the logs:\n%s", strings.Join(r.details, ""))
	}
	fmt.Fprintf(r.out, "\n%d packages ok, %d failed, after %s\n", r.ok, len(r.failed), time.Since(r.began).Round(time.Second))
}
