package runnerscript

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/yardmaster-dev/yardmaster/job"
)

// witnessedRun is one dispatch as recorded by its runner. begin and end are line
// numbers in the witness file; end is 0 if the dispatch is still running or its
// process was killed.
type witnessedRun struct {
	n          uint32
	attempt    string
	begin, end int
}

// jobRuns returns the recorded dispatches of a job. It returns an error if a
// dispatch reached a runner twice, overlapped another or was out of order.
func (run *scriptRun) jobRuns(id job.ID) (runs []witnessedRun, err error) {
	text, err := os.ReadFile(run.env.Witness)
	if err != nil {
		return nil, err
	}
	last, fenced := uint32(0), uint64(0)
	lines := bufio.NewScanner(bytes.NewReader(text))
	for number := 1; lines.Scan(); number++ {
		line := lines.Text()
		if !strings.Contains(line, id.String()) {
			continue
		}
		if strings.HasPrefix(line, "!") {
			return nil, fmt.Errorf("a runner reported a violation: %s", line)
		}
		request, ended := strings.CutPrefix(line, "end ")
		words := append(strings.Fields(request), "", "", "", "")
		of, n, ok := job.ParseRequestID(words[0])
		if !ok || of != id {
			return nil, fmt.Errorf("witness: malformed line %q", line)
		}
		if ended {
			if n != last {
				return nil, fmt.Errorf("witness: %q after dispatch %d began: they overlapped", line, last)
			}
			runs[len(runs)-1].end = number
			continue
		}
		var fence uint64
		_, _ = fmt.Sscan(words[3], &fence) // 0 if absent
		if words[1] != id.String() || n <= last || fence > 0 && fence <= fenced {
			return nil, fmt.Errorf("witness: %q after dispatch %d with fence %d", line, last, fenced)
		}
		last, fenced = n, max(fence, fenced)
		runs = append(runs, witnessedRun{n: n, attempt: words[2], begin: number})
	}
	return runs, lines.Err()
}

// writeAttempts writes the "ran:" line of a job: the attempt of each recorded
// dispatch.
func (run *scriptRun) writeAttempts(e *scriptJob) error {
	runs, err := run.jobRuns(e.id)
	if err != nil {
		return err
	}
	text := "ran:"
	for _, r := range runs {
		text += " " + r.attempt
	}
	if len(runs) == 0 {
		text += " never"
	}
	fmt.Fprintln(&run.out, text)
	return nil
}

// checkOrder checks that the named jobs started in this order. A job whose first dispatch was lost
// before it started is passed over: others may start until it is dispatched again. If a fault is
// injected, only jobs of one lane are compared: while a new authority cannot read a lane, those of the
// others start.
func (run *scriptRun) checkOrder(names []string) error {
	type start struct {
		witnessedRun
		name string
	}
	lasts := map[uint8]start{}
	for _, name := range names {
		runs, err := run.runsOf(name)
		if err != nil {
			return err
		}
		if len(runs) == 0 {
			return fmt.Errorf("%s did not start", name)
		}
		lane := uint8(0)
		if run.env.OnNow != nil {
			v, err := run.show(run.jobs[name])
			if err != nil {
				return err
			}
			lane = v.Lane
		}
		switch first, last := runs[0], lasts[lane]; {
		case first.n > 1:
		case first.begin < last.begin:
			return fmt.Errorf("%s did not start after %s: %+v is before %+v", name, last.name, first, last.witnessedRun)
		default:
			lasts[lane] = start{first, name}
		}
	}
	return nil
}

// checkConcurrency checks that no more than a number of jobs ran at once. words
// is <number> <names>. Dispatches that were killed have no end and do not count.
func (run *scriptRun) checkConcurrency(words []string) error {
	var limit int
	if n, _ := fmt.Sscan(append(words, "")[0], &limit); n != 1 {
		return errors.New("want atonce <number> <names>")
	}
	var ended []witnessedRun
	for _, name := range words[1:] {
		runs, err := run.runsOf(name)
		if err != nil {
			return err
		}
		ended = append(ended, slices.DeleteFunc(runs, func(r witnessedRun) bool { return r.end == 0 })...)
	}
	for _, r := range ended {
		concurrent := 0
		for _, other := range ended {
			if other.begin <= r.begin && r.begin < other.end {
				concurrent++
			}
		}
		if concurrent > limit {
			return fmt.Errorf("%d jobs ran at once, want at most %d", concurrent, limit)
		}
	}
	return nil
}

// runsOf returns the recorded dispatches of the job with that name in the script.
func (run *scriptRun) runsOf(name string) ([]witnessedRun, error) {
	e := run.jobs[name]
	if e == nil {
		return nil, fmt.Errorf("unknown job %q", name)
	}
	return run.jobRuns(e.id)
}

// Violations returns the violations that runners reported in the witness file.
func Violations(witness string) error {
	text, err := os.ReadFile(witness)
	for line := range strings.Lines(string(text)) {
		if line[0] == '!' {
			err = errors.Join(err, fmt.Errorf("a runner reported a violation: %s", strings.TrimSpace(line)))
		}
	}
	return err
}
