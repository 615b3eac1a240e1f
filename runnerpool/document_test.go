package runnerpool

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"yardmaster/job"
	"yardmaster/runnerpool/rrq"
)

// page is docs/rrq.md.
func page(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../docs/rrq.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// section is what stands below a heading, up to the next of its rank.
func section(t *testing.T, heading string) string {
	t.Helper()
	_, below, found := strings.Cut(page(t), "\n"+heading+"\n")
	if !found {
		t.Fatalf("the page has no %s", heading)
	}
	rank, _, _ := strings.Cut(heading, " ")
	below, _, _ = strings.Cut(below, "\n"+rank+" ")
	return below
}

// The page's times and limits are those of the code, each in its row.
func TestPageNamesTimesAndLimits(t *testing.T) {
	want := []string{
		fmt.Sprintf("| payload of a frame | %d bytes |", rrq.MaxFrame),
		fmt.Sprintf("| requests of one process at once | %d |", rrq.MaxInFlight),
		fmt.Sprintf("| slack behind a deadline | %s |", slack),
		fmt.Sprintf("| to connect to a process that listens | %s |", dialTimeout),
		fmt.Sprintf("| to hand over a cancel | %s |", cancelTimeout),
		fmt.Sprintf("| for an answer after the node has ended its side | %s |", halfClosePause),
		fmt.Sprintf("| for an answer to a cancel when the lease is over | %s |", leasePause),
		fmt.Sprintf("| for the end of a process behind that of its connection | %s |", exitNotice),
		fmt.Sprintf("| pauses between starts of a process, least | %s |", firstPause),
		fmt.Sprintf("| pauses between starts of a process, most | %s |", lastPause),
		fmt.Sprintf("| ends that make a crash loop | %d |", loopEnds),
		fmt.Sprintf("| within | %s |", loopWindow),
		fmt.Sprintf("| life of a process that ends a crash loop | %s |", probation),
		fmt.Sprintf("| line of output that is logged whole | %d bytes |", maxLine),
		fmt.Sprintf("| keys of a correlation context | %d |", maxCorrelations),
		fmt.Sprintf("| key of it | %d bytes |", maxCorrelationKey),
		fmt.Sprintf("| value of it | %d bytes |", maxCorrelationValue),
		fmt.Sprintf("| losses that make a dead letter | %d |", job.MaxLosses),
	}
	var rows []string
	for row := range strings.Lines(section(t, "## Times and limits")) {
		if row = strings.TrimSpace(row); strings.HasPrefix(row, "| ") && row != "| what | how much |" {
			rows = append(rows, row)
		}
	}
	if !slices.Equal(rows, want) {
		t.Errorf("the page has\n%s\nit should have\n%s", strings.Join(rows, "\n"), strings.Join(want, "\n"))
	}
	for _, text := range []string{
		fmt.Sprintf("for that it has %d ms more", slack.Milliseconds()),
		fmt.Sprintf("| %d ms for an answer |", halfClosePause.Milliseconds()),
		fmt.Sprintf("A record of more than %d bytes", job.MaxInlineBody),
	} {
		if !strings.Contains(page(t), text) {
			t.Errorf("the page lacks %q", text)
		}
	}
}

// The page tells of every key of RRQ's table what becomes of it.
func TestPageNamesEveryKeyOfRRQ(t *testing.T) {
	var listed []string
	for row := range strings.Lines(section(t, "### 1. Start a yard beside it")) {
		if cells := strings.Split(row, "|"); len(cells) == 4 {
			for _, key := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(cells[1], -1) {
				if idle := IdleKeys[key[1]] != ""; idle != strings.HasPrefix(strings.TrimSpace(cells[2]), "none") {
					t.Errorf("%s does nothing: %t; the page says %s", key[1], idle, cells[2])
				}
				listed = append(listed, key[1])
			}
		}
	}
	var want []string
	for key := range IdleKeys {
		want = append(want, key)
	}
	for _, table := range []reflect.Type{reflect.TypeFor[Config](), reflect.TypeFor[RunnerConfig]()} {
		for i := range table.NumField() {
			key := table.Field(i).Tag.Get("toml")
			if ours := []string{"-", "runners", "socket_via", "cancel_grace_seconds", "connections"}; !slices.Contains(ours, key) {
				want = append(want, key)
			}
		}
	}
	slices.Sort(listed)
	slices.Sort(want)
	if !slices.Equal(listed, want) {
		t.Errorf("the page has\n%q\nit should have\n%q", listed, want)
	}
}

// The page's smallest runner is one: it works in a pool, through deadlines and
// cancels that it does not hear.
func TestPageShowsARunner(t *testing.T) {
	block := regexp.MustCompile("(?s)```python\n(.*?)```").FindStringSubmatch(section(t, "## The smallest runner"))
	if block == nil {
		t.Fatal("the page shows no runner")
	}
	file := filepath.Join(t.TempDir(), "smallest.py")
	if err := os.WriteFile(file, []byte(block[1]), 0o600); err != nil {
		t.Fatal(err)
	}
	y := startYard(t, testConfig("", func(c *RunnerConfig) {
		c.Cmd, c.Env = []string{program(t, "python3"), file}, map[string]string{nodeMode: ""}
	}))
	for _, test := range []struct {
		function, params string
		status           job.Status
		result           string
	}{
		{"add", `{"terms":[1,2,9007199254740993]}`, job.Success, "9007199254740996"},
		{"later", `{}`, job.Retry, ""},
		{"nobody", `{}`, job.Error, ""},
		{"add", `{"terms":[]}`, job.Success, "0"},
	} {
		if o := y.ask(test.function, test.params, nil); o.Status != test.status || string(o.Result.Data) != test.result {
			t.Errorf("%s %s gives %s %s %+v", test.function, test.params, o.Status, o.Result.Data, o.Fault)
		}
	}
	if s := y.Status()[0].Members[0]; s.Restarts != 0 {
		t.Errorf("the runner was restarted: %+v", s)
	}
}
