package command

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
)

const testID = "0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10"

// TestTables_Fit checks how tables are shown at widths in which not all of their text has space.
func TestTables_Fit(t *testing.T) {
	long := strings.Repeat("n", 10) + strings.Repeat("-", 61) + "m-orders-2"
	for _, tt := range []struct {
		name    string
		width   int
		titles  string
		least   []string
		rows    []string
		want    string
		leftOut string
	}{
		{"no terminal", 0, "JOB\tQUEUE\tERROR", []string{"ERROR"}, []string{"a\tb\t" + long}, "JOB  QUEUE  ERROR\na    b      " + long + "\n", ""},
		{"fits", 24, "J\tQUEUE\tERROR", []string{"ERROR"}, []string{"a\tb\tabcdefghijkl"}, "J  QUEUE  ERROR\na  b      abcdefghijkl\n", ""},
		{"the widest text is cut first", 40, "J\tQUEUE\tERROR", nil, []string{"a\tb\tno route to " + long}, "J  QUEUE  ERROR\na  b      no route to nnnnnnnnnn-------…\n", ""},
		{"names are cut in the middle", 40, "QUEUE\tSTATE\tN", []string{"STATE"}, []string{long + "\trunning\t7"}, "QUEUE                         STATE    N\nnnnnnnnnnn----…---m-orders-2  running  7\n", ""},
		{"columns are left out in their order", 30, "QUEUE\tSTATE\tA\tB\tC", []string{"C", "A"}, []string{long + "\trunning\t1\t22\t333"}, "QUEUE              STATE    B\nnnnnnnnn…orders-2  running  22\n", "C A"},
		{"no more than necessary", 36, "QUEUE\tSTATE\tA\tB\tC", []string{"C", "A"}, []string{long + "\trunning\t1\t22\t333"}, "", "C"},
		{"numbers are never cut", 10, "Q\tN\tM", nil, []string{"a\t123456789012\t1234567890.5"}, "Q  N             M\na  123456789012  1234567890.5\n", ""},
		{"ids are never cut", 20, "JOB\tSTATE\tE", nil, []string{testID + "\tfailed\tabcdefghijkl"}, "JOB                                   STATE   E\n" + testID + "  failed  abcd…jkl\n", ""},
		{"times become ages", 40, "Q\tSINCE\tNEXT\tNOTE", nil, []string{"a\t2025-12-31T23:59:30.000Z\t2026-01-01T05:00:00Z\tdue 2026-01-03T00:00:00.000Z"}, "Q  SINCE    NEXT   NOTE\na  30s ago  in 5h  due in 48h\n", ""},
		{"not where there is space", 90, "Q\tSINCE\tNEXT\tNOTE", nil, []string{"a\t2025-12-31T23:59:30.000Z\t2026-01-01T05:00:00Z\tdue 2026-01-03T00:00:00.000Z"}, "", ""},
		{"a text that has a time in it stays", 30, "Q\tN\tERROR", nil, []string{"a\t1\tat 2025-12-31T23:59:30.000Z it broke"}, "Q  N  ERROR\na  1  at 2025-12-31T23:59:30.…\n", ""},
		{"wide characters", 30, "FUNCTION\tN\tERROR", []string{"ERROR"}, []string{strings.Repeat("表", 20) + "\t1\tx", "a\t2\ty"}, "FUNCTION              N  ERROR\n表表表表表…表表表表   1  x\na                     2  y\n", ""},
		{"wide characters that are halved", 29, "FUNCTION\tN\tERROR", nil, []string{strings.Repeat("表", 20) + "\t1\tx"}, "FUNCTION             N  ERROR\n表表表表…表表表表    1  x\n", ""},
		{"two cells are no table", 10, "error\tabcdefghijklmnopqrstuvwxyz", []string{"error"}, nil, "error  abcdefghijklmnopqrstuvwxyz\n", ""},
		{"text around tables", 16, "Q\tN\tERROR", []string{"N"}, []string{"a\t1\tabcdefghijklmnopqrs", "a sentence of some length", "a\t1\tb"}, "Q  ERROR\na  abcdef…nopqrs\na sentence of some length\na  1  b\n", "N"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var cells tables
			Titles(&cells, tt.titles, tt.least...)
			for _, row := range tt.rows {
				fmt.Fprintln(&cells, row)
			}
			now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			text, leftOut := cells.fit(tt.width, nil, now)
			if tt.want != "" && !strings.HasPrefix(string(text), tt.want) {
				t.Errorf("got\n%swant\n%s", text, tt.want)
			}
			if got := strings.Join(leftOut, " "); got != tt.leftOut {
				t.Errorf("left out %q, want %q, in\n%s", got, tt.leftOut, text)
			}
		})
	}
}

// Every part of a list shows the columns of its first part, whatever is in it.
func TestTables_Parts(t *testing.T) {
	now, long := time.Now(), strings.Repeat("q", 81)
	part := func(before *layout, titles bool, queue string) string {
		var cells tables
		if titles {
			Titles(&cells, "QUEUE\tSTATE\tWAITING\tEXPIRED\tSINCE", "EXPIRED")
		}
		fmt.Fprintf(&cells, "%s\trunning\t123456\t7654321\t%s\n", queue, now.Add(-time.Hour).UTC().Format(time.RFC3339))
		text, _ := cells.fit(50, before, now)
		return string(text)
	}
	var l layout
	first := part(&l, true, long)
	for i, queue := range []string{"mail", long} {
		next := part(&l, false, queue)
		if strings.Contains(next, "7654321") || !strings.Contains(next, "123456") || !strings.Contains(next, "60m ago") {
			t.Errorf("part %d:\n%s", i+2, first+next)
		}
	}
}

// A table fits any width of at least 80 if its first and one more column are names of 81 characters, and its other
// texts are as long as a cell may be.
func TestTables_Widths(t *testing.T) {
	queue, text := strings.Repeat("q", 81), strings.Repeat("word ", 32)
	for width := 80; width < 300; width += 3 {
		var cells tables
		Titles(&cells, "JOB\tQUEUE\tSTATE\tFUNCTION\tCREATED\tERROR", "CREATED", "FUNCTION")
		for range 3 {
			fmt.Fprintf(&cells, "%s\t%s\tcancelled\t%s\t2026-01-01T00:00:00.000Z\t%s\n", testID, queue, queue, text)
		}
		fitted, _ := cells.fit(width, nil, time.Now())
		for line := range strings.Lines(string(fitted)) {
			if got := ansi.StringWidth(strings.TrimSuffix(line, "\n")); got > width {
				t.Fatalf("%d columns at %d: %s", got, width, line)
			}
		}
	}
}

func TestAgeText(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s ago", 99 * time.Second: "99s ago", 100 * time.Second: "1m ago", -100 * time.Second: "in 1m", 99 * time.Minute: "99m ago", 100 * time.Minute: "1h ago",
		-99 * time.Hour: "in 99h", 100 * time.Hour: "4d ago", 400 * 24 * time.Hour: "400d ago",
	} {
		if got := ageText(d); got != want {
			t.Errorf("%s: %q, want %q", d, got, want)
		}
	}
}

func TestLeftOutText(t *testing.T) {
	for width, want := range map[int]string{
		80: "CANCELLED, EXPIRED not shown, for lack of width; --json shows all", 70: "2 columns not shown, for lack of width; --json shows all",
	} {
		if got := leftOutText([]string{"EXPIRED", "CANCELLED", "EXPIRED"}, width); got != want {
			t.Errorf("%d: %q", width, got)
		}
	}
}
