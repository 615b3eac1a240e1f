package scenario

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"yardmaster/job"
)

// run is one dispatch as its runner saw it. Begin and end are lines of the
// witness, which all runners append to; 0 is no end: its process was killed, or
// goes on.
type run struct {
	n          uint32
	attempt    string
	begin, end int
}

// runs gives what the runners saw of a job. No dispatch reaches a runner twice,
// and none while or after a later one runs.
func (p *player) runs(id job.ID) (runs []run, err error) {
	text, err := os.ReadFile(p.world.Witness)
	if err != nil {
		return nil, err
	}
	last, fenced := uint32(0), uint64(0)
	lines := bufio.NewScanner(bytes.NewReader(text))
	for at := 1; lines.Scan(); at++ {
		line := lines.Text()
		if !strings.Contains(line, id.String()) {
			continue
		}
		if strings.HasPrefix(line, "!") {
			return nil, fmt.Errorf("a runner complains: %s", line)
		}
		request, ended := strings.CutPrefix(line, "end ")
		words := append(strings.Fields(request), "", "", "", "")
		of, n, ok := job.ParseRequestID(words[0])
		if !ok || of != id {
			return nil, fmt.Errorf("witness: nobody understands %q", line)
		}
		if ended {
			if n != last {
				return nil, fmt.Errorf("witness: %q, and dispatch %d has begun: they overlapped", line, last)
			}
			runs[len(runs)-1].end = at
			continue
		}
		var fence uint64
		_, _ = fmt.Sscan(words[3], &fence) // what is not given is 0
		if words[1] != id.String() || n <= last || fence > 0 && fence <= fenced {
			return nil, fmt.Errorf("witness: %q after dispatch %d with fence %d", line, last, fenced)
		}
		last, fenced = n, max(fence, fenced)
		runs = append(runs, run{n: n, attempt: words[2], begin: at})
	}
	return runs, lines.Err()
}

// ran writes what the runners saw of a job.
func (p *player) ran(e *entry) error {
	runs, err := p.runs(e.id)
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
	fmt.Fprintln(&p.out, text)
	return nil
}

// inTurn checks in which order jobs began for the first time.
func (p *player) inTurn(names []string) error {
	last, former := 0, ""
	for _, name := range names {
		runs, err := p.runsOf(name)
		if err != nil {
			return err
		}
		if len(runs) == 0 || runs[0].begin < last {
			return fmt.Errorf("%s did not begin after %s: %+v", name, former, runs)
		}
		last, former = runs[0].begin, name
	}
	return nil
}

// atOnce checks how many jobs ran at once, at most: <number> <names>. What was
// killed has no end, and does not count.
func (p *player) atOnce(words []string) error {
	var most int
	if n, _ := fmt.Sscan(append(words, "")[0], &most); n != 1 {
		return errors.New("want atonce <number> <jobs>")
	}
	var ends []run
	for _, name := range words[1:] {
		runs, err := p.runsOf(name)
		if err != nil {
			return err
		}
		ends = append(ends, slices.DeleteFunc(runs, func(r run) bool { return r.end == 0 })...)
	}
	for _, r := range ends {
		beside := 0
		for _, other := range ends {
			if other.begin <= r.begin && r.begin < other.end {
				beside++
			}
		}
		if beside > most {
			return fmt.Errorf("%d ran at once, at most %d may", beside, most)
		}
	}
	return nil
}

func (p *player) runsOf(name string) ([]run, error) {
	e := p.jobs[name]
	if e == nil {
		return nil, fmt.Errorf("no job is called %q", name)
	}
	return p.runs(e.id)
}

// Complaints gives what runners have complained of.
func Complaints(witness string) error {
	text, err := os.ReadFile(witness)
	for line := range strings.Lines(string(text)) {
		if line[0] == '!' {
			err = errors.Join(err, fmt.Errorf("a runner complains: %s", strings.TrimSpace(line)))
		}
	}
	return err
}
